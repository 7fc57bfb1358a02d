"""From observations to a verdict: how far apart the values of two runs are, and what explains it."""
