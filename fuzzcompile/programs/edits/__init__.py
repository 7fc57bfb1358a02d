"""Edits of programs that bring them near a pattern."""
