"""Operators as suspects before the graph passes, and the proofs that share them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from fuzzcompile.compiler.compile_changes import ContiguousOperands
from fuzzcompile.compiler.operators.decompositions import (
    find_functional_form,
    find_operator,
    format_operator,
    read_decomposition_table,
)
from fuzzcompile.compiler.operators.operator_application import Application, use_contiguous_operands, watch_kernels
from fuzzcompile.diagnosis.attribution.ablation import Ablator, Divergence
from fuzzcompile.diagnosis.attribution.culprit import Attribution, Culprit
from fuzzcompile.diagnosis.attribution.steps import find_inputs
from fuzzcompile.diagnosis.operators.operator_comparison import (
    KernelFault,
    OperatorCheck,
    Side,
    check_operators,
    check_program,
    find_kernel_fault,
)
from fuzzcompile.diagnosis.operators.operator_faults import Fault
from fuzzcompile.diagnosis.stages.stage import Stage, Suspect, prove_by_break, prove_in_turn
from fuzzcompile.diagnosis.trials.case_runs import Trial
from fuzzcompile.model.stages import (
    DECOMPOSITION,
    DYNAMO,
    FAKE_TENSOR,
    FUNCTIONALIZATION,
    JOINT_GRAPH,
    LOWERING,
)
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.run.device import shorten_message

# Programs that raise in eager mode and not when compiled: the operator that raises, and where no check is made.


def find_unchecked_operator(trial: Trial, captured: Sequence[OperatorCheck], program: OperatorCheck) -> Culprit | None:
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
    return Culprit.from_operator(
        stage,
        format_operator(operator),
        nodes=(place.node,) if place.node else (),
        site=f"{place.location} #{place.ordinal}" if place.location else None,
        confidence="low",
        details={
            "kind": "check",
            "expected": f"{type(error).__name__}: {shorten_message(error)}" if error is not None else "an error",
            "got": "no error",
        },
    )


def _is_traced(trial: Trial, checked: OperatorCheck, operator: Any) -> bool:
    """Return whether the operator, or what is made of it, is in the first graph that the passes got."""
    if checked.frame is None:
        return False
    record = checked.frame.find_record(JOINT_GRAPH)
    if record is None or not record.snapshots:
        return True
    wanted = (operator, find_functional_form(operator))
    place = checked.watched.place
    for node in record.snapshots[0].graph.nodes:
        origins = {str(origin.name) for origin in node.meta.get("from_node") or ()}
        if node.target in wanted or (place is not None and place.node in origins):
            return isinstance(node.target, torch._ops.OpOverload)
    return False


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


def check_captured_operators(divergence: Divergence) -> list[OperatorCheck]:
    """Every operator of the captured graphs beside its decomposition and its fake tensor; nothing is compiled.

    Of a program that dynamo could not capture, the operators that it calls in eager mode.
    """
    checked = check_operators(divergence.trial.ledger, divergence.count, divergence.config, seconds=divergence.seconds)
    failure = divergence.trial.observation.failure
    if failure is not None and failure.stage == DYNAMO:
        checked.append(divergence.once(check_eager_program))
    return checked


def check_eager_program(divergence: Divergence) -> OperatorCheck:
    """The operators that the program calls in eager mode."""
    return check_program(divergence.experiments, divergence.config, seconds=divergence.seconds)


def list_operator_suspects(divergence: Divergence) -> list[Suspect]:
    """The operators whose fault can show as the verdict, one suspect for each, most telling first."""
    faults = select_faults(divergence.once(check_captured_operators), divergence.verdict)
    runs = divergence.experiments.runs
    if runs.draws and not runs.promises_eager_numbers:  # a program that draws nothing has no other numbers to show
        faults = [fault for fault in faults if fault.kind != "numbers"]
    return [_suspect_fault(fault, rank) for rank, fault in enumerate(faults)]


def _suspect_fault(fault: Fault, rank: int) -> Suspect:
    culprit = fault.culprit()
    return Suspect(culprit.stage, culprit.family, culprit.source, fault, fault.proved, (rank,))


def select_faults(checked: Sequence[OperatorCheck], verdict: Verdict) -> list[Fault]:
    """The faults that can show as ``verdict``, one for each operator, most telling first.

    Proved faults come before those that rounding may explain, then kinds as they show in such a verdict, then the
    order of execution. For an error that was lost, a decomposition comes before the fake tensors: these do not see
    values, and where an operator is not decomposed its kernel still checks.
    """
    kinds = _SHOWS.get(verdict, ())
    faults = [
        fault for graph in checked for fault in graph.faults if fault.kind in kinds and _can_show(fault, graph, verdict)
    ]
    ordered = sorted(faults, key=lambda fault: (not fault.proved, kinds.index(fault.kind), fault.way == "fake"))
    unique: dict[tuple[str, str], Fault] = {}
    for fault in ordered:
        unique.setdefault((fault.stage, fault.operator), fault)
    return list(unique.values())


def _can_show(fault: Fault, graph: OperatorCheck, verdict: Verdict) -> bool:
    """Return whether shared memory can show: in values, only if something is written to."""
    return fault.kind != "alias" or verdict.kind != "values" or graph.watched.writes


def is_wrong_anywhere(suspect: Suspect) -> bool:
    """Return whether an operator is certainly wrong in a way that all its readers inherit."""
    return isinstance(suspect.finding, Fault) and suspect.certain and suspect.finding.kind in _WRONG_ANYWHERE


def list_lost_check_suspects(divergence: Divergence) -> list[Suspect]:
    """The operator that raises in eager mode, where the compiled program accepts what eager refuses."""
    if divergence.verdict is not Verdict.ACCEPTS_INVALID:
        return []
    culprit = find_unchecked_operator(
        divergence.trial, divergence.once(check_captured_operators), divergence.once(check_eager_program)
    )
    return [] if culprit is None else [make_suspect(culprit)]


def make_suspect(culprit: Culprit) -> Suspect:
    """A suspect that no compile can do without, as the culprit that it would be."""
    return Suspect(culprit.stage, culprit.family, culprit.source, culprit)


# The search for an ATen kernel that is wrong on operands of one layout, and the proof: contiguous copies of them.

_MAX_TRIED = 3


def find_kernel_faults(divergence: Divergence) -> list[KernelFault]:
    """The kernels whose fault can show as the verdict, certain ones first; nothing is compiled."""
    kind = "raises" if divergence.verdict in _FAILED else "values"
    if kind == "values" and not (divergence.is_of_values or divergence.verdict in _FAILED):
        return []
    faults = [*_iter_eager_faults(divergence), *_find_graph_faults(divergence)]
    shown = sorted((fault for fault in faults if fault.fault.kind == kind), key=lambda fault: not fault.fault.proved)
    unique: dict[tuple[str, Side], KernelFault] = {}
    for fault in shown:
        unique.setdefault((fault.operator, fault.wrong_in), fault)
    return list(unique.values())


def list_aten_suspects(divergence: Divergence, stage: str) -> list[Suspect]:
    """The kernels that are suspected, as suspects of one stage."""
    culprits = [fault.culprit() for fault in divergence.once(find_kernel_faults)]
    return [Suspect(c.stage, c.family, c.source, c) for c in culprits if c.stage == stage]


def prove_aten_kernels(ablator: Ablator, divergence: Divergence) -> Attribution | None:
    """The kernel without whose fault both sides agree: it is given contiguous copies of its operands.

    Args:
        ablator: runs eager mode again, or compiles again.
        divergence: what one compile showed.

    Raises:
        OutOfTime: nothing further may be begun.
    """
    for suspect in divergence.once(find_kernel_faults)[:_MAX_TRIED]:
        name = suspect.operator
        toggle = f"{name} on contiguous operands, {suspect.wrong_in}"
        if suspect.wrong_in == "eager":
            repaired = ablator.attempt_in_eager(use_contiguous_operands([name]), toggle)
        else:
            repaired = ablator.attempt_under(ContiguousOperands((name,)), toggle=toggle)[1]
        if repaired:
            return Attribution(replace(suspect.culprit(), necessary=True, confidence="high"))
    return None


def _iter_eager_faults(divergence: Divergence) -> Iterator[KernelFault]:
    """Kernels that eager mode calls: what stands in their place in the compiled program is right."""
    table = read_decomposition_table()
    for checked in divergence.once(check_captured_operators):
        for fault in checked.kernels:
            decomposed = find_operator(fault.operator) in table
            yield fault.in_stage(DECOMPOSITION if decomposed else LOWERING)


def _find_graph_faults(divergence: Divergence) -> list[KernelFault]:
    """Kernels that the graphs behind AOTAutograd call, which decompositions alone lead to or eager mode as well."""
    called = {name for checked in divergence.once(check_captured_operators) for name in checked.watched.called}
    faults: list[KernelFault] = []

    def judge(application: Application) -> None:
        fault = find_kernel_fault(application, "compiled")
        if fault is not None:
            faults.append(fault.in_stage(FUNCTIONALIZATION if fault.operator in called else DECOMPOSITION))

    for frame in divergence.trial.ledger.frames:
        for record in frame.records:
            inputs = find_inputs(frame, record) if record.stage == JOINT_GRAPH and record.snapshots else None
            if inputs is not None:
                divergence.count.replays += 1
                watch_kernels(record.snapshots[-1], inputs, judge)
    return faults


# Base class of the stages that transform single operators, and their joint proof.


class OperatorStage(Stage):
    """A stage in which an operator becomes something else than its kernel."""

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """The operators of this stage whose fault can show as the verdict."""
        operators = [suspect for suspect in divergence.once(list_operator_suspects) if suspect.stage == self.name]
        return [*operators, *list_aten_suspects(divergence, self.name)]

    def culprit(self, suspect: Suspect) -> Culprit:
        """The operator; its family is its name without namespace and overload."""
        return make_operator_culprit(suspect)

    @staticmethod
    def operator(suspect: Suspect) -> str | None:
        """Name and overload of the operator at fault; None of a suspect that no single operator stands for."""
        return suspect.finding.operator if isinstance(suspect.finding, Fault) else None


def make_operator_culprit(suspect: Suspect) -> Culprit:
    """The culprit that a suspected operator would be."""
    finding = suspect.finding
    assert isinstance(finding, (Fault, Culprit)), "operators are suspected by a fault, or as a culprit in doubt"
    return finding.culprit() if isinstance(finding, Fault) else finding


def prove_operators(
    stages: Sequence[OperatorStage], ablator: Ablator, divergence: Divergence, *, certain: bool
) -> Attribution | None:
    """The decomposition or fake tensor at fault; None if none is.

    Args:
        stages: those of single operators.
        ablator: compiles without a suspect.
        divergence: what one compile showed.
        certain: look at what leaves no room for rounding, and at fake tensors, which do not round; else at the rest.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    named = {stage.name: stage for stage in stages}
    suspects = [suspect for suspect in divergence.once(list_operator_suspects) if suspect.stage in named]
    chosen = [suspect for suspect in suspects if (suspect.certain or suspect.stage == FAKE_TENSOR) == certain]
    attribution = prove_in_turn(ablator, [(named[suspect.stage], suspect) for suspect in chosen])
    if attribution is not None or not certain:
        return attribution
    faults = [suspect for suspect in chosen if suspect.certain and isinstance(suspect.finding, Fault)]
    # What no compile could do without (its sizes are symbols, say) is left to eager mode with the whole call.
    return prove_by_break(ablator, make_operator_culprit(faults[0])) if faults else None


def doubt_first(
    suspected: Callable[[Divergence], Sequence[Suspect]], ablator: Ablator, divergence: Divergence
) -> Attribution | None:
    """The first of suspects that no compile can do without, unproved; None if there is none.

    Args:
        suspected: lists them, most telling first.
        ablator: makes no compile here.
        divergence: what one compile showed.
    """
    suspects = divergence.once(suspected)
    return Attribution(make_operator_culprit(suspects[0])) if suspects else None


def doubt_operators(stages: Sequence[OperatorStage], ablator: Ablator, divergence: Divergence) -> Attribution | None:
    """An operator that is certainly wrong, though something else keeps the result wrong without it.

    Args:
        stages: whose operators were compiled without, which did not help.
        ablator: makes no compile here.
        divergence: what one compile showed.
    """
    suspect = next((suspect for suspect in divergence.once(list_operator_suspects) if is_wrong_anywhere(suspect)), None)
    if suspect is None:
        return None
    tried = suspect.stage in [stage.name for stage in stages]
    necessary = False if tried else None
    return Attribution(replace(make_operator_culprit(suspect), necessary=necessary, confidence="low"))
