"""Causes: what must change for a case to pass."""
