"""Replay: the findings of a corpus, run again on this torch or on others."""
