"""The scheduler: which loops become one kernel, in which order kernels run, which buffers share memory."""

from __future__ import annotations

from collections.abc import Sequence

from fuzzcompile.compiler.compile_changes import CompileChange, InductorSettings, Lowered
from fuzzcompile.compiler.kernels.kernel_loops import check_dependences
from fuzzcompile.diagnosis.attribution.ablation import Ablator, Divergence
from fuzzcompile.diagnosis.attribution.culprit import Attribution, Culprit
from fuzzcompile.diagnosis.kernels.kernel_bisection import (
    BackendFailure,
    WrongKernel,
    find_right_in_scalars,
    without_fusion,
)
from fuzzcompile.diagnosis.kernels.kernel_culprits import (
    find_failed_stage,
    find_fusion_source,
    make_kernel_culprit,
    prove_failure,
    without_failure,
)
from fuzzcompile.diagnosis.kernels.kernel_suspects import list_kernel_suspects
from fuzzcompile.diagnosis.stages.stage import Stage, Suspect
from fuzzcompile.model.culprit_contract import DetailsJson
from fuzzcompile.model.stages import CODEGEN, SCHEDULER

_NO_REUSE: dict[str, object] = {"allow_buffer_reuse": False, "inplace_buffers": False}


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
        if isinstance(finding, BackendFailure):
            return without_failure(finding)
        if not isinstance(finding, WrongKernel):
            return None
        if finding.overwritten is None:
            return without_fusion(finding.labels)
        return InductorSettings(_NO_REUSE, "no reuse of buffers", needs_code=True)

    def prove(self, ablator: Ablator, suspects: Sequence[Suspect]) -> Attribution | None:
        """Overwritten arguments, and errors of the scheduler.

        Whether fusion or the code of a kernel is at fault shows only in the proof of the latter: see
        :class:`~fuzzcompile.diagnosis.stages.codegen.Codegen`.
        """
        for suspect in suspects:
            finding = suspect.finding
            if isinstance(finding, BackendFailure):
                return prove_failure(ablator, finding) if find_failed_stage(finding.failed) == self.name else None
            if isinstance(finding, WrongKernel) and finding.overwritten is not None:
                return self._prove_reuse(ablator, suspect, finding)
        return None

    def _prove_reuse(self, ablator: Ablator, suspect: Suspect, wrong: WrongKernel) -> Attribution | None:
        """Arguments were overwritten before the kernel read them: reuse came too early, or the order is wrong."""
        without, stale = self.without(suspect), wrong.overwritten
        if without is None or stale is None:
            return None
        repaired = ablator.attempt_under(without)[1]
        rewrite = "buffer reuse" if repaired else "order of kernels"
        culprit = make_kernel_culprit(
            wrong,
            self.name,
            rewrite,
            rewrite,
            necessary=True if repaired else None,
            confidence="high" if repaired else "low",
            details={"overwritten": stale.buffer, "written_by": stale.written_by},
        )
        return Attribution(culprit)


def prove_fusion(ablator: Ablator, wrong: WrongKernel, *, vectorised: bool) -> Attribution:
    """Right without fusion: it should be enough to leave the operators of this kernel unfused.

    The scheduler is at fault if it broke a dependence. Otherwise the code generator may have written wrong code for
    loops that may be computed together (a common subexpression that is none), and which step did so is not proved.

    Args:
        ablator: makes the compiles.
        wrong: the kernel, which is right with nothing fused.
        vectorised: whether it is right without vectors too.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    repaired = ablator.attempt_under(without_fusion(wrong.labels))[1]
    memory = check_dependences(wrong.lowered, wrong.kernel.scheduled)
    shown = wrong.scheduled or memory == "broken"
    operators = wrong.operators() or wrong.all_operators()
    details: DetailsJson = {"operators": operators, "vectorised": vectorised, "dependences": memory}
    named = None
    if vectorised and not shown:
        named, _ = find_right_in_scalars(ablator, wrong.generator, [name for name in operators if ":" not in name])
        details["right_in_scalars"] = named
    if not shown:
        rewritten = _find_right_form(ablator, wrong)
        if rewritten is not None:
            return Attribution(rewritten)
    stage = CODEGEN if not shown and (vectorised or memory == "kept") else SCHEDULER
    source, line = find_fusion_source(stage, wrong.generator)
    culprit = make_kernel_culprit(
        wrong,
        stage,
        "loop order" if wrong.scheduled else "fusion",
        named or "+".join(sorted(operators)) or "fusion",
        nodes=wrong.kernel.nodes,
        source=source,
        line=line,
        necessary=True if repaired else None,
        confidence="high" if repaired and shown else "low",
        details=details,
    )
    return Attribution(culprit)


def _find_right_form(ablator: Ablator, wrong: WrongKernel) -> Culprit | None:
    """The operator whose code is right in another form, in the kernel as it is fused; None if there is none."""
    for operator, control in wrong.generator.alternative_forms().items():
        if ablator.attempt_under(Lowered(control, f"{operator} in another form"))[1]:
            code = wrong.generator.find_code(operator)
            return make_kernel_culprit(
                wrong,
                CODEGEN,
                code.name,
                operator,
                nodes=wrong.kernel.nodes,
                source=code.source,
                line=code.line,
                necessary=True,
                details={"operators": wrong.operators(), "vectorised": False},
            )
    return None
