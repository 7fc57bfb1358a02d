"""Minimization tasks in a worker process."""
