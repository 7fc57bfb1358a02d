"""Faults behind the graph passes: lowerings, the scheduler, generated code, the wrapper."""
