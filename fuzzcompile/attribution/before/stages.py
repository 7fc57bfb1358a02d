"""Faults of whole stages: in-place writes made functional, and the joint graph cut in two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from fuzzcompile.attribution.culprit import Culprit
from fuzzcompile.attribution.inputs import inputs_of, placeholders_of
from fuzzcompile.attribution.steps import SEMANTIC_STEP, ReplayCount
from fuzzcompile.compiler.decompositions import family_of_operator, operator_name
from fuzzcompile.compiler.functional import NodeRun, run_functionally, run_plainly
from fuzzcompile.compiler.labels import location, source_of
from fuzzcompile.compiler.ledger import Frame, GraphRecord, Snapshot
from fuzzcompile.compiler.partitioning import partitioner
from fuzzcompile.compiler.recorder import CAPTURED_CALLS
from fuzzcompile.compiler.replay import random_calls, replay, values_of
from fuzzcompile.execution.memory import aliases
from fuzzcompile.execution.tensors import significant_strides
from fuzzcompile.oracle import metrics
from fuzzcompile.trials.compiles import Trial

# -- functionalization ------------------------------------------------------------------------------


def functionalization_fault(trial: Trial, count: ReplayCount) -> Culprit | None:
    """The operator that gives another value once in-place writes are made functional; None if none does.

    Dynamo's graph is run as it is and functionally, on the same inputs, in float64; outputs and inputs afterwards are
    compared, and where these differ, the values of its nodes.
    """
    for frame in trial.ledger.frames:
        record = frame.record("pre_grad")
        if record is None or not record.snapshots:
            continue
        for number in range(CAPTURED_CALLS):
            # In a later call inputs may overlap that did not when the graph was made.
            inputs = inputs_of(frame, record, number)
            found = _functionalized(record, inputs, count) if inputs is not None else None
            if found is not None:
                return found
    return None


def _functionalized(record: GraphRecord, inputs: Sequence[Any], count: ReplayCount) -> Culprit | None:
    snapshot = record.snapshots[-1]
    for double in (True, False):
        plain = run_plainly(snapshot, inputs, double=double)
        lazily = run_functionally(snapshot, inputs, double=double)
        count.replays += 2
        if lazily is None:
            return None
        if plain.error is None and lazily.error is None:
            break
    else:
        return None
    difference = _differing(plain, lazily)
    if difference is None:
        return None
    count.replays += 1
    read = run_functionally(snapshot, inputs, double=double, by_node=True)
    node = _first_differing(snapshot.graph, plain, read) if read is not None and read.error is None else None
    return _functional_culprit(snapshot.graph, node, plain, difference)


def _differing(plain: NodeRun, functional: NodeRun) -> tuple[str, float | None] | None:
    """What differs between the two runs, and by how much."""
    named = [
        *((f"output {i}", a, b) for i, (a, b) in enumerate(zip(plain.outputs, functional.outputs, strict=False))),
        *((f"input {i}", a, b) for i, (a, b) in enumerate(zip(plain.inputs, functional.inputs, strict=False))),
    ]
    for name, one, other in named:
        step = _apart(one, other)
        if step is None or step > SEMANTIC_STEP:
            return name, step
    before, after = _shared(plain), _shared(functional)
    for name in before:
        if before[name] != after.get(name) and name.startswith("output"):
            # AOTAutograd regenerates views of inputs after the call: only memory that outputs share is its graph's.
            if any(other.startswith("input") for other in (*before[name], *after.get(name, ()))):
                continue
            return name, None
    return None


def _shared(run: NodeRun) -> dict[str, tuple[str, ...]]:
    named = {f"input {i}": value for i, value in enumerate(run.inputs)}
    return aliases(named | {f"output {i}": value for i, value in enumerate(run.outputs)})


def _apart(one: Any, other: Any) -> float | None:
    """Change in units of the RMS size; None where dtype or shape are not the same."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return 0.0
    if one.shape != other.shape or one.dtype != other.dtype:
        return None
    change = metrics.farthest(one, other)
    size = max(metrics.rms(one), metrics.rms(other))
    return change / size if change and size else change


def _first_differing(graph: fx.Graph, plain: NodeRun, functional: NodeRun) -> fx.Node | None:
    """The first node whose value differs or, if one before it has another layout, that one: it is read by memory."""
    laid_out: fx.Node | None = None
    for node in graph.nodes:
        one, other = plain.values.get(node.name), functional.values.get(node.name)
        if one is None or other is None:
            continue
        step = _apart(one, other)
        if step is None or step > SEMANTIC_STEP:
            return laid_out or node
        if laid_out is None and significant_strides(one) != significant_strides(other):
            laid_out = node
    return laid_out


def _functional_culprit(
    graph: fx.Graph, node: fx.Node | None, plain: NodeRun, difference: tuple[str, float | None]
) -> Culprit:
    name, step = difference
    read = node
    if node is None or not _is_written(node, plain):
        # What reads another value is not at fault, but the write before it; the last, if only late views differ.
        earlier = list(graph.nodes)[: list(graph.nodes).index(node)] if node is not None else list(graph.nodes)
        written = [other for other in earlier if _is_written(other, plain)]
        node = written[-1] if written else node
    operators = plain.operators.get(node.name, []) if node is not None else []
    operator = next((op for op in operators if _writes(op)), operators[-1] if operators else None)
    rewrite = operator_name(operator) if operator is not None else None
    return Culprit(
        "functionalization",
        None,
        rewrite,
        family_of_operator(rewrite) if rewrite else "unknown",
        nodes=(node.name,) if node is not None else (),
        site=location([node]) if node is not None else None,
        step=step,
        confidence="low",
        details={
            "kind": "values" if step is not None else "alias",
            "differs": name,
            "read": read.name if read is not None else None,
        },
    )


def _is_written(node: fx.Node, run: NodeRun) -> bool:
    return any(_writes(operator) for operator in run.operators.get(node.name, ()))


def _writes(operator: Any) -> bool:
    return bool(getattr(getattr(operator, "_schema", None), "is_mutable", False))


# -- partition --------------------------------------------------------------------------------------


def partition_fault(trial: Trial, count: ReplayCount) -> Culprit | None:
    """The partitioner, if forward and backward graph one after the other are not what the joint graph is."""
    for frame in trial.ledger.frames:
        found = _partitioned(frame, count)
        if found is not None:
            return found
    return None


def _partitioned(frame: Frame, count: ReplayCount) -> Culprit | None:
    joint = frame.record("joint_graph", "joint")
    forward, backward = frame.record("post_grad", "forward"), frame.record("post_grad", "backward")
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
    gradients = len(_returned(second.graph))
    results = len(once.outputs) - gradients
    saved = _in_order(before.outputs[results:], placeholders_of(second), named)
    if saved is None:
        return None
    after = replay(second, saved, double=True)
    if after.error is not None:
        return None
    parted = [*before.outputs[:results], *after.outputs]
    steps = [_apart_loosely(one, other) for one, other in zip(once.outputs, parted, strict=True)]
    step = max(steps, default=0.0)
    if step <= SEMANTIC_STEP:
        return None
    name, function = partitioner()
    source, line = source_of(function) if function is not None else (None, None)
    wrong = _wrongly_saved(whole, inputs, before.outputs[results:], placeholders_of(second))
    return Culprit(
        "partition",
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
                for i, one in enumerate(steps)
                if one > SEMANTIC_STEP
            ],
            "saved": wrong,
        },
    )


def _returned(graph: fx.Graph) -> list[Any]:
    result = next(iter(reversed(list(graph.nodes)))).args[0]
    return list(result) if isinstance(result, (tuple, list)) else [result]


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
        if name in truths and _apart_loosely(truths[name], value) > SEMANTIC_STEP
    ]


def _apart_loosely(one: Any, other: Any) -> float:
    """As :func:`_apart`, with no regard to dtypes; a missing or reshaped value is infinitely far."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return float("inf") if isinstance(one, torch.Tensor) != isinstance(other, torch.Tensor) else 0.0
    if one.shape != other.shape:
        return float("inf")
    change = metrics.farthest(one, other)
    size = max(metrics.rms(one), metrics.rms(other))
    return change / size if change and size else change
