"""Whether trajectories part by chaos: the compiled one from eager, and eager from itself after one ulp."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median

from fuzzcompile.analyses.watch.records import TRAJECTORY, lines

# Losses that differ by less, relative to their size, have not parted visibly.
VISIBLE = 1e-4
# The compiled trajectory is moved by rounding in every operator of every step, the other once: by how much farther it
# may be from eager and still part for the same reason.
_ALLOWED = 30.0
_LEAST = 1e-9  # a relative difference of losses below float32's own rounding says nothing
_FEWEST = 6  # steps that a rate of growth needs


@dataclass(frozen=True)
class Trajectories:
    """How the losses of three trajectories from one state differ, relative to the loss of eager.

    Attributes:
        first: the step from whose state all of them start; ``last`` is the last that all of them reached.
        compiled: largest difference of compiled and eager over the last quarter of the steps.
        perturbed: the same of eager and eager from a state moved by one ulp.
        compiled_growth: the factor by which the difference grows per step; None over too few steps.
        perturbed_growth: the same of the perturbed trajectory.
        chaotic: they part visibly, and the perturbed one does as well: the compiler is not needed to explain it.
        parted: the compiled trajectory parts visibly.
        said: the finding in a sentence.
        ended: why a trajectory was not followed further.
    """

    first: int
    last: int
    compiled: float
    perturbed: float
    compiled_growth: float | None
    perturbed_growth: float | None
    chaotic: bool
    parted: bool
    said: str
    ended: str = ""

    def to_json(self) -> dict[str, object]:
        """As a JSON object; an infinite distance is None."""
        infinite = {name: None for name in ("compiled", "perturbed") if math.isinf(getattr(self, name))}
        return {**asdict(self), **infinite}


def losses(folder: Path) -> tuple[dict[str, dict[int, float]], str]:
    """The loss by step of each trajectory in a watch's folder, and why one ended early."""
    seen: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    ended = ""
    for entry in lines(folder / TRAJECTORY):
        if "loss" in entry:
            seen[str(entry["run"])][int(str(entry["step"]))].append(float(str(entry["loss"])))
        else:
            ended = str(entry["ended"])
    return {run: {step: fmean(values) for step, values in steps.items()} for run, steps in seen.items()}, ended


def compared(losses: Mapping[str, Mapping[int, float]], ended: str = "") -> Trajectories | None:
    """What the losses show; None if the trajectories have too few steps in common."""
    runs = [losses.get(run, {}) for run in ("compiled", "eager", "perturbed")]
    steps = sorted(set.intersection(*(set(run) for run in runs)))
    if len(steps) < 2:
        return None
    compiled, perturbed = (_apart(run, runs[1], steps) for run in (runs[0], runs[2]))
    late = max(1, len(steps) // 4)
    apart, moved = max(compiled[-late:]), max(perturbed[-late:])
    growth, moved_growth = _growth(steps, compiled), _growth(steps, perturbed)
    parted = apart >= VISIBLE
    chaotic = parted and apart <= _ALLOWED * moved
    said = _said(steps, (apart, moved), (growth, moved_growth), parted=parted, chaotic=chaotic)
    return Trajectories(
        steps[0], steps[-1], apart, moved, growth, moved_growth, chaotic=chaotic, parted=parted, said=said, ended=ended
    )


def _apart(run: Mapping[int, float], eager: Mapping[int, float], steps: Sequence[int]) -> list[float]:
    return [_relative(run[step], eager[step]) for step in steps]


def _relative(value: float, eager: float) -> float:
    if not (math.isfinite(value) and math.isfinite(eager)):
        return 0.0 if math.isfinite(value) == math.isfinite(eager) else math.inf
    return abs(value - eager) / max(abs(eager), 1e-30)


def _growth(steps: Sequence[int], apart: Sequence[float]) -> float | None:
    """The factor per step: the median slope between pairs of steps (Theil 1950), in logarithms, up to saturation."""
    usable = [(step, math.log(gap)) for step, gap in zip(steps, apart, strict=True) if _LEAST < gap < 0.1]
    if len(usable) < _FEWEST:
        return None
    half = len(usable) // 2
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in zip(usable[:half], usable[-half:], strict=True)]
    return math.exp(median(slopes))


def _said(
    steps: Sequence[int],
    apart: tuple[float, float],
    growth: tuple[float | None, float | None],
    *,
    parted: bool,
    chaotic: bool,
) -> str:
    over = f"from the state of step {steps[0]} to step {steps[-1]}"
    numbers = (
        f"the loss of the compiled trajectory parts from that of eager by {apart[0]:.1e} of its size"
        f"{_rate(growth[0])}, that of eager from a state moved by one ulp by {apart[1]:.1e}{_rate(growth[1])}"
    )
    if chaotic:
        return f"Chaos alone: {over}, {numbers}. No compiler is needed for that."
    if parted:
        return f"More than chaos: {over}, {numbers}. Sample more steps (a smaller --every) to find where that is made."
    return f"No visible divergence: {over}, {numbers}."


def _rate(growth: float | None) -> str:
    return "" if growth is None else f" (times {growth:.2f} per step)"
