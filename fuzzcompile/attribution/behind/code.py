"""A kernel that writes something else than its IR says: is it fusion, the vectorised code or the scalar code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from fuzzcompile.attribution.ablating import Ablator
from fuzzcompile.attribution.behind.culprits import kernel_culprit, kernel_details
from fuzzcompile.attribution.behind.values import examined
from fuzzcompile.attribution.behind.wrong import WrongKernel
from fuzzcompile.attribution.culprit import Attribution, Culprit
from fuzzcompile.compiler.kernels.codegen_operators import LOOPS, code_operators, code_source, is_vectorised
from fuzzcompile.compiler.kernels.control import EVERYTHING, Control
from fuzzcompile.compiler.kernels.fused import dependences
from fuzzcompile.compiler.kernels.operators import operator_of

# What a kernel's operators give when each has a kernel of its own; "unknown" where that does not run.
Alone = Literal["right", "wrong", "unknown"]
_MAX_BISECTION = 6
_SCALAR = {"cpp.simdlen": 1}


def code_at_fault(ablator: Ablator, wrong: WrongKernel) -> Attribution | None:
    """Prove what is wrong with a kernel.

    Raises:
        OutOfTime: the ablator's deadline has passed.
    """
    if wrong.overwritten is not None:
        return _reused(ablator, wrong)
    vectorised = False
    if is_vectorised(wrong.lowered.sources.get(wrong.kernel.name, "")):
        how = replace(ablator.how, config={**(ablator.how.config or {}), **_SCALAR}, screen=False)
        vectorised = ablator.attempt(how, "cpp.simdlen=1")[1]
    alone, single = _isolated(ablator, wrong)
    if alone == "right":
        return _fusion(ablator, wrong, vectorised=vectorised)
    if single is None and not vectorised:
        return None
    found = _vectorised(ablator, wrong, single) if vectorised else _scalar(ablator, wrong, single)
    # Code is to blame for certain only if it stays wrong when nothing else stands beside it.
    return found if alone == "wrong" else _doubted(found)


# -- what is wrong with it --------------------------------------------------------------------------


def _reused(ablator: Ablator, wrong: WrongKernel) -> Attribution:
    """Its arguments were overwritten before it read them: memory was given away too early, or the order is wrong."""
    config = {"allow_buffer_reuse": False, "inplace_buffers": False}
    how = replace(ablator.how, config={**(ablator.how.config or {}), **config}, screen=False)
    repaired = ablator.attempt(how, "no reuse of buffers")[1]
    stale = wrong.overwritten
    details = {"overwritten": stale.buffer, "written_by": stale.written_by} if stale is not None else {}
    rewrite = "buffer reuse" if repaired else "order of kernels"
    culprit = kernel_culprit(
        wrong,
        "scheduler",
        rewrite,
        rewrite,
        necessary=True if repaired else None,
        confidence="high" if repaired else "low",
        details=details,
    )
    return Attribution(culprit)


def _isolated(ablator: Ablator, wrong: WrongKernel) -> tuple[Alone, WrongKernel | None]:
    """What becomes of the divergence when each operator has its own kernel, and the one that is wrong then."""
    control = Control(realised=_labels(wrong), apart=(EVERYTHING,), separate=True)
    how = replace(ablator.how, control=control, kernels=True, record=True, screen=False)
    trial, repaired = ablator.attempt(how, "nothing fused")
    if repaired:
        return "right", None
    if trial.observation.failure is not None:
        return "unknown", None
    for look in examined(trial.ledger, ablator.count):
        found = look.as_run.wrong_kernels()
        if found and not found[0].kernel.extern:
            return "wrong", found[0]
    return "wrong", None


def _fusion(ablator: Ablator, wrong: WrongKernel, *, vectorised: bool) -> Attribution:
    """Right without fusion: it should be enough to leave this kernel's operators alone.

    The scheduler is at fault if it broke a dependence. Otherwise the code generator may have written wrong code for
    loops that may be computed together (a common subexpression that is none), and which step did so is not proved.
    """
    control = Control(apart=_labels(wrong))
    repaired = ablator.attempt(replace(ablator.how, control=control, screen=False), "this kernel not fused")[1]
    memory = dependences(wrong.lowered, wrong.kernel.scheduled)
    shown = wrong.scheduled or memory == "broken"
    operators = code_operators(wrong.kernel.scheduled, wrong.buffer) or _all_operators(wrong)
    details: dict[str, Any] = {"operators": operators, "vectorised": vectorised, "dependences": memory}
    named = None
    if vectorised and not shown:
        named, _ = bisected(ablator, [name for name in operators if ":" not in name])
        details["right_in_scalars"] = named
    stage = "codegen" if not shown and (vectorised or memory == "kept") else "scheduler"
    source, line = code_source("fusion" if stage == "scheduler" else "fused loops")
    culprit = kernel_culprit(
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


def _doubted(found: Attribution) -> Attribution:
    culprit = found.culprit
    return found if culprit is None else replace(found, culprit=replace(culprit, confidence="low"))


def _vectorised(ablator: Ablator, wrong: WrongKernel, single: WrongKernel | None) -> Attribution:
    """Right in scalars: one operator of the vectorised code should be enough to do so."""
    at = single or wrong
    operators = code_operators(at.kernel.scheduled, at.buffer)
    reductions = [name for name in operators if ":" in name]
    named, untested = bisected(ablator, [name for name in operators if ":" not in name])
    if named is None and len(untested) == 1 and not reductions:
        # Its scalar form does not compile inside the vectors; all in scalars is right.
        culprit = _code_culprit(wrong, single, untested[0], vectorised=True, necessary=True)
        return Attribution(replace(culprit, confidence="low"))
    if named is None and not reductions:
        # A small error there may be what a later operator makes a large one of: NaN out of a lost tiny number.
        others = [name for name in _all_operators(wrong) if ":" not in name and name not in operators]
        named, _ = bisected(ablator, others)
        if named is not None:
            wrong, single = replace(wrong, nodes=wrong.kernel.nodes), None
    if named is not None:
        culprit = _code_culprit(wrong, single, named, vectorised=True, necessary=True)
        return Attribution(culprit)
    # What cannot be done in scalars on its own: loads, stores, reductions, masks. The whole kernel was.
    rewrite = reductions[0] if reductions else "loop"
    return Attribution(_code_culprit(wrong, single, rewrite, vectorised=True, necessary=True))


def bisected(ablator: Ablator, operators: Sequence[str]) -> tuple[str | None, list[str]]:
    """The operator that, done in scalars alone, repairs the divergence, and those that could not be done so.

    Raises:
        OutOfTime: the ablator's deadline has passed.
    """
    return _bisected(ablator, operators, lambda half: Control(scalarised=half), "{} in scalars")


def _bisected(
    ablator: Ablator, candidates: Sequence[str], control: Callable[[tuple[str, ...]], Control], toggle: str
) -> tuple[str | None, list[str]]:
    """The candidate that alone repairs the divergence when ``control`` is applied to it.

    And those with which the program fails in another way than it does without, so that nothing is known of them.
    """
    left, untested = list(candidates), list[str]()
    for _ in range(_MAX_BISECTION):
        if not left:
            break
        half = left[: (len(left) + 1) // 2]
        how = replace(ablator.how, control=control(tuple(half)), screen=False)
        trial, repaired = ablator.attempt(how, toggle.format(", ".join(half)))
        failed = trial.observation.failure is not None and not ablator.same_kind(trial)
        if len(half) == 1:
            if repaired:
                return half[0], untested
            untested += half if failed else []
        elif repaired or failed:  # one that does not compile says nothing of the others
            if failed:
                return _one_by_one(ablator, left, control, toggle)
            left = half
            continue
        left = left[len(half) :]
    return None, untested


def _one_by_one(
    ablator: Ablator, candidates: Sequence[str], control: Callable[[tuple[str, ...]], Control], toggle: str
) -> tuple[str | None, list[str]]:
    untested: list[str] = []
    for name in candidates[:_MAX_BISECTION]:
        how = replace(ablator.how, control=control((name,)), screen=False)
        trial, repaired = ablator.attempt(how, toggle.format(name))
        if repaired:
            return name, untested
        if trial.observation.failure is not None and not ablator.same_kind(trial):
            untested.append(name)
    return None, untested


def _scalar(ablator: Ablator, wrong: WrongKernel, single: WrongKernel | None) -> Attribution:
    """Wrong in scalars and on its own: the code of an operator; proved by having ATen compute it."""
    at = single or wrong
    operators = code_operators(at.kernel.scheduled, at.buffer)
    if not operators:  # nothing is computed: the kernel may have been handed other memory than it should
        return Attribution(kernel_culprit(wrong, "runtime", "kernel call", "kernel call", confidence="low"))
    rewrite = operators[0]
    names = tuple(dict.fromkeys(operator_of(at.lowered.labels[n]) for n in at.nodes if n in at.lowered.labels))
    repaired = False
    if names:
        how = replace(ablator.how, control=Control(fallbacks=names), screen=False)
        repaired = ablator.attempt(how, "ATen computes " + ", ".join(names))[1]
    if not repaired:  # as above: the cause may be an operator before it
        before = [name for name in _names(wrong) if name not in names]
        found, _ = _bisected(ablator, before, lambda half: Control(fallbacks=half), "ATen computes {}")
        if found is not None:
            nodes = tuple(n for n in wrong.kernel.nodes if operator_of(wrong.lowered.labels.get(n, "")) == found)
            earlier = replace(at, nodes=nodes)
            operator = found.split(".")[1] if "." in found else found
            return Attribution(_code_culprit(earlier, None, operator, vectorised=False, necessary=True))
    proved = repaired and len(operators) <= 1
    culprit = _code_culprit(wrong, single, rewrite, vectorised=False, necessary=True if repaired else None)
    return Attribution(culprit if proved else replace(culprit, confidence="low"))


def _code_culprit(
    wrong: WrongKernel, single: WrongKernel | None, operator: str, *, vectorised: bool, necessary: bool | None
) -> Culprit:
    at = single or wrong
    source, line, name = named_code(operator, vectorised=vectorised)
    details: dict[str, Any] = {"operators": code_operators(at.kernel.scheduled, at.buffer), "vectorised": vectorised}
    if single is not None:
        alone = kernel_details(single.lowered, single.kernel)
        details |= {"alone": alone.get("kernel_source")}
    return kernel_culprit(
        wrong,
        "codegen",
        name,
        operator,
        nodes=at.nodes,
        source=source,
        line=line,
        necessary=necessary,
        details=details,
    )


def named_code(operator: str, *, vectorised: bool) -> tuple[str | None, int | None, str]:
    """File, line and name of what generates the code of an operator: ``CppVecOverrides.exp``."""
    source, line = code_source(operator, vectorised=vectorised)
    if ":" in operator or operator in LOOPS:
        return source, line, f"{'vectorised' if vectorised else 'scalar'} {operator}"
    return source, line, f"{'CppVecOverrides' if vectorised else 'CppOverrides'}.{operator}"


def _all_operators(wrong: WrongKernel) -> list[str]:
    """The operators of the code of the whole kernel."""
    found = [name for buffer in wrong.kernel.writes for name in code_operators(wrong.kernel.scheduled, buffer)]
    return list(dict.fromkeys(found))


def _names(wrong: WrongKernel) -> list[str]:
    """The operators of the whole kernel, by name."""
    labels = wrong.lowered.labels
    return list(dict.fromkeys(operator_of(labels[name]) for name in wrong.kernel.nodes if name in labels))


def _labels(wrong: WrongKernel) -> tuple[str, ...]:
    return tuple(wrong.lowered.labels[name] for name in wrong.kernel.nodes if name in wrong.lowered.labels)
