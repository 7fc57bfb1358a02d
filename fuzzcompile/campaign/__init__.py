"""The campaign loop: generate, judge, attribute, reduce, store."""
