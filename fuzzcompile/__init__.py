"""A fuzzer and triager for ``torch.compile`` on transformer code."""

__version__ = "0.1.0"
