"""The joint graph cut into a forward and a backward graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from fuzzcompile.compiler.compile_changes import CompileChange, InductorSettings
from fuzzcompile.compiler.graph_replay import compute_values, list_random_calls, replay_graph
from fuzzcompile.compiler.watch.aot_autograd import describe_partitioner, make_plain_partitioning
from fuzzcompile.compiler.watch.ledger import Frame, Snapshot
from fuzzcompile.compiler.watch.rule_labels import find_source
from fuzzcompile.diagnosis.attribution.ablation import Divergence
from fuzzcompile.diagnosis.attribution.culprit import Culprit
from fuzzcompile.diagnosis.attribution.steps import ReplayCount, find_inputs, list_placeholders
from fuzzcompile.diagnosis.oracle.rounding import relative_change
from fuzzcompile.diagnosis.stages.ways import (
    Found,
    Pair,
    PartedStep,
    Sides,
    Way,
    prove_without,
    shows_values,
    walk_pairs,
)
from fuzzcompile.model import stages
from fuzzcompile.model.culprit_contract import DetailsJson
from fuzzcompile.model.thresholds import SEMANTIC_STEP


def _find_without() -> CompileChange | None:
    """The plainest partitioner, where this torch lets another one take its place."""
    plain = make_plain_partitioning()
    return InductorSettings(plain, "AOTAutograd's default partition") if plain is not None else None


def _compare_parts(divergence: Divergence) -> Iterator[Sides[str]]:
    """The joint graph, and forward and backward graph one after the other, on the same inputs in float64."""
    for frame in divergence.trial.ledger.frames:
        sides = _run_parts(frame, divergence.count)
        if sides is not None:
            yield sides


def _run_parts(frame: Frame, count: ReplayCount) -> Sides[str] | None:
    joint = frame.find_record(stages.JOINT_GRAPH, "joint")
    forward, backward = frame.find_record(stages.POST_GRAD, "forward"), frame.find_record(stages.POST_GRAD, "backward")
    if joint is None or forward is None or backward is None:
        return None
    if not joint.snapshots or not forward.snapshots or not backward.snapshots:
        return None
    whole, first, second = joint.snapshots[-1], forward.snapshots[0], backward.snapshots[0]
    inputs = find_inputs(frame, joint)
    if inputs is None or any(list_random_calls(snapshot) for snapshot in (whole, first, second)):
        return None
    named = dict(zip((str(node.target) for node in list_placeholders(whole)), inputs, strict=True))
    given = [named.get(str(node.target)) for node in list_placeholders(first)]
    if any(value is None for value in given):
        return None
    count.replays += 3
    once, before = replay_graph(whole, inputs, double=True), replay_graph(first, given, double=True)
    if once.error is not None or before.error is not None:
        return None
    gradients = len(second.results)
    results = len(once.outputs) - gradients
    saved = _order_inputs(before.outputs[results:], list_placeholders(second), named)
    if saved is None:
        return None
    after = replay_graph(second, saved, double=True)
    if after.error is not None:
        return None
    parted = [*before.outputs[:results], *after.outputs]
    names = [f"output {i}" if i < results else f"gradient {i - results}" for i in range(len(parted))]
    pairs = [Pair(*step) for step in zip(names, once.outputs, parted, strict=True)]

    def word(_: PartedStep[str]) -> Found:
        steps = {pair.at: relative_change(pair.left, pair.right) for pair in pairs}
        wrong = _find_wrongly_saved(whole, inputs, before.outputs[results:], list_placeholders(second))
        differs = [name for name, step in steps.items() if step > SEMANTIC_STEP]
        details: DetailsJson = {"kind": "values", "differs": differs, "saved": wrong}
        return _word(details, nodes=tuple(wrong), step=max(steps.values()))

    return Sides(walk_pairs(pairs), word, _measure_output)


def _measure_output(pair: Pair[str]) -> PartedStep[str] | None:
    step = relative_change(pair.left, pair.right)
    return PartedStep(pair, step=step) if step > SEMANTIC_STEP else None


def _word(details: DetailsJson, nodes: tuple[str, ...] = (), step: float | None = None) -> Found:
    """The partitioner in use."""
    name, function = describe_partitioner()
    source, line = find_source(function) if function is not None else (None, None)
    culprit = Culprit(
        stages.PARTITION, None, name, name, nodes, source, line, step=step, confidence="low", details=details
    )
    return Found(culprit, _find_without())


def _compare_draws(divergence: Divergence) -> Iterator[Sides[None]]:
    """What the joint graph draws, and what its parts draw: more often, or less."""
    for frame in divergence.trial.ledger.frames if divergence.experiments.runs.promises_eager_numbers else ():
        places = ((stages.JOINT_GRAPH, "joint"), (stages.POST_GRAD, "forward"), (stages.POST_GRAD, "backward"))
        records = [frame.find_record(stage, direction) for stage, direction in places]
        if all(record is not None and record.snapshots for record in records):
            joint, forward, backward = (record for record in records if record is not None)
            parts = (forward.snapshots[0], backward.snapshots[0])
            wanted = Counter(list_random_calls(joint.snapshots[-1]))
            drawn = Counter(call for snapshot in parts for call in list_random_calls(snapshot))
            yield Sides(walk_pairs([Pair(None, wanted, drawn)]), _word_draws, _measure_draws)


def _measure_draws(pair: Pair[None]) -> PartedStep[None] | None:
    return PartedStep(pair, "numbers") if pair.left != pair.right else None


def _word_draws(parting: PartedStep[None]) -> Found:
    wanted, drawn = parting.pair.left, parting.pair.right
    assert isinstance(wanted, Counter) and isinstance(drawn, Counter)
    return _word({"kind": "numbers", "joint graph draws": dict(wanted), "its parts draw": dict(drawn)})


DRAWS = Way("the random numbers of the joint graph, and of its parts", _compare_draws, prove_without, shows_values)
PARTS = Way("the joint graph, and its parts", _compare_parts, prove_without, shows_values)


def _order_inputs(saved: Sequence[Any], placeholders: Sequence[fx.Node], named: dict[str, Any]) -> list[Any] | None:
    """Inputs of the backward graph as the runtime hands them on: sizes and tensors by position, tangents by name."""
    tensors = iter([value for value in saved if isinstance(value, torch.Tensor)])
    sizes = iter([value for value in saved if not isinstance(value, torch.Tensor)])
    given = []
    for node in placeholders:
        name = str(node.target)
        if name.startswith("tangents"):
            value = named.get(name)
        elif isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float)):
            value = next(sizes, None)
        else:
            value = next(tensors, None)
        if value is None:
            return None
        given.append(value)
    return given


def _find_wrongly_saved(
    whole: Snapshot, inputs: Sequence[Any], saved: Sequence[Any], placeholders: Sequence[fx.Node]
) -> list[str]:
    """Names of the values that backward takes for those of the joint graph, and gets others for."""
    truths = compute_values(whole, inputs)
    tensors = [value for value in saved if isinstance(value, torch.Tensor)]
    wanted = [
        node.name
        for node in placeholders
        if not str(node.target).startswith("tangents") and isinstance(node.meta.get("val"), torch.Tensor)
    ]
    return [
        name
        for name, value in zip(wanted, tensors, strict=False)
        if name in truths and relative_change(truths[name], value) > SEMANTIC_STEP
    ]
