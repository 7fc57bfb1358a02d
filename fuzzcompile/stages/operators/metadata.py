"""Metadata (dtype, shape, strides) recorded in the compiler's graphs, compared with the replayed values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from fuzzcompile.attribution.culprit import Culprit
from fuzzcompile.attribution.inputs import inputs_of
from fuzzcompile.attribution.replays import ReplayCount
from fuzzcompile.compiler.decompositions import operator_name
from fuzzcompile.compiler.fake import fake_function
from fuzzcompile.compiler.functional import run_plainly
from fuzzcompile.compiler.labels import location, source_of
from fuzzcompile.compiler.ledger import Frame, GraphRecord, Ledger, Snapshot
from fuzzcompile.stage_names import FAKE_TENSOR, JOINT_GRAPH, PRE_GRAD


def metadata_faults(ledger: Ledger, count: ReplayCount, *, strides: bool = True) -> list[Culprit]:
    """Nodes whose recorded dtype, shape or strides are not those of their values, one for each graph.

    A node that is wrong in the first graph of the passes is the fault of the fake tensors, or of a decomposition that
    says so; one that is wrong later is the fault of the rewrite after which it was there.

    Args:
        ledger: the graphs, with the inputs of their calls.
        count: counts the replays.
        strides: compare strides too.
    """
    culprits: list[Culprit] = []
    for frame in ledger.frames:
        for record in frame.records:
            if record.stage == PRE_GRAD or not record.snapshots:
                continue
            culprit = _fault(frame, record, count, strides)
            if culprit is not None:
                culprits.append(culprit)
    return culprits


def _fault(frame: Frame, record: GraphRecord, count: ReplayCount, strides: bool) -> Culprit | None:
    inputs = inputs_of(frame, record)
    if inputs is None:
        return None
    # Strides are propagated anew before lowering: what passes write there is not read.
    last = _wrong_node(record.snapshots[-1], inputs, count, strides=False)
    first = _wrong_node(record.snapshots[0], inputs, count, strides)
    if first is not None and record.stage == JOINT_GRAPH:
        return _of_fake_tensors(*first)
    if last is None or first is not None:
        return None
    node, expected, got = last
    for rewrite in record.rewrites:
        before, after = (
            {copied.name: copied.target for copied in record.snapshots[index].graph.nodes}
            for index in (rewrite.before, rewrite.after)
        )
        if after.get(node.name) == node.target and before.get(node.name) != node.target:
            details = {"kind": "metadata", "expected": expected, "got": got, "node": node.name}
            return Culprit.from_label(rewrite.label, confidence="low", details=details, nodes=(node.name,))
    return None


def _of_fake_tensors(node: fx.Node, expected: str, got: str) -> Culprit:
    function = fake_function(node.target) if isinstance(node.target, torch._ops.OpOverload) else None
    source, line = source_of(function) if function is not None else (None, None)
    return Culprit.of_operator(
        FAKE_TENSOR,
        operator_name(node.target),
        nodes=(node.name,),
        source=source,
        line=line,
        site=location([node]),
        confidence="low",
        details={"kind": "metadata", "expected": expected, "got": got, "node": node.name},
    )


def _wrong_node(
    snapshot: Snapshot, inputs: Sequence[Any], count: ReplayCount, strides: bool
) -> tuple[fx.Node, str, str] | None:
    """The first node that is something else than the graph says, as it is and as it is said to be."""
    count.replays += 1
    run = run_plainly(snapshot, inputs, double=False)
    for node in snapshot.graph.nodes:
        said, value = node.meta.get("val"), run.values.get(node.name)
        if node.op != "call_function" or not isinstance(said, torch.Tensor) or not isinstance(value, torch.Tensor):
            continue
        recorded, real = _described(said, strides), _described(value, strides)
        if recorded is not None and recorded != real:
            return node, str(real), recorded
    return None


def _described(tensor: torch.Tensor, strides: bool) -> str | None:
    """Dtype, shape and the strides that are followed; None where a size is not known."""
    try:
        shape = [_number(size) for size in tensor.shape]
        steps = [_number(step) for step in tensor.stride()] if strides else []
    except (ValueError, RuntimeError):
        return None
    if None in shape or None in steps:
        return None
    followed = [step for size, step in zip(shape, steps, strict=False) if size != 1] if 0 not in shape else []
    return f"{tensor.dtype} {tuple(shape)}" + (f" strides {tuple(followed)}" if strides else "")


def _number(size: Any) -> int | None:
    if isinstance(size, int):
        return size
    return getattr(getattr(size, "node", None), "hint", None)
