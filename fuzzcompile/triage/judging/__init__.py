"""The judge in a worker process, its progress and its vetoes."""
