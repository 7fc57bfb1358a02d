"""Programs over tensors that share memory: writes through one alias and reads through others, in every order.

Inputs are views of one tensor, or of none. ``writes.toml`` and ``reads.toml`` hold the statements; views are rows of
``layouts.py``, which computes where their elements lie, so that no program depends on the order of a kernel's elements.
"""
