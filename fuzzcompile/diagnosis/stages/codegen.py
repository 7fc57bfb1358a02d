"""Code generation: a kernel that writes something else than its loops say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from fuzzcompile.compiler.compile_changes import CompileChange, InductorSettings, ProgramsInOrder
from fuzzcompile.compiler.kernels.lowering_control import Control, parse_operator
from fuzzcompile.compiler.target.kernel_log import ProgramOrder
from fuzzcompile.diagnosis.attribution.ablation import Ablator, Divergence
from fuzzcompile.diagnosis.attribution.culprit import Attribution, Culprit
from fuzzcompile.diagnosis.kernels.code_generators import get_generator
from fuzzcompile.diagnosis.kernels.kernel_bisection import (
    BackendFailure,
    WrongKernel,
    bisect_candidates,
    find_right_in_scalars,
    is_right_without_vectors,
    list_operator_names,
    with_aten,
    with_isolated_kernels,
)
from fuzzcompile.diagnosis.kernels.kernel_culprits import (
    describe_kernel,
    find_failed_stage,
    make_kernel_culprit,
    prove_failure,
    without_failure,
)
from fuzzcompile.diagnosis.kernels.kernel_suspects import list_kernel_suspects, watch_graphs
from fuzzcompile.diagnosis.stages.runtime import make_kernel_call_culprit
from fuzzcompile.diagnosis.stages.scheduler import prove_fusion
from fuzzcompile.diagnosis.stages.stage import Stage, Suspect
from fuzzcompile.model.culprit_contract import DetailsJson
from fuzzcompile.model.stages import CODEGEN

# What a kernel's operators give when each has a kernel of its own; "unknown" where that does not run.
_Alone = Literal["right", "wrong", "unknown"]


class Codegen(Stage):
    """Wrong code of an operator, a reduction or a loop, in vectors or in scalars; code that does not compile.

    Names, lines and settings are those of the code generator that wrote the kernel (:mod:`fuzzcompile.codegen`).
    """

    name = CODEGEN

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """The operators of the first wrong kernel of each graph, or of the kernel that failed."""
        return list_kernel_suspects(self.name, divergence)

    def without(self, suspect: Suspect) -> CompileChange | None:
        """No vectors where the kernel has them, else ATen in place of the operators; None for a loop of neither."""
        finding = suspect.finding
        if isinstance(finding, BackendFailure):
            return without_failure(finding)
        if not isinstance(finding, WrongKernel):
            return None
        if finding.is_vectorised:
            return InductorSettings(finding.generator.scalars, needs_code=True)
        names = list_operator_names(finding.lowered, finding.nodes)
        return with_aten(names) if names else None

    def prove(self, ablator: Ablator, suspects: Sequence[Suspect]) -> Attribution | None:
        """Compile without vectors, then with nothing fused: wrong code, wrong fusion, or neither."""
        for finding in dict.fromkeys(id(suspect.finding) for suspect in suspects):
            suspect = next(suspect for suspect in suspects if id(suspect.finding) == finding)
            if isinstance(suspect.finding, BackendFailure):
                return (
                    prove_failure(ablator, suspect.finding)
                    if find_failed_stage(suspect.finding.failed) == CODEGEN
                    else None
                )
            named = _prove_kernel(ablator, suspect.finding) if isinstance(suspect.finding, WrongKernel) else None
            if named is not None:
                return named
        return None

    def workarounds(self, culprit: Culprit, given: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
        """Those of the code generator that wrote the culprit's kernel."""
        generator = get_generator(culprit.details.get("code_generator"))
        yield from generator.settings


def _prove_kernel(ablator: Ablator, wrong: WrongKernel) -> Attribution | None:
    vectorised = wrong.is_vectorised and is_right_without_vectors(ablator, wrong.generator)
    alone, single = _isolate(ablator, wrong)
    if alone == "right":
        return prove_fusion(ablator, wrong, vectorised=vectorised)
    if (
        ablator.how.order is not ProgramOrder.FORWARD
        and ablator.attempt_under(ProgramsInOrder(ProgramOrder.FORWARD))[1]
    ):
        return _make_race_culprit(single or wrong)
    if single is None and not vectorised:
        return None
    named = _prove_vectorised(ablator, wrong, single) if vectorised else _prove_scalar(ablator, wrong, single)
    # Code is at fault for certain only if it stays wrong when nothing else stands beside it.
    return named if alone == "wrong" or named.culprit is None else _doubt(named.culprit)


def _isolate(ablator: Ablator, wrong: WrongKernel) -> tuple[_Alone, WrongKernel | None]:
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
    for look in watch_graphs(trial.ledger, ablator.count):
        kernels = look.as_run.find_wrong_kernels()
        if kernels and not kernels[0].kernel.extern:
            return "wrong", kernels[0]
    return "wrong", None


def _make_race_culprit(wrong: WrongKernel) -> Attribution:
    """Right when the programs of the kernel run in their order: they touch the same elements."""
    code = wrong.generator.find_store_code()
    details: DetailsJson = {
        "operators": wrong.operators(),
        "programs": "right in ascending order, wrong in descending order",
    }
    culprit = make_kernel_culprit(
        wrong, CODEGEN, code.name, "race", source=code.source, line=code.line, necessary=True, details=details
    )
    return Attribution(culprit)


def _doubt(culprit: Culprit) -> Attribution:
    return Attribution(replace(culprit, confidence="low"))


def _prove_vectorised(ablator: Ablator, wrong: WrongKernel, single: WrongKernel | None) -> Attribution:
    """Right in scalars: one operator of the vectorised code should be enough to do so."""
    operators = (single or wrong).operators()
    reductions = [name for name in operators if ":" in name]
    elementwise = [name for name in operators if ":" not in name]
    named, untested = find_right_in_scalars(ablator, wrong.generator, elementwise)
    if named is None and len(untested) == 1 and not reductions:
        # Its scalar form does not compile inside the vectors; all in scalars is right.
        culprit = _make_code_culprit(wrong, single, untested[0], vectorised=True, necessary=True)
        return Attribution(culprit) if len(operators) == 1 else _doubt(culprit)
    if named is None and not reductions:
        # A small error there may be what a later operator makes a large one of: NaN out of a lost tiny number.
        rest = [name for name in wrong.all_operators() if ":" not in name and name not in operators]
        named, _ = find_right_in_scalars(ablator, wrong.generator, rest)
        if named is not None:
            wrong, single = replace(wrong, nodes=wrong.kernel.nodes), None
    # What cannot be done in scalars on its own: loads, stores, reductions, masks. The whole kernel was.
    rewrite = named or (reductions[0] if reductions else "loop")
    return Attribution(_make_code_culprit(wrong, single, rewrite, vectorised=True, necessary=True))


def _prove_scalar(ablator: Ablator, wrong: WrongKernel, single: WrongKernel | None) -> Attribution:
    """Wrong in scalars and on its own: the code of an operator; proved by having ATen compute it."""
    at = single or wrong
    operators = at.operators()
    if not operators:  # nothing is computed: the kernel may have been handed other memory than it should
        return Attribution(make_kernel_call_culprit(wrong))
    names = list_operator_names(at.lowered, at.nodes)
    repaired = ablator.attempt_under(with_aten(names))[1] if names else False
    if not repaired:  # the cause may be an operator before it
        before = [name for name in list_operator_names(wrong.lowered, wrong.kernel.nodes) if name not in names]
        earlier, _ = bisect_candidates(ablator, before, lambda half: Control(fallbacks=half), "ATen computes {}")
        if earlier is not None:
            nodes = tuple(n for n in wrong.kernel.nodes if parse_operator(wrong.lowered.labels.get(n, "")) == earlier)
            operator = earlier.split(".")[1] if "." in earlier else earlier
            culprit = _make_code_culprit(replace(at, nodes=nodes), None, operator, vectorised=False, necessary=True)
            return Attribution(culprit)
    culprit = _make_code_culprit(wrong, single, operators[0], vectorised=False, necessary=True if repaired else None)
    return Attribution(culprit) if repaired and len(operators) <= 1 else _doubt(culprit)


def _make_code_culprit(
    wrong: WrongKernel, single: WrongKernel | None, operator: str, *, vectorised: bool, necessary: bool | None
) -> Culprit:
    at = single or wrong
    code = at.generator.find_code(operator, vectorised=vectorised)
    details: DetailsJson = {"operators": at.operators(), "vectorised": vectorised}
    if single is not None:
        details["alone"] = describe_kernel(single.lowered, single.kernel).get("kernel_source")
    return make_kernel_culprit(
        wrong,
        CODEGEN,
        code.name,
        operator,
        nodes=at.nodes,
        source=code.source,
        line=code.line,
        necessary=necessary,
        details=details,
    )
