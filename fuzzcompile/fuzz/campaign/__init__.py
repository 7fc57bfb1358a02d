"""Campaigns: draw, judge, minimize, and store, within a budget."""
