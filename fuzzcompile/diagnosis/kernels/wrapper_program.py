"""Generated programs that raise by themselves: a setting that repairs them, or the statement at which they fail."""

from __future__ import annotations

import re
from dataclasses import replace

from fuzzcompile.compiler.kernels.kernel_loops import find_definition
from fuzzcompile.compiler.operators.decompositions import find_operator
from fuzzcompile.compiler.operators.fake_tensors import find_fake_function
from fuzzcompile.compiler.watch.rule_labels import find_source
from fuzzcompile.diagnosis.attribution.ablation import Ablator
from fuzzcompile.diagnosis.attribution.culprit import UNKNOWN, Attribution, Culprit
from fuzzcompile.diagnosis.kernels.kernel_bisection import attempt_ablation, with_config
from fuzzcompile.diagnosis.trials.case_runs import Trial
from fuzzcompile.model.culprit_contract import DetailsJson
from fuzzcompile.model.facts import facts
from fuzzcompile.model.stages import CODEGEN, FAKE_TENSOR

# A program that reads what it has not, or unpacks other inputs than it gets: no operator of the user's raises these.
_OWN_ERRORS = ("NameError", "UnboundLocalError")
_UNPACKED = "values to unpack"
_ASSERTED = re.compile(r"assert_size_stride\((\w+), .*'torch\.ops\.([\w.]+)'\)")


def prove_flawed_program(ablator: Ablator) -> Attribution | None:
    """Attribute the error of a generated program that raises by itself, or for which no memory could be planned.

    The first decision about memory or order that a setting switches off, and without which the program runs, is proved.
    Else the program is named with the statement at which it fails: which part of the compiler should have written it
    otherwise does not show in its text. None for any other error.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    statement = _find_own_failure(ablator.trial)
    if statement is None and not _was_raised_by_planning(ablator.trial):
        return None
    for decision in facts().decisions.values():
        if attempt_ablation(ablator, with_config(ablator.how, dict(decision.without)))[1]:
            source, line = find_definition(decision.place)
            name = decision.name
            details: DetailsJson = {} if statement is None else {"statement": statement}
            return Attribution(
                Culprit(decision.stage, None, name, name, source=source, line=line, necessary=True, details=details)
            )
    if statement is None:
        return None
    shown = Culprit(CODEGEN, None, None, UNKNOWN, confidence="low", details={"statement": statement})
    return Attribution(shown)


def _find_own_failure(trial: Trial) -> str | None:
    """The statement of the generated program at which it failed by its own fault; None for any other failure."""
    failure, statement = trial.observation.failure, _find_statement(trial)
    if failure is None or statement is None:
        return None
    unpacks = failure.type_name == "ValueError" and _UNPACKED in failure.message and statement.endswith("= args")
    return statement if failure.type_name in _OWN_ERRORS or unpacks else None


def _find_statement(trial: Trial) -> str | None:
    place = None if trial.observation.failure is None else trial.observation.failure.generated
    return None if place is None else place.source.splitlines()[place.line - 1].strip()


def _was_raised_by_planning(trial: Trial) -> bool:
    """Return whether the error rose during memory planning, which the scheduler's decisions may contradict."""
    failure = trial.observation.failure
    return failure is not None and any(function in facts().errors.planning for _, _, function in failure.raised)


def with_asserted_layout(attribution: Attribution, trial: Trial) -> Attribution:
    """The attribution with the rule of the operator whose result the program asserts to be laid out in another way.

    The program has the layout from the rule, so that the rule disagrees with the kernel, unless a lowering gave the
    operator other inputs than the rule saw. What puts the operator into the graph is necessary too.
    """
    failure, culprit = trial.observation.failure, attribution.culprit
    statement = _find_statement(trial) or ""
    asserted = _ASSERTED.match(statement)
    if failure is None or failure.type_name != "AssertionError" or asserted is None:
        return attribution
    if culprit is not None and culprit.stage == FAKE_TENSOR:
        return attribution
    name = asserted[2]
    operator = find_operator(name)
    rule = find_fake_function(operator) if operator is not None else None
    source, line = find_source(rule) if rule is not None else (None, None)
    asserting = Culprit.from_operator(
        FAKE_TENSOR, name, source=source, line=line, confidence="low", details={"statement": statement}
    )
    if culprit is not None and culprit.necessary:
        return replace(attribution, contributors=[*attribution.contributors, asserting])
    others = [] if culprit is None else [culprit]
    return replace(attribution, culprit=asserting, contributors=[*others, *attribution.contributors])
