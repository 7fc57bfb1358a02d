"""Operators that are something else before the graph passes than in eager mode, as suspects."""

from __future__ import annotations

from collections.abc import Sequence

from fuzzcompile.attribution.culprit import Culprit
from fuzzcompile.attribution.divergence import Divergence
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.stage_names import DYNAMO
from fuzzcompile.stages.base import Suspect
from fuzzcompile.stages.operators.faults import Fault
from fuzzcompile.stages.operators.lost_checks import unchecked_operator
from fuzzcompile.stages.operators.metadata import metadata_faults
from fuzzcompile.stages.operators.side_by_side import Checked, check_operators, check_program

# Kinds of fault that can show as a kind of verdict, most telling first.
_VALUES = ("values", "numbers", "mutation", "shape", "dtype", "alias")
_METADATA = ("dtype", "shape", "device", "stride", "values", "mutation", "alias")
_ALIASING = ("alias", "mutation", "values")
_ERRORS = ("raises", "shape", "dtype", "device", "stride", "alias")
_SHOWS = {
    Verdict.MISCOMPILE: _VALUES,
    Verdict.WRONG_GRADIENT: _VALUES,
    Verdict.NONFINITE: _VALUES,
    Verdict.PRECISION_LOSS: _VALUES,
    Verdict.EQUAL: _VALUES,
    Verdict.ROUNDING: _VALUES,
    Verdict.METADATA: _METADATA,
    Verdict.ALIASING: _ALIASING,
    Verdict.COMPILE_ERROR: _ERRORS,
    Verdict.RUNTIME_ERROR: (*_ERRORS, "mutation", "values"),
    Verdict.ACCEPTS_INVALID: ("check",),
}
_FAILED = (Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR)
# Kinds of fault that are wrong whatever reads them.
_WRONG_ANYWHERE = ("values", "mutation", "check", "raises")


def checked_operators(divergence: Divergence) -> list[Checked]:
    """Every operator of the captured graphs beside its decomposition and its fake tensor; nothing is compiled.

    Of a program that dynamo could not capture, the operators that it calls in eager mode.
    """
    checked = check_operators(divergence.trial.ledger, divergence.count, divergence.config, seconds=divergence.seconds)
    failure = divergence.trial.observation.failure
    if failure is not None and failure.stage == DYNAMO:
        checked.append(divergence.once(checked_program))
    return checked


def checked_program(divergence: Divergence) -> Checked:
    """The operators that the program calls in eager mode."""
    return check_program(divergence.experiments, divergence.config, seconds=divergence.seconds)


def operators_suspected(divergence: Divergence) -> list[Suspect]:
    """The operators whose fault can show as the verdict, one suspect for each, most telling first."""
    faults = faults_shown(divergence.once(checked_operators), divergence.verdict)
    runs = divergence.experiments.runs
    if runs.draws and not runs.promised_numbers:  # a program that draws nothing has no other numbers to show
        faults = [fault for fault in faults if fault.kind != "numbers"]
    return [_suspect(fault, rank) for rank, fault in enumerate(faults)]


def _suspect(fault: Fault, rank: int) -> Suspect:
    culprit = fault.culprit()
    return Suspect(culprit.stage, culprit.family, culprit.source, fault, fault.proved, (rank,))


def faults_shown(checked: Sequence[Checked], verdict: Verdict) -> list[Fault]:
    """The faults that can show as ``verdict``, one for each operator, most telling first.

    Proved faults come before those that rounding may explain, then kinds as they show in such a verdict, then the
    order of execution. For an error that was lost, a decomposition comes before the fake tensors: these do not see
    values, and where an operator is not decomposed its kernel still checks.
    """
    kinds = _SHOWS.get(verdict, ())
    faults = [
        fault for graph in checked for fault in graph.faults if fault.kind in kinds and _shows(fault, graph, verdict)
    ]
    ordered = sorted(faults, key=lambda fault: (not fault.proved, kinds.index(fault.kind), fault.way == "fake"))
    unique: dict[tuple[str, str], Fault] = {}
    for fault in ordered:
        unique.setdefault((fault.stage, fault.operator), fault)
    return list(unique.values())


def _shows(fault: Fault, graph: Checked, verdict: Verdict) -> bool:
    """Return whether shared memory can show: in values, only if something is written to."""
    return fault.kind != "alias" or verdict.kind != "values" or graph.watched.writes


def wrong_anywhere(suspect: Suspect) -> bool:
    """Return whether an operator is certainly wrong in a way that all its readers inherit."""
    return isinstance(suspect.finding, Fault) and suspect.certain and suspect.finding.kind in _WRONG_ANYWHERE


def metadata_suspected(divergence: Divergence) -> list[Suspect]:
    """Nodes whose recorded dtype, shape or strides are not those of their values: a fake tensor's, or a rewrite's."""
    if divergence.verdict not in (Verdict.METADATA, *_FAILED):
        return []
    return [doubted(culprit) for culprit in metadata_faults(divergence.trial.ledger, divergence.count)]


def lost_checks_suspected(divergence: Divergence) -> list[Suspect]:
    """The operator that raises in eager mode, where the compiled program accepts what eager refuses."""
    if divergence.verdict is not Verdict.ACCEPTS_INVALID:
        return []
    culprit = unchecked_operator(divergence.trial, divergence.once(checked_operators), divergence.once(checked_program))
    return [] if culprit is None else [doubted(culprit)]


def doubted(culprit: Culprit) -> Suspect:
    """A suspect that no compile can do without, as the culprit that it would be."""
    return Suspect(culprit.stage, culprit.family, culprit.source, culprit)
