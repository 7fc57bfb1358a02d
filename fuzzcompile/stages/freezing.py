"""Passes over a graph whose parameters have become constants."""

from __future__ import annotations

from fuzzcompile import stage_names
from fuzzcompile.stages.rewriting import RewritingStage


class Freezing(RewritingStage):
    """Constant folding and weight packing of inference under ``freezing=True``."""

    name = stage_names.FREEZING
    settings = ({"freezing": False},)
