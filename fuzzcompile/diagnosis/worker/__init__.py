"""The worker pool of triage: start, isolation, and results of lost workers."""
