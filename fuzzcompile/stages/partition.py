"""The joint graph cut into a forward and a backward graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from fuzzcompile import stage_names
from fuzzcompile.attribution.ablating import Ablator
from fuzzcompile.attribution.culprit import Attribution, Culprit
from fuzzcompile.attribution.divergence import Divergence
from fuzzcompile.attribution.inputs import inputs_of, placeholders_of
from fuzzcompile.attribution.replays import ReplayCount
from fuzzcompile.compiler.labels import source_of
from fuzzcompile.compiler.ledger import Direction, Frame, Snapshot
from fuzzcompile.compiler.partitioning import partitioner, plain_partitioning
from fuzzcompile.compiler.replay import random_calls, replay, values_of
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.oracle.change import SEMANTIC_STEP, relative_change
from fuzzcompile.stages.base import Stage, Suspect, Without
from fuzzcompile.stages.operators.stage import culprit_of
from fuzzcompile.stages.operators.suspected import doubted

_PARTS: tuple[Direction, ...] = ("forward", "backward")


class Partition(Stage):
    """The partitioner: forward and backward graph one after the other are not what the joint graph is."""

    name = stage_names.PARTITION
    component = "aot autograd"

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """The partitioner, where the values that backward gets are not those of the joint graph."""
        culprit = divergence.once(_partitioned_wrongly) if divergence.is_of_values else None
        return [] if culprit is None else [doubted(culprit)]

    def without(self, suspect: Suspect, how: Compilation) -> Without | None:
        """A compile with the plainest partitioner, where this torch lets another one take its place."""
        plain = plain_partitioning()
        if plain is None:
            return None
        return Without("AOTAutograd's default partition", replace(how, config={**(how.config or {}), **plain}))

    def prove(self, ablator: Ablator, suspects: Sequence[Suspect]) -> Attribution | None:
        """Named in any case, as replay shows it; proved where the plainest partitioner is right."""
        if not suspects:
            return None
        culprit, without = self.culprit(suspects[0]), self.without(suspects[0], ablator.how)
        if without is None:
            return Attribution(culprit)
        repaired = ablator.attempt(without.how, without.toggle)[1]
        return Attribution(replace(culprit, necessary=repaired, confidence="high" if repaired else "low"))

    def culprit(self, suspect: Suspect) -> Culprit:
        """The partitioner in use."""
        return culprit_of(suspect)


def _partitioned_wrongly(divergence: Divergence) -> Culprit | None:
    promised = divergence.experiments.runs.promised_numbers
    culprits = (
        (_drawn_otherwise(frame) if promised else None) or _partitioned(frame, divergence.count)
        for frame in divergence.trial.ledger.frames
    )
    return next((culprit for culprit in culprits if culprit is not None), None)


def _partitioned(frame: Frame, count: ReplayCount) -> Culprit | None:
    joint = frame.record(stage_names.JOINT_GRAPH, "joint")
    forward, backward = frame.record(stage_names.POST_GRAD, "forward"), frame.record(stage_names.POST_GRAD, "backward")
    if joint is None or forward is None or backward is None:
        return None
    if not joint.snapshots or not forward.snapshots or not backward.snapshots:
        return None
    whole, first, second = joint.snapshots[-1], forward.snapshots[0], backward.snapshots[0]
    inputs = inputs_of(frame, joint)
    if inputs is None or any(random_calls(snapshot) for snapshot in (whole, first, second)):
        return None
    named = dict(zip((str(node.target) for node in placeholders_of(whole)), inputs, strict=True))
    given = [named.get(str(node.target)) for node in placeholders_of(first)]
    if any(value is None for value in given):
        return None
    count.replays += 3
    once, before = replay(whole, inputs, double=True), replay(first, given, double=True)
    if once.error is not None or before.error is not None:
        return None
    gradients = len(second.results)
    results = len(once.outputs) - gradients
    saved = _in_order(before.outputs[results:], placeholders_of(second), named)
    if saved is None:
        return None
    after = replay(second, saved, double=True)
    if after.error is not None:
        return None
    parted = [*before.outputs[:results], *after.outputs]
    steps = [relative_change(whole_value, value) for whole_value, value in zip(once.outputs, parted, strict=True)]
    step = max(steps, default=0.0)
    if step <= SEMANTIC_STEP:
        return None
    name, function = partitioner()
    source, line = source_of(function) if function is not None else (None, None)
    wrong = _wrongly_saved(whole, inputs, before.outputs[results:], placeholders_of(second))
    return Culprit(
        stage_names.PARTITION,
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


def _drawn_otherwise(frame: Frame) -> Culprit | None:
    """The partitioner, where forward and backward graph together draw more often than the joint graph, or less."""
    records = [
        frame.record(stage, direction)
        for stage, direction in ((stage_names.JOINT_GRAPH, "joint"), *((stage_names.POST_GRAD, d) for d in _PARTS))
    ]
    if any(record is None or not record.snapshots for record in records):
        return None
    joint, forward, backward = (record for record in records if record is not None)
    wanted = Counter(random_calls(joint.snapshots[-1]))
    drawn = Counter([*random_calls(forward.snapshots[0]), *random_calls(backward.snapshots[0])])
    if wanted == drawn:
        return None
    name, function = partitioner()
    source, line = source_of(function) if function is not None else (None, None)
    details = {"kind": "numbers", "joint graph draws": dict(wanted), "its parts draw": dict(drawn)}
    return Culprit(stage_names.PARTITION, None, name, name, source=source, line=line, confidence="low", details=details)


def _in_order(saved: Sequence[Any], placeholders: Sequence[fx.Node], named: dict[str, Any]) -> list[Any] | None:
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


def _wrongly_saved(
    whole: Snapshot, inputs: Sequence[Any], saved: Sequence[Any], placeholders: Sequence[fx.Node]
) -> list[str]:
    """Names of the values that backward takes for those of the joint graph, and gets others for."""
    truths = values_of(whole, inputs)
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
