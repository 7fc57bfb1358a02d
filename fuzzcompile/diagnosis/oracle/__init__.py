"""The oracle: pure functions that tell rounding from a bug."""
