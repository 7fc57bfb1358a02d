"""Profiles: two ways to run a model, compared layer by layer."""
