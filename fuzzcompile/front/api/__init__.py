"""The Python API: triage from a script, a notebook or a test."""
