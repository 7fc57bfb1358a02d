"""The joint graph cut into a forward and a backward graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from fuzzcompile.compiler.compile_changes import CompileChange, InductorSettings
from fuzzcompile.compiler.graph_replay import compute_values, list_random_calls, replay_graph
from fuzzcompile.compiler.watch.aot_autograd import describe_partitioner, make_plain_partitioning
from fuzzcompile.compiler.watch.ledger import Direction, Frame, Snapshot
from fuzzcompile.compiler.watch.rule_labels import find_source
from fuzzcompile.diagnosis.attribution.ablation import Ablator, Divergence
from fuzzcompile.diagnosis.attribution.culprit import Attribution, Culprit
from fuzzcompile.diagnosis.attribution.steps import ReplayCount, find_inputs, list_placeholders
from fuzzcompile.diagnosis.operators.operator_suspects import doubt, make_operator_culprit
from fuzzcompile.diagnosis.oracle.rounding import relative_change
from fuzzcompile.diagnosis.stages.stage import Stage, Suspect
from fuzzcompile.model import stages
from fuzzcompile.model.culprit_contract import DetailsJson
from fuzzcompile.model.thresholds import SEMANTIC_STEP

_PARTS: tuple[Direction, ...] = ("forward", "backward")


class Partitioner(Stage):
    """The partitioner: forward and backward graph one after the other are not what the joint graph is."""

    name = stages.PARTITION

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """The partitioner, where the values that backward gets are not those of the joint graph."""
        culprit = divergence.once(_find_wrong_partition) if divergence.is_of_values else None
        return [] if culprit is None else [doubt(culprit)]

    def without(self, suspect: Suspect) -> CompileChange | None:
        """The plainest partitioner, where this torch lets another one take its place."""
        plain = make_plain_partitioning()
        return InductorSettings(plain, "AOTAutograd's default partition") if plain is not None else None

    def prove(self, ablator: Ablator, suspects: Sequence[Suspect]) -> Attribution | None:
        """Named in any case, as replay shows it; proved where the plainest partitioner is right."""
        if not suspects:
            return None
        culprit, without = self.culprit(suspects[0]), self.without(suspects[0])
        if without is None:
            return Attribution(culprit)
        repaired = ablator.attempt_under(without)[1]
        return Attribution(replace(culprit, necessary=repaired, confidence="high" if repaired else "low"))

    def culprit(self, suspect: Suspect) -> Culprit:
        """The partitioner in use."""
        return make_operator_culprit(suspect)


def _find_wrong_partition(divergence: Divergence) -> Culprit | None:
    promised = divergence.experiments.runs.promises_eager_numbers
    culprits = (
        (_compare_draws(frame) if promised else None) or _compare_partition(frame, divergence.count)
        for frame in divergence.trial.ledger.frames
    )
    return next((culprit for culprit in culprits if culprit is not None), None)


def _compare_partition(frame: Frame, count: ReplayCount) -> Culprit | None:
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
    steps = [relative_change(whole_value, value) for whole_value, value in zip(once.outputs, parted, strict=True)]
    step = max(steps, default=0.0)
    if step <= SEMANTIC_STEP:
        return None
    name, function = describe_partitioner()
    source, line = find_source(function) if function is not None else (None, None)
    wrong = _find_wrongly_saved(whole, inputs, before.outputs[results:], list_placeholders(second))
    return Culprit(
        stages.PARTITION,
        None,
        name,
        name,
        nodes=tuple(wrong),
        source=source,
        line=line,
        step=step,
        confidence="low",
        details={
            "kind": "values",
            "differs": [
                f"output {i}" if i < results else f"gradient {i - results}"
                for i, step in enumerate(steps)
                if step > SEMANTIC_STEP
            ],
            "saved": wrong,
        },
    )


def _compare_draws(frame: Frame) -> Culprit | None:
    """The partitioner, where forward and backward graph together draw more often than the joint graph, or less."""
    records = [
        frame.find_record(stage, direction)
        for stage, direction in ((stages.JOINT_GRAPH, "joint"), *((stages.POST_GRAD, d) for d in _PARTS))
    ]
    if any(record is None or not record.snapshots for record in records):
        return None
    joint, forward, backward = (record for record in records if record is not None)
    wanted = Counter(list_random_calls(joint.snapshots[-1]))
    drawn = Counter([*list_random_calls(forward.snapshots[0]), *list_random_calls(backward.snapshots[0])])
    if wanted == drawn:
        return None
    name, function = describe_partitioner()
    source, line = find_source(function) if function is not None else (None, None)
    details: DetailsJson = {"kind": "numbers", "joint graph draws": dict(wanted), "its parts draw": dict(drawn)}
    return Culprit(stages.PARTITION, None, name, name, source=source, line=line, confidence="low", details=details)


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
