"""Stages that replace an operator before the graph passes: decompositions and fake tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx

from fuzzcompile.compiler.compile_changes import CompileChange, MetadataFromKernel, Undecomposed
from fuzzcompile.compiler.functional_run import run_eagerly
from fuzzcompile.compiler.operators.decompositions import can_take_out, format_operator
from fuzzcompile.compiler.operators.fake_tensors import find_fake_function
from fuzzcompile.compiler.watch.ledger import GraphRecord, Ledger
from fuzzcompile.compiler.watch.rule_labels import find_location, find_source
from fuzzcompile.diagnosis.attribution.ablation import Divergence
from fuzzcompile.diagnosis.attribution.culprit import Culprit
from fuzzcompile.diagnosis.attribution.steps import ReplayCount, find_inputs
from fuzzcompile.diagnosis.operators.operator_suspects import OperatorStage, make_suspect
from fuzzcompile.diagnosis.stages.graph_boundary import GRAPHS
from fuzzcompile.diagnosis.stages.stage import Suspect
from fuzzcompile.diagnosis.stages.ways import Found, Pair, PartedStep, Sides, Way, doubt, walk_pairs
from fuzzcompile.model import stages
from fuzzcompile.model.culprit_contract import DetailsJson
from fuzzcompile.model.verdicts import Verdict


class Decomposition(OperatorStage):
    """Decompositions that are another function than their operator's kernel."""

    name = stages.DECOMPOSITION

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """Decompositions that differ from their kernels; if none does by itself, changes between graphs."""
        suspects = super().suspects(divergence)
        if any(suspect.certain for suspect in suspects):
            return suspects
        return [*suspects, *(make_suspect(found.culprit) for found in divergence.once(GRAPHS.find))]

    def without(self, suspect: Suspect) -> CompileChange | None:
        """The operator is not decomposed; None where this torch cannot leave it alone."""
        operator = self.operator(suspect)
        return Undecomposed((operator,)) if operator is not None and can_take_out() else None


# Fake tensors: the dtype, shape, strides and aliases that the compiler assumes of a value.


def find_metadata_faults(ledger: Ledger, count: ReplayCount, *, strides: bool = True) -> list[Culprit]:
    """Nodes whose recorded dtype, shape or strides are not those of their values, one for each graph.

    Args:
        ledger: the graphs, with the inputs of their calls.
        count: counts the replays.
        strides: compare strides too.
    """
    partings = ((sides, sides.find_parting()) for sides in _compare_records(ledger, count, strides))
    worded = (sides.word(parting) for sides, parting in partings if parting is not None)
    return [found.culprit for found in worded if found is not None]


def _compare_metadata(divergence: Divergence) -> Iterator[Sides[_Recorded]]:
    return _compare_records(divergence.trial.ledger, divergence.count, strides=True)


def _compare_records(ledger: Ledger, count: ReplayCount, strides: bool) -> Iterator[Sides[_Recorded]]:
    """The values of each graph behind dynamo's, and what is recorded of them."""
    for frame in ledger.frames:
        for record in frame.records:
            inputs = find_inputs(frame, record) if record.stage != stages.PRE_GRAD and record.snapshots else None
            if inputs is not None:
                yield Sides(
                    walk_pairs(_pair_metadata(record, inputs, count, strides)),
                    partial(_word_metadata, record),
                    _measure_metadata,
                )


@dataclass(frozen=True)
class _Recorded:
    """A node of a graph as the passes got it, or of what they left."""

    node: fx.Node
    given: bool


def _pair_metadata(
    record: GraphRecord, inputs: Sequence[Any], count: ReplayCount, strides: bool
) -> Iterator[Pair[_Recorded]]:
    """The metadata of each value, real and recorded, where both are known: before the passes, then behind them."""
    # Strides are propagated anew before lowering: what passes write there is not read.
    for snapshot, followed, given in ((record.snapshots[0], strides, True), (record.snapshots[-1], False, False)):
        count.replays += 1
        run = run_eagerly(snapshot, inputs, double=False)
        for node in snapshot.graph.nodes:
            said, value = node.meta.get("val"), run.values.get(node.name)
            if node.op == "call_function" and isinstance(said, torch.Tensor) and isinstance(value, torch.Tensor):
                recorded = _describe_metadata(said, followed)
                if recorded is not None:
                    yield Pair(_Recorded(node, given), str(_describe_metadata(value, followed)), recorded)


def _measure_metadata(pair: Pair[_Recorded]) -> PartedStep[_Recorded] | None:
    if pair.left == pair.right:
        return None
    return PartedStep(pair, "metadata", expected=str(pair.left), got=str(pair.right))


def _word_metadata(record: GraphRecord, parting: PartedStep[_Recorded]) -> Found | None:
    """The operator in the first graph of the passes; later on, the rewrite after which the node was there."""
    node = parting.pair.at.node
    details: DetailsJson = {
        "kind": "metadata",
        "expected": parting.expected,
        "got": parting.got,
        "node": node.name,
    }
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
        format_operator(node.target),
        nodes=(node.name,),
        source=source,
        line=line,
        site=find_location([node]),
        confidence="low",
        details=details,
    )


def _describe_metadata(tensor: torch.Tensor, strides: bool) -> str | None:
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


METADATA = Way("values, and what a graph records of them", _compare_metadata, doubt, _shows_metadata, most=None)


class FakeTensor(OperatorStage):
    """Meta kernels and fake implementations that describe another result than the kernel gives."""

    name = stages.FAKE_TENSOR

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """Operators whose fake results differ from their kernels', then nodes of the graphs with wrong metadata."""
        written = [make_suspect(found.culprit) for found in divergence.once(METADATA.find)]
        return [*super().suspects(divergence), *(suspect for suspect in written if suspect.stage == self.name)]

    def without(self, suspect: Suspect) -> CompileChange | None:
        """The operator's metadata are taken from its kernel."""
        operator = self.operator(suspect)
        return MetadataFromKernel((operator,)) if operator is not None else None
