"""The joint graph cut into a forward and a backward graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from fuzzcompile.compiler.compile_changes import InductorSettings
from fuzzcompile.compiler.graph_replay import compute_values, list_random_calls, replay_graph
from fuzzcompile.compiler.watch.aot_autograd import describe_partitioner, make_plain_partitioning
from fuzzcompile.compiler.watch.ledger import Frame, Ledger, Snapshot
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


def _iter_cuts(ledger: Ledger) -> Iterator[tuple[Frame, Snapshot, Snapshot, Snapshot]]:
    for frame in ledger.frames:
        joint = frame.find_record(stages.JOINT_GRAPH, "joint")
        parts = [frame.find_record(stages.POST_GRAD, direction) for direction in ("forward", "backward")]
        cut = [record.snapshots for record in (joint, *parts) if record is not None and record.snapshots]
        if len(cut) == 3:
            yield frame, cut[0][-1], cut[1][0], cut[2][0]


def _compare_parts(divergence: Divergence) -> Iterator[Sides[str]]:
    for frame, *snapshots in _iter_cuts(divergence.trial.ledger):
        if not any(map(list_random_calls, snapshots)):
            sides = _run_parts(frame, *snapshots, count=divergence.count)
            yield from [] if sides is None else [sides]


def _run_parts(
    frame: Frame, whole: Snapshot, first: Snapshot, second: Snapshot, *, count: ReplayCount
) -> Sides[str] | None:
    joint = frame.find_record(stages.JOINT_GRAPH, "joint")
    inputs = find_inputs(frame, joint) if joint is not None else None
    if inputs is None:
        return None
    named = dict(zip((str(node.target) for node in list_placeholders(whole)), inputs, strict=True))
    given = [named.get(str(node.target)) for node in list_placeholders(first)]
    if any(value is None for value in given):
        return None
    count.replays += 3
    once, before = replay_graph(whole, inputs, double=True), replay_graph(first, given, double=True)
    if once.error is not None or before.error is not None:
        return None
    results = len(once.outputs) - len(second.results)
    saved = before.outputs[results:]
    ordered = _order_inputs(saved, list_placeholders(second), named)
    after = replay_graph(second, ordered, double=True) if ordered is not None else None
    if after is None or after.error is not None:
        return None
    parted = [*before.outputs[:results], *after.outputs]
    names = [f"output {i}" if i < results else f"gradient {i - results}" for i in range(len(parted))]
    pairs = [Pair(*step) for step in zip(names, once.outputs, parted, strict=True)]

    def word(_: PartedStep[str]) -> Found:
        steps = {pair.at: relative_change(pair.left, pair.right) for pair in pairs}
        wrong = _find_wrongly_saved(compute_values(whole, inputs), saved, list_placeholders(second))
        differs = [name for name, step in steps.items() if step > SEMANTIC_STEP]
        details: DetailsJson = {"kind": "values", "differs": differs, "saved": wrong}
        return _word(details, nodes=tuple(wrong), step=max(steps.values()))

    return Sides(walk_pairs(pairs), word, _measure_output)


def _measure_output(pair: Pair[str]) -> PartedStep[str] | None:
    step = relative_change(pair.left, pair.right)
    return PartedStep(pair, step=step) if step > SEMANTIC_STEP else None


def _word(details: DetailsJson, nodes: tuple[str, ...] = (), step: float | None = None) -> Found:
    """The partitioner in use; without it, the plainest one, where this torch lets another take its place."""
    name, function = describe_partitioner()
    source, line = find_source(function) if function is not None else (None, None)
    culprit = Culprit(
        stages.PARTITION, None, name, name, nodes, source, line, step=step, confidence="low", details=details
    )
    plain = make_plain_partitioning()
    return Found(culprit, InductorSettings(plain, "AOTAutograd's default partition") if plain is not None else None)


def _find_draws(divergence: Divergence) -> Iterator[Found]:
    if divergence.experiments.runs.promises_eager_numbers:
        for _, whole, *parts in _iter_cuts(divergence.trial.ledger):
            wanted = Counter(list_random_calls(whole))
            drawn = Counter(call for snapshot in parts for call in list_random_calls(snapshot))
            if wanted != drawn:
                yield _word({"kind": "numbers", "joint graph draws": dict(wanted), "its parts draw": dict(drawn)})


DRAWS = Way("the random numbers of the joint graph, and of its parts", _find_draws, prove_without, shows_values)
PARTS = Way("the joint graph, and its parts", _compare_parts, prove_without, shows_values)


def _order_inputs(saved: Sequence[Any], placeholders: Sequence[fx.Node], named: dict[str, Any]) -> list[Any] | None:
    """Inputs of the backward graph as the runtime hands them on: sizes and tensors by position, tangents by name."""
    tensors = iter([value for value in saved if isinstance(value, torch.Tensor)])
    sizes = iter([value for value in saved if not isinstance(value, torch.Tensor)])
    given = []
    for node in placeholders:
        if str(node.target).startswith("tangents"):
            value = named.get(str(node.target))
        elif isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float)):
            value = next(sizes, None)
        else:
            value = next(tensors, None)
        if value is None:
            return None
        given.append(value)
    return given


def _find_wrongly_saved(truths: dict[str, object], saved: Sequence[Any], placeholders: Sequence[fx.Node]) -> list[str]:
    """Names of the values that backward takes for those of the joint graph, and gets others for."""
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
