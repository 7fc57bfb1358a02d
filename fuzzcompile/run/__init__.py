"""Runs: one program under limits, eager, in float64 or compiled, in worker processes."""
