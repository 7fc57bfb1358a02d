"""Mutation testing of the compiler: what `bench/recall.py` is made of."""
