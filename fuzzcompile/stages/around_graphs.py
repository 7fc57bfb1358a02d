"""Faults of AOTAutograd around its graphs: its analysis of inputs and outputs, its copies of tangents."""

from __future__ import annotations

from fuzzcompile import stage_names
from fuzzcompile.attribution.culprit import Culprit
from fuzzcompile.attribution.divergence import Divergence
from fuzzcompile.attribution.inputs import inputs_of
from fuzzcompile.compiler import analysis, tangents
from fuzzcompile.compiler.ledger import Frame
from fuzzcompile.oracle.change import relative_change


def is_tangent(culprit: Culprit) -> bool:
    """Return whether a culprit is a copy of a tangent."""
    return culprit.details.get("kind") == "tangent"


def changed_tangents(divergence: Divergence) -> list[Culprit]:
    """The copy of a tangent into the layout of an output that cannot hold it, once."""
    module, function = tangents.PLACE
    return [
        Culprit(
            stage_names.FUNCTIONALIZATION,
            None,
            function,
            "tangent",
            source=f"{module.replace('.', '/')}.py",
            line=tangent.line,
            step=relative_change(tangent.before, tangent.after),
            details={"kind": "tangent", "shape": list(tangent.shape), "strides": list(tangent.strides)},
        )
        for tangent in divergence.trial.ledger.changed_tangents[:1]
    ]


def contradicted(divergence: Divergence) -> list[Culprit]:
    """The analysis of inputs and outputs, where a run of dynamo's graph contradicts it."""
    for frame in divergence.trial.ledger.frames:
        denied = _denied(frame, divergence)
        if denied and frame.analysis is not None:
            return [
                Culprit(
                    stage_names.FUNCTIONALIZATION,
                    None,
                    analysis.FUNCTION,
                    "analysis",
                    source=analysis.SOURCE,
                    line=frame.analysis.line,
                    details={"kind": "analysis", "a run shows": denied},
                )
            ]
    return []


def _denied(frame: Frame, divergence: Divergence) -> list[str]:
    record = frame.record(stage_names.PRE_GRAD)
    inputs = inputs_of(frame, record) if record is not None and record.snapshots else None
    if record is None or inputs is None or frame.analysis is None:
        return []
    divergence.count.replays += 1
    grad = divergence.experiments.case.differentiates
    try:
        return list(analysis.contradictions(frame.analysis, record.snapshots[-1], inputs, grad=grad))
    except Exception:  # of the program: a graph that does not run by itself contradicts nothing
        return []
