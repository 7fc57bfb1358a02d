"""Trials: compiles and runs of one case, counted and kept."""
