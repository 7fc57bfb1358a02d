"""Reproducers run again: on the torch at hand, and across versions of torch in environments of their own.

The scripts run in processes of their own, with whichever torch; this package imports none.
"""
