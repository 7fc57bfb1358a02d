"""Compiles with some operators or templates changed, and the bisection for the one that repairs the divergence."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from fuzzcompile.compiler.kernels.kernel_loops import find_definition
from fuzzcompile.compiler.kernels.lowering_control import EVERYTHING, UNCHANGED, Control
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.compiler.target.kernel_log import ProgramOrder
from fuzzcompile.model.stages import CODEGEN, SCHEDULER
from fuzzcompile.triage.attribution.ablation import Ablator, Divergence
from fuzzcompile.triage.attribution.culprit import Attribution, Culprit
from fuzzcompile.triage.kernels.code_generators import CodeGenerator
from fuzzcompile.triage.stages.stage import AblatedCompile
from fuzzcompile.triage.trials.case_runs import Trial

_MAX_BISECTION = 6
# What to change for a part of the candidates.
Change = Callable[[tuple[str, ...]], Control]


def with_control(how: Compilation, control: Control, toggle: str) -> AblatedCompile:
    """The compile with a change behind the graph passes; it generates code, since nothing else shows what is wrong.

    Args:
        how: the compile without the change.
        control: the change.
        toggle: what the table of ablations calls the change.
    """
    return AblatedCompile(toggle, replace(how, control=control, screen=False))


def with_aten(how: Compilation, operators: Sequence[str]) -> AblatedCompile:
    """The compile with operators computed by ATen."""
    return with_control(how, Control(fallbacks=tuple(operators)), "ATen computes " + ", ".join(operators))


def with_config(how: Compilation, config: dict[str, object], toggle: str | None = None) -> AblatedCompile:
    """The compile with entries of ``torch._inductor.config``.

    Args:
        how: the compile without them.
        config: the entries by name.
        toggle: what the table of ablations calls them; the entries themselves by default.
    """
    name = toggle or ", ".join(f"{key}={value}" for key, value in config.items())
    return AblatedCompile(name, replace(how, config={**(how.config or {}), **config}, screen=False))


def without_fusion(how: Compilation, labels: tuple[str, ...]) -> AblatedCompile:
    """The compile in which the operators of one kernel are fused with nothing."""
    return with_control(how, Control(apart=labels), "this kernel not fused")


def with_isolated_kernels(how: Compilation, labels: tuple[str, ...]) -> AblatedCompile:
    """The watched compile in which each operator has a kernel of its own."""
    control = Control(realised=labels, apart=(EVERYTHING,), separate=True)
    return with_control(replace(how, kernels=True, record=True), control, "nothing fused")


def with_program_order(how: Compilation) -> AblatedCompile:
    """The compile whose interpreted kernels run their programs in ascending order."""
    return AblatedCompile("programs in their order", replace(how, order=ProgramOrder.FORWARD, screen=False))


def attempt_ablation(ablator: Ablator, without: AblatedCompile) -> tuple[Trial, bool]:
    """The compile, and whether it repairs the divergence.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    return ablator.attempt(without.how, without.toggle)


def is_right_without_vectors(ablator: Ablator, generator: CodeGenerator) -> bool:
    """Return whether the divergence is gone when no loop is vectorised.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    return attempt_ablation(ablator, with_config(ablator.how, dict(generator.scalars)))[1]


def find_right_in_scalars(
    ablator: Ablator, generator: CodeGenerator, operators: Sequence[str]
) -> tuple[str | None, list[str]]:
    """The operator of vectorised code that, done in scalars alone, repairs the divergence.

    Args:
        ablator: makes the compiles.
        generator: the code generator of the kernel.
        operators: the candidates, as the code generator calls them.

    Returns:
        The operator, None if there is none; and those that could not be done in scalars, of which nothing is known.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    return bisect_candidates(ablator, operators, lambda half: generator.scalarise(half) or UNCHANGED, "{} in scalars")


def bisect_candidates(
    ablator: Ablator, candidates: Sequence[str], change: Change, toggle: str
) -> tuple[str | None, list[str]]:
    """The candidate that alone repairs the divergence when ``change`` is applied to it.

    Args:
        ablator: makes the compiles.
        candidates: what may be changed, most telling first.
        change: what to change for a part of the candidates.
        toggle: what the table of ablations calls the change; ``{}`` stands for the candidates.

    Returns:
        The candidate, None if there is none; and those with which the program fails in another way than without, so
        that nothing is known of them.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    left, untested = list(candidates), list[str]()
    for _ in range(_MAX_BISECTION):
        if not left:
            break
        half = tuple(left[: (len(left) + 1) // 2])
        repaired, failed = _try_change(ablator, half, change, toggle)
        if len(half) == 1:
            if repaired:
                return half[0], untested
            untested += half if failed else ()
        elif failed:  # a candidate that does not compile says nothing of the others
            return _try_one_by_one(ablator, left, change, toggle)
        elif repaired:
            left = list(half)
            continue
        left = left[len(half) :]
    return None, untested


def _try_one_by_one(
    ablator: Ablator, candidates: Sequence[str], change: Change, toggle: str
) -> tuple[str | None, list[str]]:
    untested: list[str] = []
    for name in candidates[:_MAX_BISECTION]:
        repaired, failed = _try_change(ablator, (name,), change, toggle)
        if repaired:
            return name, untested
        if failed:
            untested.append(name)
    return None, untested


def _try_change(ablator: Ablator, names: tuple[str, ...], change: Change, toggle: str) -> tuple[bool, bool]:
    """Return whether the change repairs the divergence, and whether the program then fails in another way."""
    trial, repaired = attempt_ablation(
        ablator, with_control(ablator.how, change(names), toggle.format(", ".join(names)))
    )
    return repaired, trial.observation.failure is not None and not ablator.fails_alike(trial)


# Products that autotuning gave to a template of Inductor's: proved by one compile that leaves them to a library.

_TEMPLATE = re.compile(r"CppTemplateBuffer\((\w+)\)")
_LIBRARY: dict[str, object] = {"max_autotune": False, "max_autotune_gemm": False}
_FILES = {"CppGemmTemplate": "cpp_gemm_template", "CppBmmTemplate": "cpp_bmm_template"}


def prove_templates(ablator: Ablator, divergence: Divergence) -> Attribution | None:
    """The C++ template whose kernels the divergence needs; None if there is none, or it stays without.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    reached = divergence.trial.ledger.reached
    named = sorted({name for part in reached if part.stage == SCHEDULER for name in _TEMPLATE.findall(part.name)})
    if not named or not attempt_ablation(ablator, with_config(ablator.how, _LIBRARY))[1]:
        return None
    source, line = _locate_template(named[0])
    family = "+".join(named)
    return Attribution(Culprit(CODEGEN, None, family, family, source=source, line=line, necessary=True))


def _locate_template(template: str) -> tuple[str | None, int | None]:
    module = _FILES.get(template)
    return find_definition(f"torch._inductor.codegen.{module}:{template}.render") if module else (None, None)
