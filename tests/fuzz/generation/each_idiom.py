"""Draws at random without Hypothesis, for what is made of one idiom alone."""

from __future__ import annotations

import random
from typing import Any

from fuzzcompile.fuzz.generation.spec import Pen


def pen(label: object) -> Pen:
    """Draws at random, without Hypothesis; the same for the same label."""
    randomness = random.Random(f"idioms {label}")

    def draw(strategy: Any) -> int:
        return randomness.randint(strategy.wrapped_strategy.start or 0, strategy.wrapped_strategy.end)

    return Pen(draw, {})
