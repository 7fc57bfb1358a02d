"""Faults before the graph passes: found without a compile, proved by one without the decomposition at fault."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fuzzcompile.attribution.ablating import Ablator
from fuzzcompile.attribution.before.checks import unchecked_operator
from fuzzcompile.attribution.before.dynamo import dynamo_fault
from fuzzcompile.attribution.before.faults import Fault
from fuzzcompile.attribution.before.metadata import metadata_faults
from fuzzcompile.attribution.before.operators import Checked, check_operators, check_program
from fuzzcompile.attribution.before.stages import functionalization_fault, partition_fault
from fuzzcompile.attribution.culprit import Attribution, Culprit
from fuzzcompile.compiler.decompositions import can_take_out
from fuzzcompile.compiler.partitioning import plain_partitioning
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.trials.compiles import Trial

_MAX_SUSPECTS = 4
_REMOVABLE = ("decomposition", "fake_tensor")
# Time to look at the operators of one graph.
_SECONDS = 20.0
# Kinds of fault that can show as a kind of verdict, most telling first.
_VALUES = ("values", "mutation", "shape", "dtype", "alias")
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


def operators_checked(ablator: Ablator) -> list[Checked]:
    """Every operator of the captured graphs beside its decomposition and its fake tensor; nothing is compiled."""
    return check_operators(ablator.trial.ledger, ablator.count, _config(ablator), seconds=_seconds(ablator))


def operators_at_fault(ablator: Ablator, checked: Sequence[Checked]) -> Attribution | None:
    """The decomposition or fake tensor that is certainly wrong, proved; None if none is.

    This comes before all that compiles to find a suspect: code generated for a wrong dtype or layout is wrong code.

    Raises:
        OutOfTime: no compile may be begun any more.
    """
    suspects = suspects_among(checked, ablator.trial.judgement.verdict)
    return _proved(ablator, [fault for fault in suspects if fault.proved or fault.stage == "fake_tensor"])


def before_the_graphs(ablator: Ablator, checked: Sequence[Checked] | None = None) -> Attribution | None:
    """The decomposition, fake tensor rule, functionalization or partition at fault; None if none is.

    Operators are compared with their decompositions and their fake tensors on the program's values (``checked``, if
    that was done before), the functional program with the plain one, and the partition with the joint graph. What
    stands out is compiled once without it.

    Raises:
        OutOfTime: no compile may be begun any more.
    """
    watched = list(checked) if checked is not None else operators_checked(ablator)
    if _uncaptured(ablator.trial):
        watched.append(check_program(ablator.experiments, _config(ablator), seconds=_seconds(ablator)))
    suspects = suspects_among(watched, ablator.trial.judgement.verdict)
    found = _proved(ablator, suspects) or _elsewhere(ablator) or _one_of_several(suspects)
    if found is None and ablator.trial.judgement.verdict is Verdict.ACCEPTS_INVALID:
        program = check_program(ablator.experiments, _config(ablator), seconds=_seconds(ablator))
        culprit = unchecked_operator(ablator.trial, watched, program)
        return Attribution(culprit) if culprit is not None else None
    return found


def _seconds(ablator: Ablator) -> float:
    """How long operators may be compared."""
    return _SECONDS if ablator.deadline is None else min(_SECONDS, max(1.0, ablator.deadline - time.monotonic()))


def _config(ablator: Ablator) -> dict[str, Any]:
    how, settings = ablator.trial.how, ablator.experiments.case.settings
    return {**settings.inductor, "fallback_random": how.fallback_random, **(how.config or {})}


def _uncaptured(trial: Trial) -> bool:
    """Whether the trial ended before there was a graph of what failed."""
    failure = trial.observation.failure
    return failure is not None and failure.stage == "dynamo"


def suspects_among(checked: Sequence[Checked], verdict: Verdict) -> list[Fault]:
    """The faults that can show as ``verdict``, one for each operator, most telling first.

    Proved faults come before those that rounding may explain, then kinds as they show in such a verdict, then the
    order of execution. For an error that was lost, a decomposition comes before the fake tensors: these do not see
    values, and where an operator is not decomposed its kernel still checks.
    """
    kinds = _SHOWS.get(verdict, ())
    faults = [fault for one in checked for fault in one.faults if fault.kind in kinds and _shows(fault, one, verdict)]
    ordered = sorted(faults, key=lambda fault: (not fault.proved, kinds.index(fault.kind), fault.way == "fake"))
    unique: dict[tuple[str, str], Fault] = {}
    for fault in ordered:
        unique.setdefault((fault.stage, fault.operator), fault)
    return list(unique.values())


def _shows(fault: Fault, checked: Checked, verdict: Verdict) -> bool:
    """Whether memory that is shared or not can show: in values, only where something is written to."""
    return fault.kind != "alias" or verdict.kind != "values" or checked.watched.writes


def _proved(ablator: Ablator, suspects: Sequence[Fault]) -> Attribution | None:
    """The first suspect without which the divergence is gone, or all of them together."""
    tried = [fault for fault in suspects if fault.stage in _REMOVABLE][:_MAX_SUSPECTS]
    for fault in tried:
        if _repairs(ablator, [fault]):
            return Attribution(fault.culprit(necessary=True))
    certain = [fault for fault in tried if fault.proved]
    if len(certain) > 1 and _repairs(ablator, certain):
        first, *rest = (fault.culprit(necessary=None, confidence="low") for fault in certain)
        return Attribution(first, rest)
    return None


def _repairs(ablator: Ablator, faults: Sequence[Fault]) -> bool:
    how = repaired_by(ablator.how, faults)
    if how is None:
        return False
    return ablator.attempt(how, _toggle(faults))[1]


def repaired_by(how: Compilation, faults: Sequence[Fault]) -> Compilation | None:
    """A compile without what is at fault; None where this torch does not let it be taken out."""
    taken = [fault.operator for fault in faults if fault.stage == "decomposition"]
    described = [fault.operator for fault in faults if fault.stage == "fake_tensor"]
    if taken and not can_take_out():
        return None
    return replace(
        how,
        without_decompositions=tuple(dict.fromkeys((*how.without_decompositions, *taken))),
        kernel_metadata=tuple(dict.fromkeys((*how.kernel_metadata, *described))),
    )


def _toggle(faults: Sequence[Fault]) -> str:
    parts = [
        f"decomposition of {fault.operator} off" if fault.stage == "decomposition"
        else f"metadata of {fault.operator} from its kernel"
        for fault in faults
    ]  # fmt: skip
    return ", ".join(parts)


def _elsewhere(ablator: Ablator) -> Attribution | None:
    """The stages that no operator stands for: capture, functionalization, partition; metadata that a pass wrote."""
    trial, count = ablator.trial, ablator.count
    values = trial.judgement.verdict.kind == "values" or ablator.evidence != "values"
    if values or trial.judgement.verdict in (Verdict.METADATA, Verdict.ALIASING):
        found = dynamo_fault(ablator)
        if found is not None:
            return found
        functional = functionalization_fault(trial, count)
        if functional is not None and not ablator.attempt(_backend(ablator, "aot_eager"), "backend=aot_eager")[1]:
            return Attribution(functional)
    if values:
        cut = partition_fault(trial, count)
        if cut is not None:
            return Attribution(_uncut(ablator, cut))
    if trial.judgement.verdict in (Verdict.METADATA, *_FAILED):
        written = next(iter(metadata_faults(trial.ledger, count)), None)
        if written is not None:
            return Attribution(written)
    return None


def _backend(ablator: Ablator, backend: str) -> Compilation:
    return replace(ablator.how, backend=backend, record=False)


def _uncut(ablator: Ablator, cut: Culprit) -> Culprit:
    """The partitioner, proved by a compile with the plainest one in its place."""
    plain = plain_partitioning()
    if plain is None:
        return cut
    how = replace(ablator.how, config={**(ablator.how.config or {}), **plain})
    repaired = ablator.attempt(how, "AOTAutograd's default partition")[1]
    return replace(cut, necessary=repaired, confidence="high" if repaired else "low")


def _one_of_several(suspects: Sequence[Fault]) -> Attribution | None:
    """An operator that is certainly wrong, though something else keeps the result so without it."""
    certain = [fault for fault in suspects if fault.proved and fault.kind in ("values", "mutation", "check")]
    if not certain:
        return None
    necessary = False if certain[0].stage in _REMOVABLE else None  # tried, or not to be taken out
    return Attribution(certain[0].culprit(necessary=necessary, confidence="low"))


_FAILED = (Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR)
