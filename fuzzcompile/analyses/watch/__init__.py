"""Watched scripts: sampled training or serving steps, judged beside the running script."""
