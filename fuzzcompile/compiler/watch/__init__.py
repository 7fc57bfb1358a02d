"""Watched compiles: hooks, ledgers of rewrites, snapshots and vetoes."""
