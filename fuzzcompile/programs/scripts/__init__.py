"""Reproducers: scripts that check themselves."""
