"""Reducers: each makes a program smaller in one way."""
