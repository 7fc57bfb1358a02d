"""Runs of one case (eager, float64, compiled) and the worker processes that hold them."""
