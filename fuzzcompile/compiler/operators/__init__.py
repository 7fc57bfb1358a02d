"""Operators on real values: kernel, decomposition, fake tensor, side by side."""
