"""Lowerings: operators of a graph made into Inductor's IR, loops or calls of a library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from fuzzcompile.compiler.compile_changes import CompileChange, Lowered
from fuzzcompile.compiler.graph_replay import list_drawing_nodes
from fuzzcompile.compiler.kernels.lowering_control import Control, can_fall_back, find_lowering_source
from fuzzcompile.diagnosis.attribution.ablation import Ablator, Divergence
from fuzzcompile.diagnosis.attribution.culprit import Attribution, Culprit
from fuzzcompile.diagnosis.kernels.code_generators import get_generator
from fuzzcompile.diagnosis.kernels.kernel_bisection import (
    BackendFailure,
    WrongOperator,
    find_node_family,
    with_aten,
)
from fuzzcompile.diagnosis.kernels.kernel_culprits import (
    describe_kernel,
    describe_values,
    find_failed_stage,
    find_failure,
    find_kernel,
    find_omission,
    find_site,
    list_failed_families,
    prove_failure,
    without_failure,
)
from fuzzcompile.diagnosis.kernels.kernel_suspects import get_first_wrong_kernels, get_watched_graphs
from fuzzcompile.diagnosis.operators.operator_suspects import list_aten_suspects
from fuzzcompile.diagnosis.stages.stage import Stage, Suspect
from fuzzcompile.model.stages import LOWERING
from fuzzcompile.model.verdicts import Verdict

_MAX_OPERATORS = 3


class Lowering(Stage):
    """Wrong IR, a library called wrongly, a lowering that raises, or one that lost a check of its operator.

    An omission shows here too: a lowering that raises for an operator that an earlier pass should have replaced. Then
    the suspect is that pass.
    """

    name = LOWERING

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """Operators whose IR is wrong, those wrong in float64 first, then operators that failed."""
        trial, operators = divergence.trial, list[WrongOperator]()
        error = trial.observation.failure
        if trial.judgement.verdict is Verdict.ACCEPTS_INVALID:
            operators = _find_lost_checks(divergence)
        elif error is None:
            operators = _find_wrong_operators(divergence)
            # Nothing is left to explain, and comparing the kernels costs several evaluations.
            operators += [] if any(operator.exact for operator in operators) else _find_wrong_calls(divergence)
            operators = [*_find_drawing_operators(divergence), *operators]
        elif error.phase == "run":  # a wrong index, say, that a kernel stumbled over
            operators = [operator for operator in _find_wrong_operators(divergence) if operator.exact]
        failure = find_failure(trial) if error is not None else None
        failed = [Suspect(self.name, family, finding=failure) for family in list_failed_families(failure)]
        lowered = [*map(self._make_suspect, operators), *_list_omissions(failure), *failed]
        return lowered or list_aten_suspects(divergence, self.name)

    def _make_suspect(self, wrong: WrongOperator) -> Suspect:
        family = find_node_family(wrong.lowered, wrong.lowered.find_producer(wrong.node))
        return Suspect(self.name, family, finding=wrong, certain=wrong.exact)

    def without(self, suspect: Suspect) -> CompileChange | None:
        """ATen computes the operator; None for views and for what writes to its arguments."""
        finding = suspect.finding
        if isinstance(finding, BackendFailure):
            return None if suspect.stage != self.name else without_failure(finding)
        return with_aten([finding.name]) if isinstance(finding, WrongOperator) and _can_fall_back(finding) else None

    def prove(self, ablator: Ablator, suspects: Sequence[Suspect]) -> Attribution | None:
        """The operators that ATen must compute for the divergence to go; unproved, one that is certainly wrong."""
        operators = [suspect.finding for suspect in suspects if isinstance(suspect.finding, WrongOperator)]
        if ablator.trial.judgement.verdict is Verdict.ACCEPTS_INVALID:
            return _prove_check(ablator, operators[0]) if operators else None
        named = _prove_operators(ablator, [wrong for wrong in operators if wrong.kernel is None])
        if named is not None and (named.contributors or (named.culprit is not None and named.culprit.necessary)):
            return named
        failure = next((suspect.finding for suspect in suspects if isinstance(suspect.finding, BackendFailure)), None)
        if ablator.trial.observation.failure is not None:
            mine = failure is not None and find_failed_stage(failure.failed) == self.name
            return prove_failure(ablator, failure) if failure is not None and mine else None
        called = [wrong for wrong in operators if wrong.kernel is not None][:1]
        return _prove_operators(ablator, called) or named

    def workarounds(self, culprit: Culprit, given: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
        """Loops that are not vectorised, where the code generator of the culprit's kernel has vectors."""
        generator = get_generator(culprit.details.get("code_generator"))
        yield from [generator.scalars] if generator.scalars else []


def _find_wrong_operators(divergence: Divergence) -> list[WrongOperator]:
    operators = [wrong for look in get_watched_graphs(divergence) for wrong in look.find_wrong_operators()]
    return sorted(operators, key=lambda wrong: not wrong.exact)


def _list_omissions(failure: BackendFailure | None) -> list[Suspect]:
    """The pass that should have replaced the operator whose lowering raised."""
    undone = find_omission(failure) if failure is not None else None
    if undone is None:
        return []
    return [Suspect(undone.stage, undone.family, undone.source, finding=failure, certain=True)]


def _find_wrong_calls(divergence: Divergence) -> list[WrongOperator]:
    """The operators that call a library's kernel which gives wrong values: the call is at fault."""
    return [
        WrongOperator(
            wrong.lowered, wrong.nodes[-1], False, wrong.comparison.relative_error, wrong.comparison, wrong.kernel
        )
        for wrong in get_first_wrong_kernels(divergence)
        if wrong.kernel.extern and wrong.overwritten is None
    ]


def _find_drawing_operators(divergence: Divergence) -> list[WrongOperator]:
    """Find the operators that draw other random numbers although eager's are promised."""
    if not divergence.experiments.runs.promises_eager_numbers:
        return []
    return [
        WrongOperator(look.lowered, node.name, False, 0.0)
        for look in get_watched_graphs(divergence)
        for node in list_drawing_nodes(look.lowered.snapshot)
        if node.name in look.lowered.labels
    ]


def _find_lost_checks(divergence: Divergence) -> list[WrongOperator]:
    """Invalid input is accepted: the operators that raise when the graphs are interpreted lost their checks."""
    refused = [(look.lowered, look.find_first_refused()) for look in get_watched_graphs(divergence)]
    return [WrongOperator(lowered, name, False, 0.0) for lowered, name in refused if name and name in lowered.labels]


def _prove_check(ablator: Ablator, wrong: WrongOperator) -> Attribution:
    repaired = ablator.attempt_under(with_aten([wrong.name]))[1]
    culprit = _make_operator_culprit(wrong, necessary=repaired)
    return Attribution(culprit if repaired else replace(culprit, confidence="low"))


def _can_fall_back(wrong: WrongOperator) -> bool:
    node = wrong.lowered.find_node(wrong.node)
    return node is not None and can_fall_back(node)


def _prove_operators(ablator: Ablator, wrong: list[WrongOperator]) -> Attribution | None:
    """Have ATen compute the first wrong operator wherever it is, and the next ones too until that repairs it."""
    names: list[str] = []
    chosen: list[WrongOperator] = []
    for operator in wrong:
        if operator.name in names or len(names) == _MAX_OPERATORS or not _can_fall_back(operator):
            continue
        names.append(operator.name)
        chosen.append(operator)
        if ablator.attempt_under(with_aten(names))[1]:
            return _attribute_operators(ablator, chosen, names)
    # Wrong in float64 is shown by the evaluation of its IR, though no compile proves it: views cannot fall back.
    left = next((operator for operator in wrong if operator.exact or operator not in chosen), None)
    return None if left is None else Attribution(replace(_make_operator_culprit(left), confidence="low"))


def _attribute_operators(ablator: Ablator, chosen: list[WrongOperator], names: list[str]) -> Attribution:
    first, last = chosen[0], chosen[-1]
    if len(names) == 1:
        return Attribution(_add_sufficiency(ablator, _make_operator_culprit(first, necessary=True), names))
    # Was the last one alone what it takes? The others looked wrong and may be innocent.
    if ablator.attempt_under(with_aten(names[-1:]))[1]:
        return Attribution(_add_sufficiency(ablator, _make_operator_culprit(last, necessary=True), names[-1:]))
    culprits = [_make_operator_culprit(operator) for operator in _select_needed(ablator, chosen)]
    if len({(culprit.source, culprit.line, culprit.family) for culprit in culprits}) == 1:  # one lowering of overloads
        siblings = tuple(str(culprit.rewrite) for culprit in culprits[1:])
        return Attribution(replace(culprits[0], necessary=True, siblings=siblings))
    # Each is wrong on its own, and none of them alone repairs it.
    sure = "high" if all(operator.exact for operator in chosen) else "low"
    independent = [replace(culprit, necessary=False, confidence=sure) for culprit in culprits]
    return Attribution(independent[0], independent[1:])


def _select_needed(ablator: Ablator, chosen: list[WrongOperator]) -> list[WrongOperator]:
    """Without the operators that looked wrong and that ATen need not compute for the divergence to go.

    The last one is needed, as the divergence was there without it.
    """
    kept = list(chosen)
    for operator in chosen[:-1] if len(chosen) > 2 else ():
        rest = [needed for needed in kept if needed is not operator]
        if ablator.attempt_under(with_aten([needed.name for needed in rest]))[1]:
            kept = rest
    return kept


def _add_sufficiency(ablator: Ablator, culprit: Culprit, names: list[str]) -> Culprit:
    """Add whether the divergence stays when ATen computes everything that it can but these operators."""
    toggle = "ATen computes all but " + ", ".join(names)
    trial, repaired = ablator.attempt_under(Lowered(Control(lowered=tuple(names)), toggle))
    if repaired:
        return replace(culprit, sufficient=False)
    return replace(culprit, sufficient=True if ablator.fails_alike(trial) else None)


def _make_operator_culprit(wrong: WrongOperator, *, necessary: bool | None = None) -> Culprit:
    node = wrong.lowered.find_node(wrong.node)
    source, line = find_lowering_source(node.target) if node is not None else (None, None)
    kernel = wrong.kernel or find_kernel(wrong.lowered, wrong.node)
    return Culprit.from_operator(
        LOWERING,
        wrong.name,
        nodes=(wrong.node,),
        source=source,
        line=line,
        site=find_site(wrong.lowered, wrong.node),
        step=wrong.step,
        necessary=necessary,
        details={
            **describe_kernel(wrong.lowered, kernel),
            **describe_values(wrong.comparison),
            "shown_in_float64": wrong.exact,
        },
    )
