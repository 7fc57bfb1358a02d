"""Eager's own random numbers, which ``fallback_random`` promises: who asks for them, and where a run left them.

``torch/_inductor/config.py`` says of the setting: "fallback to eager for random/dropout". On pytorch#142853 its
maintainers say that random numbers "should match between compile/eager", and on pytorch#181136 they hold the order of
draws to it.
"""

from __future__ import annotations

import torch

from fuzzcompile.run.case import Case
from fuzzcompile.run.observation import Value

RANDOM_STATE = "random state after the call"
# Operators of torch draw from these; the generators of NumPy and Python are dynamo's to follow.
_STREAMS = frozenset(("torch CPU", "CUDA"))


def asks_for_eager_numbers(case: Case) -> bool:
    """Whether the case itself sets ``fallback_random``.

    Every compile sets it, so that values compare, but nothing was promised to a program that does not ask.
    """
    settings = case.settings
    asked = {**settings.inductor, **settings.options}.get("fallback_random")
    return asked is True and settings.backend == "inductor"


def keeps_promise_of(draws: tuple[str, ...]) -> bool:
    """Whether all of the streams that a program draws from are covered by the promise."""
    return bool(draws) and _STREAMS.issuperset(draws)


def random_state(case: Case) -> list[Value]:
    """The state of torch's CPU generator (bytes) as an observable, for a case that asks for eager's numbers.

    What is drawn next depends on it: a backward pass that draws once more than eager's changes the next step alone.
    """
    return [Value(RANDOM_STATE, torch.get_rng_state(), "mutation")] if asks_for_eager_numbers(case) else []
