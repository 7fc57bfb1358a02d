"""Generated cases: recipes, profiles, and the code that they render to."""
