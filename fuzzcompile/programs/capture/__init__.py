"""Capture: the compiled call of a script or notebook, as a case."""
