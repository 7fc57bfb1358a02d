"""Variations of a user's own case: its inputs, its program, and how it is compiled, changed by general operators."""

from fuzzcompile.variations.survey import Survey, survey
from fuzzcompile.variations.varied import Variation, vary

__all__ = ["Survey", "Variation", "survey", "vary"]
