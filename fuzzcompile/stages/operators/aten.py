"""The search for an ATen kernel that is wrong on operands of one layout, and the proof: contiguous copies of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fuzzcompile.attribution.ablating import Ablator
from fuzzcompile.attribution.culprit import Attribution
from fuzzcompile.attribution.divergence import Divergence
from fuzzcompile.attribution.inputs import inputs_of
from fuzzcompile.compiler.applications import Application
from fuzzcompile.compiler.aten_kernels import given_contiguous, watch_kernels
from fuzzcompile.compiler.decompositions import decomposition_table, operator_named
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.stage_names import DECOMPOSITION, FUNCTIONALIZATION, JOINT_GRAPH, LOWERING
from fuzzcompile.stages.base import Suspect
from fuzzcompile.stages.operators.layouts import KernelFault, Side, kernel_fault_of
from fuzzcompile.stages.operators.suspected import checked_operators

_MAX_TRIED = 3
_FAILED = (Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR)


def kernels_suspected(divergence: Divergence) -> list[KernelFault]:
    """The kernels whose fault can show as the verdict, certain ones first; nothing is compiled."""
    kind = "raises" if divergence.verdict in _FAILED else "values"
    if kind == "values" and not (divergence.is_of_values or divergence.verdict in _FAILED):
        return []
    faults = [*_of_eager(divergence), *_of_graphs(divergence)]
    shown = sorted((fault for fault in faults if fault.fault.kind == kind), key=lambda fault: not fault.fault.proved)
    unique: dict[tuple[str, Side], KernelFault] = {}
    for fault in shown:
        unique.setdefault((fault.operator, fault.wrong_in), fault)
    return list(unique.values())


def kernel_suspects(divergence: Divergence, stage: str) -> list[Suspect]:
    """The kernels that are suspected, as suspects of one stage."""
    culprits = [fault.culprit() for fault in divergence.once(kernels_suspected)]
    return [Suspect(c.stage, c.family, c.source, c) for c in culprits if c.stage == stage]


def prove_kernels(ablator: Ablator, divergence: Divergence) -> Attribution | None:
    """The kernel without whose fault both sides agree: it is given contiguous copies of its operands.

    Args:
        ablator: runs eager mode again, or compiles again.
        divergence: what one compile showed.

    Raises:
        OutOfTime: nothing further may be begun.
    """
    for suspect in divergence.once(kernels_suspected)[:_MAX_TRIED]:
        name = suspect.operator
        toggle = f"{name} on contiguous operands, {suspect.wrong_in}"
        if suspect.wrong_in == "eager":
            repaired = ablator.attempt_in_eager(given_contiguous([name]), toggle)
        else:
            how = replace(ablator.how, contiguous_operands=(*ablator.how.contiguous_operands, name))
            repaired = ablator.attempt(how, toggle)[1]
        if repaired:
            return Attribution(replace(suspect.culprit(), necessary=True, confidence="high"))
    return None


def _of_eager(divergence: Divergence) -> Iterator[KernelFault]:
    """Kernels that eager mode calls: what stands in their place in the compiled program is right."""
    table = decomposition_table()
    for checked in divergence.once(checked_operators):
        for fault in checked.kernels:
            decomposed = operator_named(fault.operator) in table
            yield fault.in_stage(DECOMPOSITION if decomposed else LOWERING)


def _of_graphs(divergence: Divergence) -> list[KernelFault]:
    """Kernels that the graphs behind AOTAutograd call, which decompositions alone lead to or eager mode as well."""
    called = {name for checked in divergence.once(checked_operators) for name in checked.watched.called}
    faults: list[KernelFault] = []

    def judge(application: Application) -> None:
        fault = kernel_fault_of(application, "compiled")
        if fault is not None:
            faults.append(fault.in_stage(FUNCTIONALIZATION if fault.operator in called else DECOMPOSITION))

    for frame in divergence.trial.ledger.frames:
        for record in frame.records:
            inputs = inputs_of(frame, record) if record.stage == JOINT_GRAPH and record.snapshots else None
            if inputs is not None:
                divergence.count.replays += 1
                watch_kernels(record.snapshots[-1], inputs, judge)
    return faults
