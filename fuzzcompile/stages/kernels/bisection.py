"""Bisection over operators: find the one that repairs the divergence if it alone is compiled differently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fuzzcompile.attribution.ablating import Ablator
from fuzzcompile.codegen.base import CodeGenerator
from fuzzcompile.compiler.kernels.control import EVERYTHING, UNCHANGED, Control
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.compiler.target.interpreted import Order
from fuzzcompile.stages.base import Without
from fuzzcompile.trials.compiles import Trial

_MAX_BISECTION = 6
# What to change for a part of the candidates.
Change = Callable[[tuple[str, ...]], Control]


def controlled(how: Compilation, control: Control, toggle: str) -> Without:
    """The compile with a change behind the graph passes; it generates code, since nothing else shows what is wrong.

    Args:
        how: the compile without the change.
        control: the change.
        toggle: what the table of ablations calls the change.
    """
    return Without(toggle, replace(how, control=control, screen=False))


def by_aten(how: Compilation, operators: Sequence[str]) -> Without:
    """The compile with operators computed by ATen."""
    return controlled(how, Control(fallbacks=tuple(operators)), "ATen computes " + ", ".join(operators))


def configured(how: Compilation, config: dict[str, object], toggle: str | None = None) -> Without:
    """The compile with entries of ``torch._inductor.config``.

    Args:
        how: the compile without them.
        config: the entries by name.
        toggle: what the table of ablations calls them; the entries themselves by default.
    """
    name = toggle or ", ".join(f"{key}={value}" for key, value in config.items())
    return Without(name, replace(how, config={**(how.config or {}), **config}, screen=False))


def unfused(how: Compilation, labels: tuple[str, ...]) -> Without:
    """The compile in which the operators of one kernel are fused with nothing."""
    return controlled(how, Control(apart=labels), "this kernel not fused")


def isolated(how: Compilation, labels: tuple[str, ...]) -> Without:
    """The watched compile in which each operator has a kernel of its own."""
    control = Control(realised=labels, apart=(EVERYTHING,), separate=True)
    return controlled(replace(how, kernels=True, record=True), control, "nothing fused")


def in_order(how: Compilation) -> Without:
    """The compile whose interpreted kernels run their programs in ascending order."""
    return Without("programs in their order", replace(how, order=Order.FORWARD, screen=False))


def attempt(ablator: Ablator, without: Without) -> tuple[Trial, bool]:
    """The compile, and whether it repairs the divergence.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    return ablator.attempt(without.how, without.toggle)


def right_without_vectors(ablator: Ablator, generator: CodeGenerator) -> bool:
    """Return whether the divergence is gone when no loop is vectorised.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    return attempt(ablator, configured(ablator.how, dict(generator.scalars)))[1]


def right_in_scalars(
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
    return bisected(ablator, operators, lambda half: generator.in_scalars(half) or UNCHANGED, "{} in scalars")


def bisected(ablator: Ablator, candidates: Sequence[str], change: Change, toggle: str) -> tuple[str | None, list[str]]:
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
        repaired, failed = _tried(ablator, half, change, toggle)
        if len(half) == 1:
            if repaired:
                return half[0], untested
            untested += half if failed else ()
        elif failed:  # a candidate that does not compile says nothing of the others
            return _one_by_one(ablator, left, change, toggle)
        elif repaired:
            left = list(half)
            continue
        left = left[len(half) :]
    return None, untested


def _one_by_one(
    ablator: Ablator, candidates: Sequence[str], change: Change, toggle: str
) -> tuple[str | None, list[str]]:
    untested: list[str] = []
    for name in candidates[:_MAX_BISECTION]:
        repaired, failed = _tried(ablator, (name,), change, toggle)
        if repaired:
            return name, untested
        if failed:
            untested.append(name)
    return None, untested


def _tried(ablator: Ablator, names: tuple[str, ...], change: Change, toggle: str) -> tuple[bool, bool]:
    """Return whether the change repairs the divergence, and whether the program then fails in another way."""
    trial, repaired = attempt(ablator, controlled(ablator.how, change(names), toggle.format(", ".join(names))))
    return repaired, trial.observation.failure is not None and not ablator.same_kind(trial)
