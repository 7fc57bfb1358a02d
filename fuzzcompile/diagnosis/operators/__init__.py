"""Operators at fault: decompositions, fake tensors and eager kernels."""
