"""The runs and compiles that a verdict rests on, each made once."""
