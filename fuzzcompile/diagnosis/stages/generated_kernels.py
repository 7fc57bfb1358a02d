"""Scheduling and code generation: which loops become one kernel, in which order and memory, and the kernels' code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from fuzzcompile.compiler.compile_changes import CompileChange, InductorSettings, Lowered, ProgramsInOrder
from fuzzcompile.compiler.kernels.kernel_loops import check_dependences
from fuzzcompile.compiler.kernels.lowering_control import Control, parse_operator
from fuzzcompile.compiler.target.kernel_log import ProgramOrder
from fuzzcompile.diagnosis.attribution.ablation import Ablator, Divergence
from fuzzcompile.diagnosis.attribution.culprit import Attribution, Culprit
from fuzzcompile.diagnosis.kernels.code_generators import get_generator
from fuzzcompile.diagnosis.kernels.kernel_proofs import (
    bisect_candidates,
    find_failed_stage,
    find_fusion_source,
    find_right_in_scalars,
    is_right_without_vectors,
    list_kernel_suspects,
    prove_failure,
    with_aten,
    with_isolated_kernels,
    without_failure,
    without_fusion,
)
from fuzzcompile.diagnosis.kernels.watched_graph import LoweredStep, describe_kernel, watch_graphs
from fuzzcompile.diagnosis.stages.stage import Stage, Suspect
from fuzzcompile.model.culprit_contract import DetailsJson
from fuzzcompile.model.stages import CODEGEN, RUNTIME, SCHEDULER

_NO_REUSE: dict[str, object] = {"allow_buffer_reuse": False, "inplace_buffers": False}
KERNEL_CALL = "kernel call"
# What a kernel's operators give when each has a kernel of its own; "unknown" where that does not run.
_Alone = Literal["right", "wrong", "unknown"]


class Scheduler(Stage):
    """Fusion that breaks a dependence, kernels in a wrong order, memory that is given away too early."""

    name = SCHEDULER
    settings = ({"epilogue_fusion": False}, {"max_fusion_size": 1}, {"inplace_buffers": False})

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """The first wrong kernel of each graph: its arguments were overwritten, or it is fused; failed operators."""
        return list_kernel_suspects(self.name, divergence, overwritten=("buffer reuse", "order of kernels"))

    def without(self, suspect: Suspect) -> CompileChange | None:
        """Buffers that share no memory, or a kernel whose operators are not fused."""
        finding = suspect.finding
        if not isinstance(finding, LoweredStep):
            return None
        if finding.failed is not None:
            return without_failure(finding)
        return without_fusion(finding.labels) if finding.overwritten is None else _without_reuse()

    def prove(self, ablator: Ablator, suspects: Sequence[Suspect]) -> Attribution | None:
        """Overwritten arguments, and errors of the scheduler.

        Fusion is told from the code of a kernel in the proof of the latter, :class:`Codegen`.
        """
        for finding in (suspect.finding for suspect in suspects):
            if isinstance(finding, LoweredStep) and finding.failed is not None:
                return prove_failure(ablator, finding) if find_failed_stage(finding) == self.name else None
            if isinstance(finding, LoweredStep) and finding.overwritten is not None:
                return _prove_reuse(ablator, finding)
        return None


def _without_reuse() -> InductorSettings:
    return InductorSettings(_NO_REUSE, "no reuse of buffers", needs_code=True)


def _prove_reuse(ablator: Ablator, wrong: LoweredStep) -> Attribution | None:
    """Arguments were overwritten before the kernel read them: reuse came too early, or the order is wrong."""
    stale, repaired = wrong.overwritten, ablator.attempt_under(_without_reuse())[1]
    details: DetailsJson = {} if stale is None else {"overwritten": stale.buffer, "written_by": stale.written_by}
    name = "buffer reuse" if repaired else "order of kernels"
    necessary, sure = (True, "high") if repaired else (None, "low")
    return Attribution(wrong.make_culprit(SCHEDULER, name, name, necessary=necessary, confidence=sure, details=details))


class Codegen(Stage):
    """Wrong code of an operator, a reduction or a loop, in vectors or in scalars; code that does not compile.

    Names, lines and settings are those of the code generator that wrote the kernel.
    """

    name = CODEGEN

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """The operators of the first wrong kernel of each graph, or of the kernel that failed."""
        return list_kernel_suspects(self.name, divergence)

    def without(self, suspect: Suspect) -> CompileChange | None:
        """No vectors where the kernel has them, else ATen in place of the operators; None for a loop of neither."""
        finding = suspect.finding
        if not isinstance(finding, LoweredStep):
            return None
        if finding.failed is None and finding.is_vectorised:
            return InductorSettings(finding.generator.scalars, needs_code=True)
        return without_failure(finding)

    def prove(self, ablator: Ablator, suspects: Sequence[Suspect]) -> Attribution | None:
        """Compile without vectors, then with nothing fused: wrong code, wrong fusion, or neither."""
        findings = {id(suspect.finding): suspect.finding for suspect in suspects}
        for finding in findings.values():
            if isinstance(finding, LoweredStep) and finding.failed is not None:
                return prove_failure(ablator, finding) if find_failed_stage(finding) == CODEGEN else None
            named = _prove_kernel(ablator, finding) if isinstance(finding, LoweredStep) else None
            if named is not None:
                return named
        return None

    def workarounds(self, culprit: Culprit, given: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
        """Those of the code generator that wrote the culprit's kernel."""
        yield from get_generator(culprit.details.get("code_generator")).settings


def _prove_kernel(ablator: Ablator, wrong: LoweredStep) -> Attribution | None:
    vectorised = wrong.is_vectorised and is_right_without_vectors(ablator, wrong.generator)
    alone, single = _isolate(ablator, wrong)
    if alone == "right":
        return _prove_fusion(ablator, wrong, vectorised=vectorised)
    in_order = ProgramsInOrder(ProgramOrder.FORWARD)
    if ablator.how.order is not ProgramOrder.FORWARD and ablator.attempt_under(in_order)[1]:
        return _make_race_culprit(single or wrong)
    if single is None and not vectorised:
        return None
    named = _prove_vectorised(ablator, wrong, single) if vectorised else _prove_scalar(ablator, wrong, single)
    # Code is at fault for certain only if it stays wrong when nothing else stands beside it.
    return named if alone == "wrong" or named.culprit is None else _doubt(named.culprit)


def _isolate(ablator: Ablator, wrong: LoweredStep) -> tuple[_Alone, LoweredStep | None]:
    """Give each operator its own kernel; return the effect on the divergence and the kernel that is still wrong.

    Small kernels of one operator stay vectorised where the fused one is: their scalar code says nothing of it.
    """
    isolated, changes = with_isolated_kernels(wrong.labels), list[CompileChange]()
    if wrong.is_vectorised:
        changes.append(InductorSettings(wrong.generator.all_vectors))
    trial, repaired = ablator.attempt_under(*changes, isolated, toggle=isolated.text, watched=True)
    if repaired:
        return "right", None
    if trial.observation.failure is not None:
        return "unknown", None
    firsts = (look.as_run.find_wrong_kernels()[:1] for look in watch_graphs(trial.ledger, ablator.count))
    return "wrong", next((kernel for first in firsts for kernel in first if kernel.is_generated), None)


def _make_race_culprit(wrong: LoweredStep) -> Attribution:
    """Right when the programs of the kernel run in their order: they touch the same elements."""
    code = wrong.generator.find_store_code()
    programs = "right in ascending order, wrong in descending order"
    details: DetailsJson = {"operators": wrong.list_code_operators(), "programs": programs}
    return Attribution(
        wrong.make_culprit(
            CODEGEN, code.name, "race", source=code.source, line=code.line, necessary=True, details=details
        )
    )


def _doubt(culprit: Culprit) -> Attribution:
    return Attribution(replace(culprit, confidence="low"))


def _prove_vectorised(ablator: Ablator, wrong: LoweredStep, single: LoweredStep | None) -> Attribution:
    """Right in scalars: one operator of the vectorised code should be enough to do so."""
    operators = (single or wrong).list_code_operators()
    reductions = [name for name in operators if ":" in name]
    named, untested = find_right_in_scalars(ablator, wrong.generator, operators)
    if named is None and len(untested) == 1 and not reductions:
        # Its scalar form does not compile inside the vectors; all in scalars is right.
        culprit = _make_code_culprit(wrong, single, untested[0], vectorised=True, necessary=True)
        return Attribution(culprit) if len(operators) == 1 else _doubt(culprit)
    if named is None and not reductions and wrong.kernel is not None:
        # A small error there may be what a later operator makes a large one of: NaN out of a lost tiny number.
        rest = [name for name in wrong.list_code_operators(*wrong.kernel.writes) if name not in operators]
        named, _ = find_right_in_scalars(ablator, wrong.generator, rest)
        if named is not None:
            wrong, single = replace(wrong, nodes=wrong.kernel.nodes), None
    # What cannot be done in scalars on its own: loads, stores, reductions, masks. The whole kernel was.
    rewrite = named or (reductions[0] if reductions else "loop")
    return Attribution(_make_code_culprit(wrong, single, rewrite, vectorised=True, necessary=True))


def _prove_scalar(ablator: Ablator, wrong: LoweredStep, single: LoweredStep | None) -> Attribution:
    """Wrong in scalars and on its own: the code of an operator; proved by having ATen compute it."""
    at = single or wrong
    operators, names = at.list_code_operators(), at.list_operator_names()
    if not operators:
        # Nothing is computed: the kernel may have been handed other memory than it should.
        return Attribution(wrong.make_culprit(RUNTIME, KERNEL_CALL, KERNEL_CALL, confidence="low"))
    repaired = ablator.attempt_under(with_aten(names))[1] if names else False
    kernel = wrong.kernel
    if not repaired and kernel is not None:  # the cause may be an operator before it
        before = [name for name in wrong.list_operator_names(kernel.nodes) if name not in names]
        earlier, _ = bisect_candidates(ablator, before, lambda half: Control(fallbacks=half), "ATen computes {}")
        if earlier is not None:
            nodes = tuple(n for n in kernel.nodes if parse_operator(wrong.lowered.labels.get(n, "")) == earlier)
            operator = earlier.split(".")[1] if "." in earlier else earlier
            culprit = _make_code_culprit(replace(at, nodes=nodes), None, operator, vectorised=False, necessary=True)
            return Attribution(culprit)
    culprit = _make_code_culprit(wrong, single, operators[0], vectorised=False, necessary=True if repaired else None)
    return Attribution(culprit) if repaired and len(operators) <= 1 else _doubt(culprit)


def _make_code_culprit(
    wrong: LoweredStep, single: LoweredStep | None, operator: str, *, vectorised: bool, necessary: bool | None
) -> Culprit:
    at = single or wrong
    code = at.generator.find_code(operator, vectorised=vectorised)
    details: DetailsJson = {"operators": at.list_code_operators(), "vectorised": vectorised}
    if single is not None:
        details["alone"] = describe_kernel(single.lowered, single.kernel).get("kernel_source")
    return wrong.make_culprit(
        CODEGEN,
        code.name,
        operator,
        nodes=at.nodes,
        source=code.source,
        line=code.line,
        necessary=necessary,
        details=details,
    )


def _prove_fusion(ablator: Ablator, wrong: LoweredStep, *, vectorised: bool) -> Attribution:
    """Right without fusion: it should be enough to leave the operators of this kernel unfused.

    The scheduler is at fault if it broke a dependence. Otherwise the code generator may have written wrong code for
    loops that may be computed together (a common subexpression that is none), and which step did so is not proved.
    ``vectorised`` says whether the kernel is right without vectors too.
    """
    kernel = wrong.kernel
    assert kernel is not None, "it is a kernel that is wrong"
    repaired = ablator.attempt_under(without_fusion(wrong.labels))[1]
    memory = check_dependences(wrong.lowered, kernel.scheduled)
    shown = wrong.scheduled or memory == "broken"
    operators = wrong.list_code_operators() or wrong.list_code_operators(*kernel.writes)
    details: DetailsJson = {"operators": operators, "vectorised": vectorised, "dependences": memory}
    named = None
    if vectorised and not shown:
        named, _ = find_right_in_scalars(ablator, wrong.generator, operators)
        details["right_in_scalars"] = named
    rewritten = _find_right_form(ablator, wrong) if not shown else None
    if rewritten is not None:
        return Attribution(rewritten)
    stage = CODEGEN if not shown and (vectorised or memory == "kept") else SCHEDULER
    source, line = find_fusion_source(stage, wrong.generator)
    culprit = wrong.make_culprit(
        stage,
        "loop order" if wrong.scheduled else "fusion",
        named or "+".join(sorted(operators)) or "fusion",
        nodes=kernel.nodes,
        source=source,
        line=line,
        necessary=True if repaired else None,
        confidence="high" if repaired and shown else "low",
        details=details,
    )
    return Attribution(culprit)


def _find_right_form(ablator: Ablator, wrong: LoweredStep) -> Culprit | None:
    """The operator whose code is right in another form, in the kernel as it is fused; None if there is none."""
    for operator, control in wrong.generator.alternative_forms().items():
        if ablator.attempt_under(Lowered(control, f"{operator} in another form"))[1]:
            whole = replace(wrong, nodes=wrong.kernel.nodes if wrong.kernel is not None else wrong.nodes)
            return _make_code_culprit(whole, None, operator, vectorised=False, necessary=True)
    return None
