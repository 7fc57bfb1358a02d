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
from fuzzcompile.diagnosis.kernels.kernel_proofs import (
    find_failed_stage,
    find_failure,
    find_omission,
    list_failed_suspects,
    prove_failure,
    with_aten,
    without_failure,
)
from fuzzcompile.diagnosis.kernels.watched_graph import LoweredStep, get_first_wrong_kernels, get_watched_graphs
from fuzzcompile.diagnosis.operators.operator_ways import KERNELS
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
        trial = divergence.trial
        error, operators = trial.observation.failure, list(_iter_operators(divergence))
        failure = find_failure(trial) if error is not None else None
        undone = find_omission(failure) if failure is not None else None
        lowered = [Suspect(self.name, each.find_family(each.nodes[-1]), None, each, each.exact) for each in operators]
        if undone is not None:
            lowered.append(Suspect(undone.stage, undone.family, undone.source, failure, certain=True))
        lowered += list_failed_suspects(self.name, trial) if error is not None else []
        found = [] if lowered else [each for each in divergence.once(KERNELS.find) if each.culprit.stage == self.name]
        return [*lowered, *map(Suspect.from_found, found)]

    def without(self, suspect: Suspect) -> CompileChange | None:
        """ATen computes the operator; None for views and for what writes to its arguments."""
        finding = suspect.finding
        if not isinstance(finding, LoweredStep):
            return super().without(suspect)
        if finding.failed is not None:
            return without_failure(finding) if suspect.stage == self.name else None
        return with_aten([finding.name]) if _can_fall_back(finding) else None

    def prove(self, ablator: Ablator, suspects: Sequence[Suspect]) -> Attribution | None:
        """The operators that ATen must compute for the divergence to go; unproved, one that is certainly wrong."""
        steps = [suspect.finding for suspect in suspects if isinstance(suspect.finding, LoweredStep)]
        operators = [step for step in steps if step.failed is None]
        if ablator.trial.judgement.verdict is Verdict.ACCEPTS_INVALID:
            return _prove_check(ablator, operators[0]) if operators else None
        named = _prove_operators(ablator, [wrong for wrong in operators if wrong.kernel is None])
        if named is not None and (named.contributors or (named.culprit is not None and named.culprit.necessary)):
            return named
        if ablator.trial.observation.failure is not None:
            failure = next((step for step in steps if step.failed is not None), None)
            mine = failure is not None and find_failed_stage(failure) == self.name
            return prove_failure(ablator, failure) if failure is not None and mine else None
        return _prove_operators(ablator, [wrong for wrong in operators if wrong.kernel is not None][:1]) or named

    def workarounds(self, culprit: Culprit, given: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
        """Loops that are not vectorised, where the code generator of the culprit's kernel has vectors."""
        generator = get_generator(culprit.details.get("code_generator"))
        yield from [generator.scalars] if generator.scalars else []


def _iter_operators(divergence: Divergence) -> Iterator[LoweredStep]:
    graphs, error = get_watched_graphs(divergence), divergence.trial.observation.failure
    if divergence.verdict is Verdict.ACCEPTS_INVALID:
        # The operators that raise when the graphs are interpreted lost their checks.
        for look in graphs:
            name = look.find_first_refused()
            if name is not None and name in look.lowered.labels:
                yield LoweredStep(look.lowered, (name,), step=0.0)
        return
    if error is not None and error.phase != "run":
        return
    wrong = sorted((each for look in graphs for each in look.find_wrong_operators()), key=lambda each: not each.exact)
    if error is not None:  # a wrong index, say, that a kernel stumbled over
        yield from (each for each in wrong if each.exact)
        return
    if divergence.experiments.runs.promises_eager_numbers:
        drawing = ((look.lowered, node.name) for look in graphs for node in list_drawing_nodes(look.lowered.snapshot))
        yield from (LoweredStep(lowered, (name,), step=0.0) for lowered, name in drawing if name in lowered.labels)
    yield from wrong
    if not any(each.exact for each in wrong):  # else nothing is left to explain, and kernels cost several evaluations
        for each in get_first_wrong_kernels(divergence):
            if each.kernel is not None and each.kernel.extern and each.overwritten is None:
                yield replace(each, nodes=each.nodes[-1:])  # the call of a library's kernel is at fault


def _prove_check(ablator: Ablator, wrong: LoweredStep) -> Attribution:
    repaired = ablator.attempt_under(with_aten([wrong.name]))[1]
    culprit = _make_operator_culprit(wrong, necessary=repaired)
    return Attribution(culprit if repaired else replace(culprit, confidence="low"))


def _can_fall_back(wrong: LoweredStep) -> bool:
    node = wrong.lowered.find_node(wrong.nodes[-1])
    return node is not None and can_fall_back(node)


def _prove_operators(ablator: Ablator, wrong: list[LoweredStep]) -> Attribution | None:
    """Have ATen compute the first wrong operator wherever it is, and the next ones too until that repairs it."""
    chosen: dict[str, LoweredStep] = {}
    for operator in wrong:
        if operator.name not in chosen and len(chosen) < _MAX_OPERATORS and _can_fall_back(operator):
            chosen[operator.name] = operator
            if ablator.attempt_under(with_aten(list(chosen)))[1]:
                return _attribute_operators(ablator, list(chosen.values()))
    # Wrong in float64 is shown by the evaluation of its IR, though no compile proves it: views cannot fall back.
    tried = list(chosen.values())
    left = next((operator for operator in wrong if operator.exact or operator not in tried), None)
    return None if left is None else Attribution(replace(_make_operator_culprit(left), confidence="low"))


def _attribute_operators(ablator: Ablator, chosen: list[LoweredStep]) -> Attribution:
    last = chosen[-1]
    # Was the last one alone what it takes? The others looked wrong and may be innocent.
    if len(chosen) == 1 or ablator.attempt_under(with_aten([last.name]))[1]:
        culprit = _make_operator_culprit(last, necessary=True)
        return Attribution(replace(culprit, sufficient=_is_sufficient(ablator, last.name)))
    culprits = [_make_operator_culprit(operator) for operator in _select_needed(ablator, chosen)]
    if len({(culprit.source, culprit.line, culprit.family) for culprit in culprits}) == 1:  # one lowering of overloads
        siblings = tuple(str(culprit.rewrite) for culprit in culprits[1:])
        return Attribution(replace(culprits[0], necessary=True, siblings=siblings))
    # Each is wrong on its own, and none of them alone repairs it.
    sure = "high" if all(operator.exact for operator in chosen) else "low"
    independent = [replace(culprit, necessary=False, confidence=sure) for culprit in culprits]
    return Attribution(independent[0], independent[1:])


def _select_needed(ablator: Ablator, chosen: list[LoweredStep]) -> list[LoweredStep]:
    """Without the operators that looked wrong and that ATen need not compute for the divergence to go.

    The last one is needed, as the divergence was there without it.
    """
    kept = list(chosen)
    for operator in chosen[:-1] if len(chosen) > 2 else ():
        rest = [needed for needed in kept if needed is not operator]
        if ablator.attempt_under(with_aten([needed.name for needed in rest]))[1]:
            kept = rest
    return kept


def _is_sufficient(ablator: Ablator, name: str) -> bool | None:
    trial, repaired = ablator.attempt_under(Lowered(Control(lowered=(name,)), f"ATen computes all but {name}"))
    return False if repaired else True if ablator.fails_alike(trial) else None


def _make_operator_culprit(wrong: LoweredStep, *, necessary: bool | None = None) -> Culprit:
    node = wrong.lowered.find_node(wrong.nodes[-1])
    source, line = find_lowering_source(node.target) if node is not None else (None, None)
    shown = {"shown_in_float64": wrong.exact}
    return wrong.make_culprit(
        LOWERING,
        wrong.name,
        source=source,
        line=line,
        necessary=necessary,
        details=shown,  # type: ignore[arg-type]
    )
