"""Operators of a program, each beside what the compiler takes in its kernel's place, and the proofs that they share."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fuzzcompile.compiler.operators.decompositions import (
    apply_config,
    find_functional_form,
    read_decomposition_table,
)
from fuzzcompile.compiler.operators.operator_application import CONTIGUOUS, Application, use_contiguous_operands
from fuzzcompile.compiler.operators.operator_crossref import (
    ApplicationJudge,
    CrossrefRun,
    watch_operators,
    watch_program,
)
from fuzzcompile.compiler.watch.ledger import Frame, Ledger
from fuzzcompile.compiler.watch.recorder import CAPTURED_CALLS
from fuzzcompile.diagnosis.attribution.ablation import Ablator, Divergence
from fuzzcompile.diagnosis.attribution.culprit import Attribution, Culprit
from fuzzcompile.diagnosis.attribution.steps import ReplayCount, find_inputs, list_placeholders
from fuzzcompile.diagnosis.operators.operator_faults import (
    describe_error,
    measure_layouts,
    measure_operator,
    word_kernel,
    word_operator,
)
from fuzzcompile.diagnosis.stages.stage import Found, prove_at_call, prove_in_turn
from fuzzcompile.diagnosis.stages.ways import Pair, Way, iter_captured
from fuzzcompile.model.stages import DECOMPOSITION, DYNAMO, FAKE_TENSOR, FUNCTIONALIZATION, JOINT_GRAPH, LOWERING
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.run import runs
from fuzzcompile.run.case_program import build

# The line of the user's program that is under way.

# Files between a call in the program and what sees it.
_BETWEEN = (
    *("torch/overrides.py", "torch/_tensor.py", "torch/_ops.py", "torch/utils/", "torch/_jit_internal.py"),
    *("torch/_compile.py", "torch/_dynamo/", "torch/_decomp/", "torch/_refs/", "torch/_prims"),
)
_OURS = __name__.partition(".")[0]
# Modules of ours that stand between a call and the program say so themselves.
__watches_calls__ = True


def iter_program_lines() -> Iterator[str]:
    """``file.py:line`` of the callers under way, innermost first, as dynamo gives them: modules of torch included.

    Ends where our own code drives the program. A module of ours whose frames stand between the program and what asks
    for its line has a global ``__watches_calls__``.
    """
    frame = sys._getframe(1)
    while frame is not None:
        path, module = Path(frame.f_code.co_filename).as_posix(), frame.f_globals
        if not module.get("__watches_calls__") and not any(part in path for part in _BETWEEN):
            if str(module.get("__name__")).partition(".")[0] == _OURS:
                return
            yield f"{Path(path).name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]


# Operators whose decomposition, or whose description by fake tensors, does not do what their kernels do.

_DEFAULT = {"fallback_random": True}


@dataclass
class OperatorCheck:
    """Faults of the operators of one frame, or of the program without one, and of kernels on other layouts."""

    frame: Frame | None
    faults: list[Found] = field(default_factory=list)
    kernels: list[Found] = field(default_factory=list)
    watched: CrossrefRun = field(default_factory=CrossrefRun)

    def judge(self, application: Application) -> None:
        """Keep what is the matter with one application of an operator, if anything is."""
        pair = Pair(application, application.kernel, application.other)
        if application.way == CONTIGUOUS:
            if (parting := measure_layouts(pair)) is not None:
                decomposed = application.operator in read_decomposition_table()
                self.kernels.append(word_kernel(DECOMPOSITION if decomposed else LOWERING, "eager", parting))
        elif (parting := measure_operator(pair)) is not None:
            self.faults.append(word_operator(parting))


def check_operators(
    ledger: Ledger, count: ReplayCount, config: Mapping[str, Any] | None = None, *, seconds: float = 20.0
) -> list[OperatorCheck]:
    """Run dynamo's graphs and compare every operator with what the compiler takes in its place.

    ``config`` are the entries of Inductor's config that the program was compiled under; operators that are not reached
    in so many ``seconds`` are not compared.
    """
    end, graphs = time.monotonic() + seconds, list[OperatorCheck]()
    with apply_config(config if config is not None else _DEFAULT):
        for frame in ledger.frames:
            for number, (_, record, inputs) in enumerate(iter_captured(Ledger(frames=[frame]), calls=CAPTURED_CALLS)):
                left = end - time.monotonic()
                if left > 0:
                    checked, tangents = OperatorCheck(frame), _find_tangents(frame, number)
                    count.replays += 1
                    checked.watched = watch_operators(
                        record.snapshots[-1], inputs, checked.judge, tangents=tangents, seconds=left
                    )
                    graphs.append(checked)
    return graphs


def _find_tangents(frame: Frame, number: int) -> Sequence[Any] | None:
    """The gradients that the backward pass got; none of them where it never ran, None where there is none."""
    joint = frame.find_record(JOINT_GRAPH, "joint")
    if joint is None or not joint.snapshots:
        return None
    inputs = find_inputs(frame, joint, number)
    named = zip((str(node.target) for node in list_placeholders(joint.snapshots[0])), inputs or (), strict=False)
    return [value for name, value in named if name.startswith("tangents")]


def check_captured_operators(divergence: Divergence) -> list[OperatorCheck]:
    """The operators of the captured graphs; of a program that cannot be captured, those that it calls in eager mode."""
    checked = check_operators(divergence.trial.ledger, divergence.count, divergence.config, seconds=divergence.seconds)
    failure = divergence.trial.observation.failure
    if failure is not None and failure.stage == DYNAMO:
        checked.append(divergence.once(check_eager_program))
    return checked


def check_eager_program(divergence: Divergence) -> OperatorCheck:
    """The operators that the program calls in eager mode, as it is: one of which there may be no graph."""
    case, checked = divergence.experiments.case, OperatorCheck(None)
    program = build(case, divergence.experiments.device)

    def run() -> None:
        runs.observe(case, program, program.model)

    with apply_config(divergence.config):
        where, seconds = iter_program_lines, divergence.seconds
        checked.watched = watch_program(run, checked.judge, lambda: next(where(), None), seconds=seconds)
    return checked


# Kinds of fault that can show as a kind of verdict, most telling first.
_VALUES = ("values", "numbers", "mutation", "shape", "dtype", "alias")
_ERRORS = ("raises", "shape", "dtype", "device", "stride", "alias")
_SHOWS = {
    Verdict.MISCOMPILE: _VALUES,
    Verdict.WRONG_GRADIENT: _VALUES,
    Verdict.NONFINITE: _VALUES,
    Verdict.PRECISION_LOSS: _VALUES,
    Verdict.EQUAL: _VALUES,
    Verdict.ROUNDING: _VALUES,
    Verdict.METADATA: ("dtype", "shape", "device", "stride", "values", "mutation", "alias"),
    Verdict.ALIASING: ("alias", "mutation", "values"),
    Verdict.COMPILE_ERROR: _ERRORS,
    Verdict.RUNTIME_ERROR: (*_ERRORS, "mutation", "values"),
    Verdict.ACCEPTS_INVALID: ("check",),
}
_FAILED = (Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR)
# Kinds of fault that are wrong whatever reads them.
_WRONG_ANYWHERE = ("values", "mutation", "check", "raises")


def _find_operators(divergence: Divergence) -> list[Found]:
    """The operators whose fault can show as the verdict, one finding for each, most telling first.

    Proved faults come before those that rounding may explain, then kinds as they show in such a verdict, then the
    order of execution. For an error that was lost, a decomposition comes before the fake tensors: these do not see
    values, and where an operator is not decomposed its kernel still checks.
    """
    verdict, program_runs = divergence.verdict, divergence.experiments.runs
    kinds = list(_SHOWS.get(verdict, ()))
    if program_runs.draws and not program_runs.promises_eager_numbers and "numbers" in kinds:
        kinds.remove("numbers")  # a program that draws nothing has no other numbers to show
    faults = [
        fault
        for graph in divergence.once(check_captured_operators)
        for fault in graph.faults
        # Shared memory shows in values only if something is written to.
        if _kind(fault) in kinds and (_kind(fault) != "alias" or verdict.kind != "values" or graph.watched.writes)
    ]

    def order(fault: Found) -> tuple[bool, int, bool]:
        return not fault.certain, kinds.index(_kind(fault)), fault.culprit.details.get("way") == "fake"

    unique: dict[tuple[str, str | None], Found] = {}
    for fault in sorted(faults, key=order):
        unique.setdefault((fault.culprit.stage, fault.culprit.rewrite), fault)
    return list(unique.values())


def _kind(found: Found) -> str:
    return str(found.culprit.details["kind"])


OPERATORS = Way("operators, and what takes their kernels' place", _find_operators, None, lambda _: True, most=None)


def prove_operators(ablator: Ablator, divergence: Divergence, *, certain: bool) -> Attribution | None:
    """The decomposition or fake tensor at fault, among those that are ``certain``, as all fakes are, or the rest."""
    found = [each for each in divergence.once(OPERATORS.find) if each.culprit.stage in (DECOMPOSITION, FAKE_TENSOR)]
    chosen = [each for each in found if (each.certain or each.culprit.stage == FAKE_TENSOR) == certain]
    attribution = prove_in_turn(ablator, chosen)
    if attribution is not None or not certain:
        return attribution
    first = next((each for each in chosen if each.certain), None)
    # What no compile could do without (its sizes are symbols, say) is left to eager mode with the whole call.
    return prove_at_call(ablator, first) if first is not None else None


def doubt_operators(ablator: Ablator, divergence: Divergence) -> Attribution | None:
    """An operator that is certainly wrong, though something else keeps the result wrong without it."""
    wrong = (each for each in divergence.once(OPERATORS.find) if each.certain and _kind(each) in _WRONG_ANYWHERE)
    first = next(wrong, None)
    if first is None:
        return None
    tried = first.culprit.stage in (DECOMPOSITION, FAKE_TENSOR)
    return Attribution(replace(first.culprit, necessary=False if tried else None, confidence="low"))


# Programs that raise in eager mode and not when compiled: the operator that raises, and where no check is made.


def _find_lost_check(divergence: Divergence) -> Iterator[Found]:
    """The operator that raises in eager mode, where no decomposition and no fake tensor lost its check.

    It is in the first graph of the passes, and what takes its kernel's place there does not check (``lowering``); or it
    is not, because nothing uses its result (``functionalization``, which drops it) or because dynamo's graph does not
    have it (``dynamo``). If no operator raises, the program itself does.
    """
    captured, program = divergence.once(check_captured_operators), divergence.once(check_eager_program)
    raising = next((graph for graph in captured if graph.watched.raised is not None and graph.watched.operator), None)
    watched = (raising or program).watched
    operator, place, error = watched.operator, watched.place, watched.raised
    if operator is None or place is None:
        return
    traced = raising is not None and _is_traced(raising)
    stage = DYNAMO if raising is None else LOWERING if traced else FUNCTIONALIZATION
    expected = describe_error(error) if error is not None else "an error"
    culprit = Culprit.from_operator(stage, str(operator), nodes=place.nodes, site=place.site, confidence="low")
    yield Found(replace(culprit, details={"kind": "check", "expected": expected, "got": "no error"}))


def _is_traced(checked: OperatorCheck) -> bool:
    """Return whether the operator that raised, or what is made of it, is in the first graph that the passes got."""
    operator: Any = checked.watched.operator
    record = checked.frame.find_record(JOINT_GRAPH) if checked.frame is not None else None
    if record is None or not record.snapshots:
        return checked.frame is not None
    wanted, place = (operator, find_functional_form(operator)), checked.watched.place
    for node in record.snapshots[0].graph.nodes:
        origins = {str(origin.name) for origin in node.meta.get("from_node") or ()}
        if node.target in wanted or (place is not None and place.node in origins):
            return isinstance(node.target, torch._ops.OpOverload)
    return False


LOST_CHECKS = Way(
    "eager mode's errors, and where they are lost",
    _find_lost_check,
    prove_at_call,
    lambda divergence: divergence.verdict is Verdict.ACCEPTS_INVALID,
)


# ATen kernels that are wrong on operands of one layout, and the proof: contiguous copies of them.

_MAX_TRIED = 3


def _find_kernels(divergence: Divergence) -> Iterator[Found]:
    checked = divergence.once(check_captured_operators)
    faults = [fault for graph in checked for fault in graph.kernels]
    called = {name for graph in checked for name in graph.watched.called}
    for _, record, inputs in iter_captured(divergence.trial.ledger, stage=JOINT_GRAPH):
        divergence.count.replays += 1
        watch_operators(record.snapshots[-1], inputs, _judge_compiled(called, faults), layouts_only=True)
    kind = "raises" if divergence.verdict in _FAILED else "values"
    unique: dict[tuple[str | None, str], Found] = {}
    for fault in sorted(faults, key=lambda fault: not fault.certain):
        if _kind(fault) == kind:
            unique.setdefault((fault.culprit.rewrite, fault.culprit.details["aten_kernel"]["wrong_in"]), fault)
    yield from unique.values()


def _judge_compiled(called: set[str], faults: list[Found]) -> ApplicationJudge:
    """Kernels that graphs behind AOTAutograd call, which decompositions alone lead to or eager mode as well."""

    def judge(application: Application) -> None:
        parting = measure_layouts(Pair(application, application.kernel, application.other))
        if parting is not None:
            stage = FUNCTIONALIZATION if application.name in called else DECOMPOSITION
            faults.append(word_kernel(stage, "compiled", parting))

    return judge


def _prove_contiguous(ablator: Ablator, found: Found) -> Attribution | None:
    name, side = str(found.culprit.rewrite), found.culprit.details["aten_kernel"]["wrong_in"]
    toggle = f"{name} on contiguous operands, {side}"
    if side == "eager":
        repaired = ablator.attempt_in_eager(use_contiguous_operands([name]), toggle)
    else:
        assert found.without is not None
        repaired = ablator.attempt_under(found.without, toggle=toggle)[1]
    return Attribution(replace(found.culprit, necessary=True, confidence="high")) if repaired else None


KERNELS = Way(
    "kernels on operands as they are, and on contiguous ones",
    _find_kernels,
    None,
    lambda divergence: divergence.is_of_values or divergence.verdict in _FAILED,
    most=None,
)


def prove_kernels(ablator: Ablator, divergence: Divergence) -> Attribution | None:
    """The kernel without whose fault both sides agree: it is given contiguous copies of its operands."""
    found = divergence.once(KERNELS.find)[:_MAX_TRIED]
    return next((proved for each in found if (proved := _prove_contiguous(ablator, each)) is not None), None)
