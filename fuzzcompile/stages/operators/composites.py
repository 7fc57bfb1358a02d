"""Operators that take another path in a compiled program than in eager mode, and give something else on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch
from torch import fx

from fuzzcompile.attribution.culprit import Culprit
from fuzzcompile.attribution.divergence import Divergence
from fuzzcompile.attribution.inputs import inputs_of
from fuzzcompile.compiler.applications import Outcome
from fuzzcompile.compiler.composites import TakenCall, both_paths
from fuzzcompile.compiler.labels import location
from fuzzcompile.compiler.ledger import Frame
from fuzzcompile.compiler.sources import call_name
from fuzzcompile.oracle import change
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.stage_names import FUNCTIONALIZATION, JOINT_GRAPH, PRE_GRAD
from fuzzcompile.stages.operators.faults import OTHER_NUMBERS, Kind, difference_of, far_from, worst_of


def other_paths(divergence: Divergence) -> list[Culprit]:
    """The first call of each frame whose traced path gives what its eager path does not, on the same arguments.

    Nothing is compiled. What differs is what the verdict is about: strides and dtypes of a result, memory that it
    shares, or values.
    """
    culprits = (_other_path(frame, divergence) for frame in divergence.trial.ledger.frames)
    return [culprit for culprit in culprits if culprit is not None]


def _other_path(frame: Frame, divergence: Divergence) -> Culprit | None:
    record = frame.record(PRE_GRAD)
    inputs = inputs_of(frame, record) if record is not None and record.snapshots else None
    if record is None or inputs is None:
        return None
    differing: list[tuple[TakenCall, _Difference]] = []
    ordinals: Counter[tuple[str, str | None]] = Counter()
    runs = divergence.experiments.runs
    others_allowed = runs.draws and not runs.promised_numbers  # other random numbers than eager's

    def judge(call: TakenCall) -> None:
        if differing or (call.draws and others_allowed):
            return
        ordinals[_name(call.node), location([call.node])] += 1
        difference = _differing(call, divergence.verdict)
        if difference is not None:
            differing.append((call, difference))

    divergence.count.replays += 1
    grad = frame.record(JOINT_GRAPH, "joint") is not None
    both_paths(record.snapshots[-1], inputs, judge, grad=grad)
    if not differing:
        return None
    call, difference = differing[0]
    return _culprit(call, difference, ordinals[_name(call.node), location([call.node])])


_Difference = tuple[Kind, str, str, float | None]


def _differing(call: TakenCall, verdict: Verdict) -> _Difference | None:
    """Return the difference between the two paths: its kind, the eager value, the traced value and its size."""
    eager, traced = call.eager, call.traced
    if eager.error is not None or len(eager.results) != len(traced.results):
        return None
    for kind, differs in _metadata(eager, traced, verdict):
        if differs is not None:
            return kind, *differs, None
    if verdict is Verdict.METADATA or not change.largest_change(eager.results, traced.results):
        return None
    if call.draws:
        return _numbers(eager, traced)
    exact = call.in_float64()
    known = all(outcome.error is None for outcome in exact)
    step = change.largest_change(exact[0].results, exact[1].results) if known else 0.0
    if step > change.SEMANTIC_STEP:
        return "values", *worst_of(*exact), step
    if far_from(eager, traced, exact[0] if known else None):
        return "values", *worst_of(eager, traced), change.largest_change(eager.results, traced.results)
    return None


def _numbers(eager: Outcome, traced: Outcome) -> _Difference | None:
    """Other random numbers from one state, or as many but another state behind them, which moves all that follow."""
    step = change.largest_change(eager.results[:-1], traced.results[:-1])
    if step > OTHER_NUMBERS:
        return "numbers", *worst_of(eager, traced), step
    if torch.equal(eager.results[-1], traced.results[-1]):
        return None
    return "numbers", "the state of the generator after it", "another state", None


def _metadata(eager: Outcome, traced: Outcome, verdict: Verdict) -> Iterator[tuple[Kind, tuple[str, str] | None]]:
    kinds: tuple[Kind, ...] = ("shape", "dtype", "stride") if verdict is Verdict.METADATA else ("shape", "dtype")
    for kind in kinds:
        yield kind, difference_of(kind, eager, traced)
    if verdict is Verdict.ALIASING:
        yield "alias", difference_of("alias", eager, traced)


def _culprit(call: TakenCall, difference: _Difference, ordinal: int) -> Culprit:
    kind, expected, got, step = difference
    name, line = _name(call.node), location([call.node])
    return Culprit(
        FUNCTIONALIZATION,
        None,
        name,
        name.rpartition(".")[2],
        nodes=(call.node.name,),
        site=None if line is None else f"{line} #{ordinal}",
        step=step,
        details={
            "kind": kind,
            "way": "composite",
            "expected": expected,
            "got": got,
            "composite": {
                "call": name,
                "eager": call.eager_operators(),
                "compiled": call.traced_operators(),
            },
        },
    )


def _name(node: fx.Node) -> str:
    return call_name(node) or str(getattr(node.target, "__name__", node.target))
