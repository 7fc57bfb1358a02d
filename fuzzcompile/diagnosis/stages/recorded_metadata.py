"""Fake tensors: the dtype, shape and strides that a graph records of its values, beside the values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx

from fuzzcompile.compiler.functional_run import run_eagerly
from fuzzcompile.compiler.operators.fake_tensors import find_fake_function
from fuzzcompile.compiler.watch.ledger import GraphRecord
from fuzzcompile.compiler.watch.rule_labels import find_location, find_source
from fuzzcompile.diagnosis.attribution.ablation import Divergence
from fuzzcompile.diagnosis.attribution.culprit import Culprit
from fuzzcompile.diagnosis.attribution.steps import ReplayCount, find_inputs
from fuzzcompile.diagnosis.stages.ways import Found, Pair, PartedStep, Sides, Way, walk_pairs
from fuzzcompile.model import stages
from fuzzcompile.model.culprit_contract import DetailsJson
from fuzzcompile.model.verdicts import Verdict


@dataclass(frozen=True)
class _Recorded:
    """A node of a graph as the passes got it, or of what they left."""

    node: fx.Node
    given: bool


def _compare_metadata(divergence: Divergence) -> Iterator[Sides[_Recorded]]:
    for frame in divergence.trial.ledger.frames:
        for record in frame.records:
            inputs = find_inputs(frame, record) if record.stage != stages.PRE_GRAD and record.snapshots else None
            if inputs is not None:
                pairs = walk_pairs(_pair_metadata(record, inputs, divergence.count))
                yield Sides(pairs, partial(_word_metadata, record), _measure_metadata)


def _pair_metadata(record: GraphRecord, inputs: Sequence[Any], count: ReplayCount) -> Iterator[Pair[_Recorded]]:
    """The metadata of each value, real and recorded, where both are known: before the passes, then behind them."""
    # Strides are propagated anew before lowering: what passes write there is not read.
    for snapshot, given in ((record.snapshots[0], True), (record.snapshots[-1], False)):
        count.replays += 1
        run = run_eagerly(snapshot, inputs, double=False)
        for node in snapshot.graph.nodes:
            said, value = node.meta.get("val"), run.values.get(node.name)
            if node.op == "call_function" and isinstance(said, torch.Tensor) and isinstance(value, torch.Tensor):
                recorded = _describe_metadata(said, strides=given)
                if recorded is not None:
                    yield Pair(_Recorded(node, given), str(_describe_metadata(value, strides=given)), recorded)


def _measure_metadata(pair: Pair[_Recorded]) -> PartedStep[_Recorded] | None:
    apart = pair.left != pair.right
    return PartedStep(pair, "metadata", expected=str(pair.left), got=str(pair.right)) if apart else None


def _word_metadata(record: GraphRecord, parting: PartedStep[_Recorded]) -> Found | None:
    """The operator in the first graph of the passes; later on, the rewrite after which the node was there."""
    node = parting.pair.at.node
    details: DetailsJson = {"kind": "metadata", "expected": parting.expected, "got": parting.got, "node": node.name}
    if parting.pair.at.given:
        return Found(_make_fake_culprit(node, details)) if record.stage == stages.JOINT_GRAPH else None
    for rewrite in record.rewrites:
        before, after = (
            {copied.name: copied.target for copied in record.snapshots[index].graph.nodes}
            for index in (rewrite.before, rewrite.after)
        )
        if after.get(node.name) == node.target and before.get(node.name) != node.target:
            return Found(Culprit.from_label(rewrite.label, confidence="low", details=details, nodes=(node.name,)))
    return None


def _make_fake_culprit(node: fx.Node, details: DetailsJson) -> Culprit:
    function = find_fake_function(node.target) if isinstance(node.target, torch._ops.OpOverload) else None
    source, line = find_source(function) if function is not None else (None, None)
    return Culprit.from_operator(
        stages.FAKE_TENSOR,
        str(node.target),
        nodes=(node.name,),
        source=source,
        line=line,
        site=find_location([node]),
        confidence="low",
        details=details,
    )


def _describe_metadata(tensor: torch.Tensor, *, strides: bool) -> str | None:
    """Dtype, shape and the strides that are followed; None where a size is not known."""
    try:
        shape = [_get_hint(size) for size in tensor.shape]
        steps = [_get_hint(step) for step in tensor.stride()] if strides else []
    except (ValueError, RuntimeError):
        return None
    if None in shape or None in steps:
        return None
    followed = [step for size, step in zip(shape, steps, strict=False) if size != 1] if 0 not in shape else []
    return f"{tensor.dtype} {tuple(shape)}" + (f" strides {tuple(followed)}" if strides else "")


def _get_hint(size: Any) -> int | None:
    return size if isinstance(size, int) else getattr(getattr(size, "node", None), "hint", None)


def _shows_metadata(divergence: Divergence) -> bool:
    return divergence.verdict in (Verdict.METADATA, Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR)


METADATA = Way("values, and what a graph records of them", _compare_metadata, shows=_shows_metadata, most=None)
