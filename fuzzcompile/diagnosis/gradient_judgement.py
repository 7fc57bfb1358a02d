"""Gradients of eager mode alone, held against differences of its forward pass: faults that float64 shares.

The float64 reference and the second one differentiate by the same formulas. A program whose float64 gradient misses
differences of its loss shows a wrong formula, or a kernel that is wrong in the forward pass alone; or it means another
gradient (``detach``, straight-through estimators, functions of its own). Only an operator of ATen that contradicts
itself on the program's values is at fault, or one of which a result has no gradient, where giving it one repairs the
program's.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from fuzzcompile.compiler.operators.operator_gradients import GradientCheck, differentiate_by_differences
from fuzzcompile.compiler.operators.second_reference import ContestedCall
from fuzzcompile.diagnosis.trials.case_runs import CaseRuns
from fuzzcompile.run import differences, runs
from fuzzcompile.run.case_program import build
from fuzzcompile.run.observation import Observation, list_gradient_leaves
from fuzzcompile.run.tensors import share_storage


@dataclass(frozen=True)
class WrongGradient:
    """An operator and its gradient that contradict each other, and the float64 run with one by differences, if any."""

    call: ContestedCall
    repaired: Observation | None


def iter_wrong_gradients(made: CaseRuns) -> Iterator[WrongGradient]:
    """The operators because of which the gradients of a program miss differences of its loss, those proved first."""
    exact = made.exact if made.has_low_precision_casts else made.reference
    if not _has_one_loss(made) or exact.failure is not None:
        return
    losses = [_LossAlongDirection(made, seed) for seed in differences.DIRECTION_SEEDS]

    def measure_miss(run: Observation) -> float | None:
        return differences.weigh_misses(loss.measure_miss(run) for loss in losses)

    if not measure_miss(exact):
        return
    check, unproved = _check_operators(made), list[ContestedCall]()
    for call in (*_sort(check.contradicted), *_sort(check.lacking)):
        repaired = _repair(made, call)
        if repaired is not None:
            if measure_miss(repaired) == 0:
                yield WrongGradient(call, repaired)
        elif call in check.contradicted:  # what lacks a gradient is no fault as such
            unproved.append(call)
    for call in unproved:
        yield WrongGradient(call, None)


def _has_one_loss(made: CaseRuns) -> bool:
    """Return whether the gradients are those of one loss without random numbers: gradients add up over calls."""
    case = made.case
    wanted = case.backward and case.grad == "enabled" and case.state is None and not made.draws
    return wanted and len(build(case, made.device).calls) == 1


def _sort(calls: Sequence[ContestedCall]) -> list[ContestedCall]:
    """The calls, those that miss by most first."""
    return sorted(calls, key=lambda call: -call.opinion.step)


def _check_operators(made: CaseRuns) -> GradientCheck:
    program = build(made.case, made.device, double=True, streamed=True)
    mode = GradientCheck(native=program.dtype)
    with mode:
        runs.measure_loss(made.case, program)
    return mode


def _repair(made: CaseRuns, call: ContestedCall) -> Observation | None:
    try:
        with differentiate_by_differences(call.operator, made.device):
            observation, _ = runs.run_float64(made.case, made.device, keep_casts=not made.has_low_precision_casts)
    except (ValueError, RuntimeError):  # it has no such form
        return None
    return observation if observation.failure is None else None


class _LossAlongDirection:
    """The loss of a program in float64 along one random direction of all that gets a gradient."""

    def __init__(self, made: CaseRuns, seed: int) -> None:
        self._made, self._generator = made, torch.Generator().manual_seed(seed)
        self._losses: dict[float, float] = {}

    @functools.cached_property
    def _directions(self) -> Mapping[str, torch.Tensor]:
        """A direction for each leaf; none where they share memory, or do not lie in plain memory."""
        program = build(self._made.case, self._made.device, double=True, streamed=True)
        leaves = list_gradient_leaves(None, program, *program.calls)
        tensors = list(leaves.values())
        shared = any(share_storage(a, b) for at, a in enumerate(tensors) for b in tensors[:at])
        plain = all(each.is_leaf and each.layout == torch.strided and not each.is_nested for each in tensors)
        if shared or not plain:
            return {}
        return {name: differences.draw_direction(leaf, self._generator) for name, leaf in leaves.items()}

    def measure_miss(self, observation: Observation) -> float | None:
        """By which share of their size the gradients of a run miss the derivative; None where that tells nothing."""
        values, slopes = observation.index_by_name(), list[differences.Slope]()
        for name, direction in self._directions.items():
            gradient = values[name].value if name in values else None
            if gradient is not None and gradient.shape != direction.shape:
                return None
            slopes.append(differences.measure_slope(gradient, direction))
        return differences.measure_miss(differences.Slope.add(slopes), self._find_loss) if slopes else None

    def _find_loss(self, step: float) -> float:
        if step not in self._losses:
            moved = {name: step * direction for name, direction in self._directions.items()}
            self._losses[step] = runs.measure_moved_loss(self._made.case, self._made.device, moved)
        return self._losses[step]


def add_parts(made: CaseRuns) -> Mapping[str, torch.Tensor]:
    """The gradients in float64 by name, each the sum of those for two parts of the cotangents.

    A backward pass is linear in its cotangent, whatever the forward pass does: at steps and kinks too, and beside a
    loss that is too large for differences. No gradients where a run raises.
    """
    parts = [runs.run_float64(made.case, made.device, part=part)[0] for part in (0, 1)]
    if any(part.failure is not None for part in parts):
        return {}
    first, second = (
        {value.name: value.value for value in part.values if value.kind == "gradient" and value.is_tensor}
        for part in parts
    )
    return {name: gradient + second[name] for name, gradient in first.items() if name in second}
