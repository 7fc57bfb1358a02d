"""Causes: the smallest change of a program that makes it pass."""
