"""Reference implementations of fused operators, in plain torch operators."""
