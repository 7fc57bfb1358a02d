"""Hypothesis strategies over transformer idioms, rendered to Python source through Jinja."""
