"""Tolerances between two ways to run a program, by pair and dtype: one table, with the reason for each number."""

from fuzzcompile.tolerances.loading import PAIRS, Tolerances
from fuzzcompile.tolerances.tolerance import Tolerance

__all__ = ["PAIRS", "Tolerance", "Tolerances"]
