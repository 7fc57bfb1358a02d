"""Reducers: each makes one kind of thing smaller, through ``Search.attempt``, and knows nothing of the others."""
