"""Shrinking: the search for the smallest program that shows the same bug."""
