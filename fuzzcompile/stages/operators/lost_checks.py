"""Programs that raise in eager mode and not when compiled: the operator that raises, and where no check is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fuzzcompile.attribution.culprit import Culprit
from fuzzcompile.compiler.decompositions import functional_form, operator_name
from fuzzcompile.execution.exhaustion import first_line
from fuzzcompile.stage_names import DYNAMO, FUNCTIONALIZATION, JOINT_GRAPH, LOWERING
from fuzzcompile.stages.operators.side_by_side import Checked
from fuzzcompile.trials.compiles import Trial


def unchecked_operator(trial: Trial, captured: Sequence[Checked], program: Checked) -> Culprit | None:
    """The operator that raises in eager mode, where no decomposition and no fake tensor lost its check.

    It is in the first graph of the passes, and what takes its kernel's place there does not check (``lowering``); or it
    is not, because nothing uses its result (``functionalization``, which drops it) or because dynamo's graph does not
    have it (``dynamo``).

    Args:
        trial: the compile that accepts what eager refuses.
        captured: dynamo's graphs, run operator by operator.
        program: the whole program, run operator by operator.

    Returns:
        None if no operator raises: the program itself does.
    """
    raising = next((graph for graph in captured if graph.watched.raised is not None and graph.watched.operator), None)
    checked = raising or program
    operator, place, error = checked.watched.operator, checked.watched.place, checked.watched.raised
    if operator is None or place is None:
        return None
    traced = raising is not None and _is_traced(trial, raising, operator)
    stage = DYNAMO if raising is None else LOWERING if traced else FUNCTIONALIZATION
    return Culprit.of_operator(
        stage,
        operator_name(operator),
        nodes=(place.node,) if place.node else (),
        site=f"{place.location} #{place.ordinal}" if place.location else None,
        confidence="low",
        details={
            "kind": "check",
            "expected": f"{type(error).__name__}: {first_line(error)}" if error is not None else "an error",
            "got": "no error",
        },
    )


def _is_traced(trial: Trial, checked: Checked, operator: Any) -> bool:
    """Return whether the operator, or what is made of it, is in the first graph that the passes got."""
    if checked.frame is None:
        return False
    record = checked.frame.record(JOINT_GRAPH)
    if record is None or not record.snapshots:
        return True
    wanted = (operator, functional_form(operator))
    place = checked.watched.place
    for node in record.snapshots[0].graph.nodes:
        origins = {str(origin.name) for origin in node.meta.get("from_node") or ()}
        if node.target in wanted or (place is not None and place.node in origins):
            return isinstance(node.target, torch._ops.OpOverload)
    return False
