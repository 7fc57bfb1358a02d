"""Contracts beyond right values: equal bits where torch's settings promise them."""
