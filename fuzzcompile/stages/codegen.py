"""Code generation: a kernel that writes something else than its loops say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from fuzzcompile.attribution.ablating import Ablator
from fuzzcompile.attribution.culprit import Attribution, Culprit
from fuzzcompile.attribution.divergence import Divergence
from fuzzcompile.codegen.table import generator_named
from fuzzcompile.compiler.kernels.control import Control
from fuzzcompile.compiler.kernels.operators import operator_of
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.compiler.target.interpreted import Order
from fuzzcompile.stage_names import CODEGEN
from fuzzcompile.stages.base import Stage, Suspect, Without
from fuzzcompile.stages.kernels.bisection import (
    attempt,
    bisected,
    by_aten,
    configured,
    in_order,
    isolated,
    right_in_scalars,
    right_without_vectors,
)
from fuzzcompile.stages.kernels.culprits import kernel_culprit, kernel_details
from fuzzcompile.stages.kernels.examined import examined
from fuzzcompile.stages.kernels.failures import prove_failure, stage_of, without_failure
from fuzzcompile.stages.kernels.suspected import kernels_suspected
from fuzzcompile.stages.kernels.wrong import Failure, WrongKernel, names_of
from fuzzcompile.stages.runtime import kernel_call
from fuzzcompile.stages.scheduler import prove_fusion

# What a kernel's operators give when each has a kernel of its own; "unknown" where that does not run.
_Alone = Literal["right", "wrong", "unknown"]


class Codegen(Stage):
    """Wrong code of an operator, a reduction or a loop, in vectors or in scalars; code that does not compile.

    Names, lines and settings are those of the code generator that wrote the kernel (:mod:`fuzzcompile.codegen`).
    """

    name = CODEGEN
    component = "inductor"

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """The operators of the first wrong kernel of each graph, or of the kernel that failed."""
        return kernels_suspected(self.name, divergence)

    def without(self, suspect: Suspect, how: Compilation) -> Without | None:
        """No vectors where the kernel has them, else ATen in place of the operators; None for a loop of neither."""
        finding = suspect.finding
        if isinstance(finding, Failure):
            return without_failure(finding, how)
        if not isinstance(finding, WrongKernel):
            return None
        if finding.vectorised:
            return configured(how, dict(finding.generator.scalars))
        names = names_of(finding.lowered, finding.nodes)
        return by_aten(how, names) if names else None

    def prove(self, ablator: Ablator, suspects: Sequence[Suspect]) -> Attribution | None:
        """Compile without vectors, then with nothing fused: wrong code, wrong fusion, or neither."""
        for finding in dict.fromkeys(id(suspect.finding) for suspect in suspects):
            suspect = next(suspect for suspect in suspects if id(suspect.finding) == finding)
            if isinstance(suspect.finding, Failure):
                return prove_failure(ablator, suspect.finding) if stage_of(suspect.finding.failed) == CODEGEN else None
            named = _prove_kernel(ablator, suspect.finding) if isinstance(suspect.finding, WrongKernel) else None
            if named is not None:
                return named
        return None

    def workarounds(self, culprit: Culprit, given: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
        """Those of the code generator that wrote the culprit's kernel."""
        generator = generator_named(culprit.details.get("code_generator"))
        yield from generator.settings


def _prove_kernel(ablator: Ablator, wrong: WrongKernel) -> Attribution | None:
    vectorised = wrong.vectorised and right_without_vectors(ablator, wrong.generator)
    alone, single = _isolated(ablator, wrong)
    if alone == "right":
        return prove_fusion(ablator, wrong, vectorised=vectorised)
    if ablator.how.order is not Order.FORWARD and attempt(ablator, in_order(ablator.how))[1]:
        return _raced(single or wrong)
    if single is None and not vectorised:
        return None
    named = _vectorised(ablator, wrong, single) if vectorised else _scalar(ablator, wrong, single)
    # Code is at fault for certain only if it stays wrong when nothing else stands beside it.
    return named if alone == "wrong" or named.culprit is None else _doubted(named.culprit)


def _isolated(ablator: Ablator, wrong: WrongKernel) -> tuple[_Alone, WrongKernel | None]:
    """Give each operator its own kernel; return the effect on the divergence and the kernel that is still wrong.

    Small kernels of one operator stay vectorised where the fused one is: their scalar code says nothing of it.
    """
    config = {**(ablator.how.config or {}), **(wrong.generator.all_vectors if wrong.vectorised else {})}
    trial, repaired = attempt(ablator, isolated(replace(ablator.how, config=config), wrong.labels))
    if repaired:
        return "right", None
    if trial.observation.failure is not None:
        return "unknown", None
    for look in examined(trial.ledger, ablator.count):
        kernels = look.as_run.wrong_kernels()
        if kernels and not kernels[0].kernel.extern:
            return "wrong", kernels[0]
    return "wrong", None


def _raced(wrong: WrongKernel) -> Attribution:
    """Right when the programs of the kernel run in their order: they touch the same elements."""
    code = wrong.generator.stores()
    details = {"operators": wrong.operators(), "programs": "right in ascending order, wrong in descending order"}
    culprit = kernel_culprit(
        wrong, CODEGEN, code.name, "race", source=code.source, line=code.line, necessary=True, details=details
    )
    return Attribution(culprit)


def _doubted(culprit: Culprit) -> Attribution:
    return Attribution(replace(culprit, confidence="low"))


def _vectorised(ablator: Ablator, wrong: WrongKernel, single: WrongKernel | None) -> Attribution:
    """Right in scalars: one operator of the vectorised code should be enough to do so."""
    operators = (single or wrong).operators()
    reductions = [name for name in operators if ":" in name]
    elementwise = [name for name in operators if ":" not in name]
    named, untested = right_in_scalars(ablator, wrong.generator, elementwise)
    if named is None and len(untested) == 1 and not reductions:
        # Its scalar form does not compile inside the vectors; all in scalars is right.
        culprit = _code_culprit(wrong, single, untested[0], vectorised=True, necessary=True)
        return Attribution(culprit) if len(operators) == 1 else _doubted(culprit)
    if named is None and not reductions:
        # A small error there may be what a later operator makes a large one of: NaN out of a lost tiny number.
        rest = [name for name in wrong.all_operators() if ":" not in name and name not in operators]
        named, _ = right_in_scalars(ablator, wrong.generator, rest)
        if named is not None:
            wrong, single = replace(wrong, nodes=wrong.kernel.nodes), None
    # What cannot be done in scalars on its own: loads, stores, reductions, masks. The whole kernel was.
    rewrite = named or (reductions[0] if reductions else "loop")
    return Attribution(_code_culprit(wrong, single, rewrite, vectorised=True, necessary=True))


def _scalar(ablator: Ablator, wrong: WrongKernel, single: WrongKernel | None) -> Attribution:
    """Wrong in scalars and on its own: the code of an operator; proved by having ATen compute it."""
    at = single or wrong
    operators = at.operators()
    if not operators:  # nothing is computed: the kernel may have been handed other memory than it should
        return Attribution(kernel_call(wrong))
    names = names_of(at.lowered, at.nodes)
    repaired = attempt(ablator, by_aten(ablator.how, names))[1] if names else False
    if not repaired:  # the cause may be an operator before it
        before = [name for name in names_of(wrong.lowered, wrong.kernel.nodes) if name not in names]
        earlier, _ = bisected(ablator, before, lambda half: Control(fallbacks=half), "ATen computes {}")
        if earlier is not None:
            nodes = tuple(n for n in wrong.kernel.nodes if operator_of(wrong.lowered.labels.get(n, "")) == earlier)
            operator = earlier.split(".")[1] if "." in earlier else earlier
            culprit = _code_culprit(replace(at, nodes=nodes), None, operator, vectorised=False, necessary=True)
            return Attribution(culprit)
    culprit = _code_culprit(wrong, single, operators[0], vectorised=False, necessary=True if repaired else None)
    return Attribution(culprit) if repaired and len(operators) <= 1 else _doubted(culprit)


def _code_culprit(
    wrong: WrongKernel, single: WrongKernel | None, operator: str, *, vectorised: bool, necessary: bool | None
) -> Culprit:
    at = single or wrong
    code = at.generator.code_of(operator, vectorised=vectorised)
    details: dict[str, object] = {"operators": at.operators(), "vectorised": vectorised}
    if single is not None:
        details["alone"] = kernel_details(single.lowered, single.kernel).get("kernel_source")
    return kernel_culprit(
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
