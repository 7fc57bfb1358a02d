"""Behind the graph passes: which lowering, kernel or operator of generated code is at fault, and the proof.

One compile is watched (:mod:`fuzzcompile.compiler.kernels.kernels`) and its values compared
(:mod:`fuzzcompile.attribution.behind.values`); further ones prove what that names: the operator computed by ATen, the
vectorised code done in scalars, the buffers not fused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fuzzcompile.attribution.ablating import Ablator
from fuzzcompile.attribution.behind.code import code_at_fault
from fuzzcompile.attribution.behind.culprits import operator_culprit, output_culprit
from fuzzcompile.attribution.behind.errors import error_behind
from fuzzcompile.attribution.behind.values import Examined, examined
from fuzzcompile.attribution.behind.wrong import WrongKernel, WrongOperator
from fuzzcompile.attribution.culprit import Attribution, Culprit
from fuzzcompile.compiler.kernels.control import Control
from fuzzcompile.compiler.kernels.operators import can_fall_back, operator_of
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.trials.compiles import Trial

_MAX_OPERATORS = 3


def behind_the_graphs(ablator: Ablator) -> Attribution | None:
    """Name what is at fault behind the graph passes; None if the fault is not there, or nothing was found.

    Raises:
        OutOfTime: the ablator's deadline has passed.
    """
    if ablator.screens:
        return None
    trial = _watched(ablator)
    if trial is None:
        return None
    looks = examined(trial.ledger, ablator.count)
    if trial.judgement.verdict is Verdict.ACCEPTS_INVALID:
        return _lost_check(ablator, looks)
    if trial.observation.failure is not None:
        ran = trial.observation.failure.phase == "run"
        wrong = [one for look in looks for one in look.wrong_operators() if one.exact] if ran else []
        found = _prove_operators(ablator, wrong)  # a wrong index, say, that the kernel stumbled over
        return found if _is_proved(found) else error_behind(ablator, trial)
    return _from_values(ablator, trial, looks)


def _watched(ablator: Ablator) -> Trial | None:
    """A compile of which everything is kept; None if the divergence does not show in it."""
    for separate, name in ((True, "every loop nest a kernel"), (False, "kernels watched")):
        control = Control(separate=separate)
        trial = ablator.compiled(replace(ablator.how, kernels=True, record=True, screen=False, control=control))
        repaired = ablator.repaired(trial)
        if repaired:
            ablator.note(name, trial, True)
        else:
            return trial
    return None


def _from_values(ablator: Ablator, trial: Trial, looks: list[Examined]) -> Attribution | None:
    operators = [wrong for look in looks for wrong in look.wrong_operators()]
    operators.sort(key=lambda wrong: not wrong.exact)
    found = _prove_operators(ablator, operators)
    if found is not None and (_is_proved(found) or found.contributors):
        return found
    kernels = [wrong for look in looks for wrong in look.as_run.wrong_kernels()[:1]]
    for wrong in kernels:
        code = _from_kernel(ablator, trial, wrong)
        if code is not None:
            return code
    if found is not None:
        return found
    outputs = [] if kernels else [wrong for look in looks for wrong in look.wrong_outputs()]
    if outputs:
        return Attribution(output_culprit(outputs[0]))
    return None


def _is_proved(found: Attribution | None) -> bool:
    return found is not None and found.culprit is not None and bool(found.culprit.necessary)


def _from_kernel(ablator: Ablator, trial: Trial, wrong: WrongKernel) -> Attribution | None:
    if wrong.kernel.extern and wrong.overwritten is None:
        return _prove_operators(ablator, [_called(wrong)])
    return code_at_fault(ablator, wrong)


def _called(wrong: WrongKernel) -> WrongOperator:
    """The operator that calls a library's kernel: what is wrong there is how it is called."""
    return WrongOperator(
        wrong.lowered, wrong.nodes[-1], False, wrong.comparison.relative_error, wrong.comparison, wrong.kernel
    )


# -- lowerings --------------------------------------------------------------------------------------


def _prove_operators(ablator: Ablator, wrong: list[WrongOperator]) -> Attribution | None:
    """Compute the first wrong operator by ATen wherever it is, and the next ones too until that repairs it."""
    names: list[str] = []
    chosen: list[WrongOperator] = []
    for one in wrong:
        name, node = _name(one), one.lowered.node(one.node)
        if name in names or len(names) == _MAX_OPERATORS or node is None or not can_fall_back(node):
            continue
        names.append(name)
        chosen.append(one)
        control = Control(fallbacks=tuple(names))
        _, repaired = ablator.attempt(_controlled(ablator, control), "ATen computes " + ", ".join(names))
        if repaired:
            return _proved_operators(ablator, chosen, names)
    # Wrong in float64 is shown by the evaluation of its IR, though no compile proves it: views cannot fall back.
    left = next((one for one in wrong if one.exact or one not in chosen), None)
    if left is None:
        return None
    return Attribution(replace(operator_culprit(left), confidence="low"))


def _proved_operators(ablator: Ablator, chosen: list[WrongOperator], names: list[str]) -> Attribution:
    first, last = chosen[0], chosen[-1]
    if len(names) == 1:
        return Attribution(_with_sufficiency(ablator, operator_culprit(first, necessary=True), names))
    # Was the last one alone what it takes? The others looked wrong and may be innocent.
    control = Control(fallbacks=(names[-1],))
    if ablator.attempt(_controlled(ablator, control), f"ATen computes {names[-1]}")[1]:
        return Attribution(_with_sufficiency(ablator, operator_culprit(last, necessary=True), names[-1:]))
    culprits = [operator_culprit(one) for one in _needed(ablator, chosen)]
    if len({(one.source, one.line, one.family) for one in culprits}) == 1:  # overloads that share one lowering
        siblings = tuple(str(one.rewrite) for one in culprits[1:])
        return Attribution(replace(culprits[0], necessary=True, siblings=siblings))
    # Each is wrong on its own, and no one of them alone repairs it.
    sure = "high" if all(one.exact for one in chosen) else "low"
    independent = [replace(one, necessary=False, confidence=sure) for one in culprits]
    return Attribution(independent[0], independent[1:])


def _needed(ablator: Ablator, chosen: list[WrongOperator]) -> list[WrongOperator]:
    """Without those that need not be computed by ATen for the divergence to go: they looked wrong and are innocent.

    The last one is needed, as the divergence was there without it.
    """
    kept = list(chosen)
    for one in chosen[:-1] if len(chosen) > 2 else ():
        rest = [other for other in kept if other is not one]
        names = tuple(_name(other) for other in rest)
        control = Control(fallbacks=names)
        if ablator.attempt(_controlled(ablator, control), "ATen computes " + ", ".join(names))[1]:
            kept = rest
    return kept


def _name(wrong: WrongOperator) -> str:
    return operator_of(wrong.lowered.labels[wrong.node])


def _with_sufficiency(ablator: Ablator, culprit: Culprit, names: list[str]) -> Culprit:
    """Whether the divergence stays when ATen computes everything that it can but these operators."""
    control = Control(lowered=tuple(names))
    trial, repaired = ablator.attempt(_controlled(ablator, control), "ATen computes all but " + ", ".join(names))
    if repaired:
        return replace(culprit, sufficient=False)
    return replace(culprit, sufficient=True if ablator.same_kind(trial) else None)


def _controlled(ablator: Ablator, control: Control, **changes: Any) -> Any:
    return replace(ablator.how, control=control, screen=False, **changes)


def _lost_check(ablator: Ablator, looks: list[Examined]) -> Attribution | None:
    """Invalid input is accepted: the operator that raises when the graph is interpreted lost its check."""
    for look in looks:
        name = look.first_refused()
        if name is None or name not in look.lowered.labels:
            continue
        wrong = WrongOperator(look.lowered, name, False, 0.0)
        operator = operator_of(look.lowered.labels[name])
        control = Control(fallbacks=(operator,))
        _, repaired = ablator.attempt(_controlled(ablator, control), f"ATen computes {operator}")
        culprit = operator_culprit(wrong, necessary=repaired)
        return Attribution(culprit if repaired else replace(culprit, confidence="low"))
    return None
