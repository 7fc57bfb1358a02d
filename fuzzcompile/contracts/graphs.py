"""Partings before lowering: decompositions and rewrites, replayed on the program's own values."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fuzzcompile.attribution.inputs import inputs_of
from fuzzcompile.attribution.replays import ReplayCount
from fuzzcompile.attribution.steps import Step, steps_of
from fuzzcompile.compiler.applications import Application
from fuzzcompile.compiler.crossref import watch_operators
from fuzzcompile.compiler.decompositions import configured, family_of_operator
from fuzzcompile.compiler.graphtext import changed_nodes
from fuzzcompile.compiler.kernels.operators import operator_name
from fuzzcompile.compiler.labels import location, source_of
from fuzzcompile.compiler.ledger import Frame, Ledger, Snapshot
from fuzzcompile.contracts.bits import Difference, difference
from fuzzcompile.contracts.covered import open_family
from fuzzcompile.contracts.parting import Parting
from fuzzcompile.contracts.settings import strict_settings
from fuzzcompile.facts import facts
from fuzzcompile.stage_names import DECOMPOSITION, POST_GRAD, PRE_GRAD

_REWRITTEN = "torch promises nothing of rewrites that reorder arithmetic"


def graph_partings(ledger: Ledger, count: ReplayCount, *, seconds: float) -> list[Parting]:
    """Decompositions and rewrites that moved any bit.

    Args:
        ledger: of the watched compile.
        count: counts the replays.
        seconds: how long operators are compared beside their decompositions, at most.
    """
    found = [parting for step in steps_of(ledger, count) if (parting := _of_rewrite(step)) is not None]
    with configured(strict_settings()):
        for frame in ledger.frames:
            found += _of_decompositions(frame, seconds)
    return found


def _of_rewrite(step: Step) -> Parting | None:
    if not step.changed_bits or step.random or step.native is None:
        return None
    before, after = (step.record.snapshots[at] for at in (step.rewrite.before, step.rewrite.after))
    names = [(before, name) for name in changed_nodes(before, after)]
    names += [(after, name) for name in changed_nodes(after, before)]
    families = {_family(snapshot, name) for snapshot, name in names} - {None}
    exact = families <= facts().bitwise.covered.exactly_rounded
    apart = Difference(step.label.rewrite, 0, 0, detail=f"results move by {step.native:.1e} of their size")
    return Parting(
        step.frame,
        step.record.direction,
        step.label.stage,
        step.label.rewrite,
        apart,
        "the rewrite changes bits of its graph",
        step.rewrite.nodes[0] if step.rewrite.nodes else None,
        site=str(step.rewrite.site) if step.rewrite.site else None,
        source=step.label.source,
        line=step.label.line,
        unpromised=None if exact and families else _REWRITTEN,
    )


def _family(snapshot: Snapshot, name: str) -> str | None:
    node = next(node for node in snapshot.graph.nodes if node.name == name)
    return family_of_operator(operator_name(node.target)) if node.op == "call_function" else None


def _of_decompositions(frame: Frame, seconds: float) -> list[Parting]:
    record = frame.record(PRE_GRAD)
    inputs = inputs_of(frame, record) if record is not None and record.snapshots else None
    if record is None or inputs is None:
        return []
    found: list[Parting] = []

    def judge(application: Application) -> None:
        parting = _of_decomposition(frame, application)
        if parting is not None:
            found.append(parting)

    trained = frame.record(POST_GRAD, "backward") is not None
    watch_operators(record.snapshots[-1], inputs, judge, tangents=[] if trained else None, seconds=seconds)
    return found


def _of_decomposition(frame: Frame, application: Application) -> Parting | None:
    if application.way == "fake" or application.place.inside or application.draws:
        return None
    apart = _apart(application.kernel.results, application.other.results)
    if apart is None:
        return None
    name = operator_name(application.operator)
    source, line = source_of(application.function)
    place = application.place
    return Parting(
        frame.index,
        "backward" if place.backward else "forward",
        DECOMPOSITION,
        name,
        apart,
        f"the decomposition rounds in another way: {apart}",
        place.node,
        site=f"{place.location} #{place.ordinal}" if place.location else None,
        source=source,
        line=line,
        unpromised=open_family(family_of_operator(name), apart),
        position=_position(frame, place.location, backward=place.backward),
    )


def _apart(first: Sequence[object], second: Sequence[object]) -> Difference | None:
    """The first pair of tensors that differ."""
    for number, (left, right) in enumerate(zip(first, second, strict=False)):
        if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor) and left.layout == torch.strided:
            apart = difference(f"result {number}", left, right)
            if apart is not None:
                return apart
    return None


def _position(frame: Frame, place: str | None, *, backward: bool) -> int:
    """Return the position of the first node of a user's line in the graph that was lowered."""
    records = [record for record in frame.records if record.stage == POST_GRAD and record.snapshots]
    wanted = [record for record in records if (record.direction == "backward") == backward] or records
    nodes = wanted[0].snapshots[-1].graph.nodes if wanted else ()
    return next((number for number, node in enumerate(nodes) if location([node]) == place), 0)
