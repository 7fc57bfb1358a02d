"""The stages of the compiler, a class each. ``table.py`` lists them, in the order of looking."""
