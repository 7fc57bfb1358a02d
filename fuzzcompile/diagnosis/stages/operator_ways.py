"""Operators of a program, each beside what the compiler takes in its kernel's place, and the proofs that they share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, cast

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.compile_changes import (
    TRACE_ONLY,
    CompileChange,
    ContiguousOperands,
    MetadataFromKernel,
    Undecomposed,
)
from fuzzcompile.compiler.operators.decompositions import (
    find_functional_form,
    leaves_unwritten,
    list_forms_called,
    read_decomposition_table,
)
from fuzzcompile.compiler.operators.operator_application import (
    CONTIGUOUS,
    Application,
    Arguments,
    OperatorOutcome,
    Outcomes,
    find_fake_function,
    use_contiguous_operands,
)
from fuzzcompile.compiler.operators.operator_crossref import Crossref, Where
from fuzzcompile.compiler.torch_config import patch_config
from fuzzcompile.compiler.watch.compiler_errors import list_raise_frames
from fuzzcompile.compiler.watch.ledger import Frame, Ledger
from fuzzcompile.compiler.watch.recorder import CAPTURED_CALLS, is_tangent
from fuzzcompile.compiler.watch.rule_labels import find_source
from fuzzcompile.diagnosis.attribution.culprit import Ablator, Attribution, Culprit, Divergence, frames_to_json
from fuzzcompile.diagnosis.attribution.steps import find_inputs, list_placeholders
from fuzzcompile.diagnosis.kernels.kernel_proofs import with_aten
from fuzzcompile.diagnosis.oracle import rounding
from fuzzcompile.diagnosis.stages.ways import Found, Pair, PartedStep, Way, iter_captured, prove_at_call, prove_in_turn
from fuzzcompile.model.culprit_contract import AtenKernelJson, DetailsJson, KernelFault, KernelInputJson, spell_operator
from fuzzcompile.model.stages import DECOMPOSITION, DYNAMO, FAKE_TENSOR, FUNCTIONALIZATION, JOINT_GRAPH, LOWERING
from fuzzcompile.model.thresholds import NOISE_SEEDS, OTHER_NUMBERS, ROUNDING_FACTOR, SEMANTIC_STEP
from fuzzcompile.model.verdicts import ERRORS, HARMLESS, VALUES, Verdict
from fuzzcompile.run import metrics, runs
from fuzzcompile.run.case_program import build
from fuzzcompile.run.code_files import iter_program_lines
from fuzzcompile.run.device import describe_run_error
from fuzzcompile.run.metrics import have_same_values
from fuzzcompile.run.ranks import require_one_process
from fuzzcompile.run.tensors import densify, is_inexact, list_significant_strides

# What is the matter: "check" that the kernel raises and the other way does not, "raises" the reverse; "numbers" that
# both draw from one state and draw other random numbers.
Kind = Literal["values", "numbers", "dtype", "shape", "device", "stride", "alias", "mutation", "check", "raises"]
OperatorStep = PartedStep[Application]
Noise = Callable[[Outcomes], float]


def measure_operator(pair: Pair[Application]) -> OperatorStep | None:
    """Tell an operator that is something else in another way than by its kernel, on the program's own values."""
    application = pair.at
    kernel, other = application.kernel, application.other
    if kernel.error is not None or other.error is not None:
        return _measure_errors(pair)
    fake = application.way == "fake"
    if fake and (written := _find_undeclared_write(application)) is not None:
        return PartedStep(pair, "mutation", None, f"argument {written} as it was", f"argument {written} written to")
    if len(kernel.results) != len(other.results):
        return PartedStep(pair, "shape", None, f"{len(kernel.results)} results", f"{len(other.results)} results")
    kinds: tuple[Kind, ...] = ("shape", "device", "dtype", "alias", "stride")
    forms = {kind: difference for kind in kinds if (difference := find_difference(kind, kernel, other)) is not None}
    if not fake and not forms.keys() & {"shape", "device"}:
        values = _measure_mutations(pair) or _measure_results(pair)
        if values is not None and (values.certain or "dtype" not in forms):
            return values
    kind = next(iter(forms), None)
    return PartedStep(pair, kind, None, *forms[kind]) if kind is not None else None


def word_operator(parting: OperatorStep) -> Found:
    """The operator as a culprit, in the stage that computes it otherwise, and the compile without that."""
    application = parting.pair.at
    fake, error, place = application.way == "fake", application.other.error, application.place
    function = find_fake_function(application.operator) if fake else application.function
    stage, without = FAKE_TENSOR, cast("CompileChange | None", MetadataFromKernel((application.name,)))
    if not fake:
        stage, without = DECOMPOSITION, Undecomposed(list_forms_called(application.operator))
    elif parting.kind == "mutation":
        stage, without = FUNCTIONALIZATION, None
    details: DetailsJson = {
        "kind": parting.kind,
        "way": application.way,
        "backward": place.backward,
        "inside": list(place.inside),
        "expected": parting.expected,
        "got": parting.got,
    }
    if parting.kind == "raises" and error is not None:
        details["raised"] = frames_to_json(list_raise_frames(error))
    culprit = Culprit.from_operator(stage, application.name, find_source(function), nodes=place.nodes, site=place.site)
    return Found(replace(culprit, step=parting.step, details=details), without, certain=parting.certain)


def _find_undeclared_write(application: Application) -> int | None:
    """An argument that an operator writes to though its schema says that it writes to none: no tracing can follow."""
    if any(argument.alias_info is not None for argument in application.operator._schema.arguments):
        return None
    initial = pytree.tree_leaves(application.initial_arguments)
    for at, (was, now) in enumerate(zip(initial, application.kernel.arguments, strict=False)):
        tensors = isinstance(was, torch.Tensor) and isinstance(now, torch.Tensor)
        if tensors and was.shape == now.shape and not have_same_values(was, now):
            return at
    return None


def _measure_errors(pair: Pair[Application]) -> OperatorStep | None:
    application = pair.at
    kernel, other = application.kernel.error, application.other.error
    if kernel is not None and other is None:
        # Fake tensors have no values to check.
        told = application.way != "fake" or application.refuses_always()
        return PartedStep(pair, "check", None, describe_run_error(kernel), "no error") if told else None
    if kernel is not None or other is None or isinstance(other, NotImplementedError):
        return None
    return PartedStep(pair, "raises", None, "no error", describe_run_error(other))


def find_difference(kind: Kind, right: OperatorOutcome, other: OperatorOutcome) -> tuple[str, str] | None:
    """The first result that differs in ``kind`` (no values), as it should be and as it is; None if none does."""
    if kind == "alias":
        differ = right.aliases != other.aliases
        return (_describe_aliases(right), _describe_aliases(other)) if differ else None
    property_of = _PROPERTIES[kind]
    for index, (a, b) in enumerate(zip(right.results, other.results, strict=True)):
        both = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        if both and property_of(a) != property_of(b):
            return f"result {index}: {property_of(a)}", f"result {index}: {property_of(b)}"
    return None


_PROPERTIES: dict[Kind, Callable[[torch.Tensor], object]] = {
    "shape": lambda tensor: tuple(int(size) for size in tensor.shape),
    "device": lambda tensor: str(tensor.device),
    "dtype": lambda tensor: str(tensor.dtype),
    "stride": list_significant_strides,
}


def _describe_aliases(outcome: OperatorOutcome) -> str:
    if not outcome.aliases:
        return "shares no memory with its arguments"
    return ", ".join(f"result {i} shares memory with argument {j}" for i, j in sorted(outcome.aliases))


def _measure_mutations(pair: Pair[Application]) -> OperatorStep | None:
    application = pair.at
    step = rounding.largest_change(application.kernel.arguments, application.other.arguments)
    if step and application.operator._schema.is_mutable:
        exact = application.compute_in_float64()
        step = step if exact is None else rounding.largest_change(exact[0].arguments, exact[1].arguments)
        step = step if step > SEMANTIC_STEP else 0.0
    said = "arguments as the kernel leaves them", f"off by {step:.1e}"
    return PartedStep(pair, "mutation", step, *said) if step else None


def _measure_results(pair: Pair[Application]) -> OperatorStep | None:
    application = pair.at
    kernel, other = application.kernel, application.other
    if application.draws:
        # Other random numbers from the same state are a fault only where eager's own are promised.
        step = rounding.largest_change(kernel.results, other.results)
        if step > OTHER_NUMBERS:
            return PartedStep(pair, "numbers", step, *find_worst_element(kernel, other))
        if kernel.state is None or other.state is None or torch.equal(kernel.state, other.state):
            return None
        return PartedStep(pair, "numbers", None, *ANOTHER_STATE)
    if leaves_unwritten(application.operator):
        return None  # what was not written is anything
    return measure_outcomes(pair, kernel, other, application.compute_in_float64(), partial(_measure_noise, application))


# Of two ways that draw the same numbers from one state: the next operator that draws gets others.
ANOTHER_STATE = "the state of the generator after it", "another state"


def measure_outcomes(
    pair: Pair[Any],
    right: OperatorOutcome,
    other: OperatorOutcome,
    exact: Outcomes | None,
    noise: Noise = lambda _: 0.0,
) -> PartedStep[Any] | None:
    """Tell values that are other ones in one of two ways to compute the same; None where rounding may explain them.

    ``right`` is expected, ``other`` in doubt, and ``exact`` both in float64, if that can be run; ``noise`` says how far
    one ulp of float64 moves these. The step is certain where float64 or exact arithmetic proves it.
    """
    native = rounding.largest_change(right.results, other.results)
    step = 0.0 if exact is None else rounding.largest_change(exact[0].results, exact[1].results)
    if exact is not None and step > SEMANTIC_STEP and rounding.changes_meaning(step, noise(exact)):
        return PartedStep(pair, "values", step, *find_worst_element(*exact))
    if not native:
        return None
    inexact = has_floats([*right.results, *right.arguments])
    if inexact and not _is_far_from(right, other, exact[0] if exact is not None else right):
        return None
    return PartedStep(pair, "values", native, *find_worst_element(right, other), certain=not inexact)


def _measure_noise(application: Application, exact: Outcomes) -> float:
    moved = [run for seed in NOISE_SEEDS if (run := application.compute_in_float64(noise=seed)) is not None]
    pairs = (pair for run in moved for pair in zip(exact, run, strict=True))
    return max((rounding.largest_change(at.results, after.results) for at, after in pairs), default=0.0)


def _is_far_from(kernel: OperatorOutcome, other: OperatorOutcome, exact: OperatorOutcome) -> bool:
    for right, value, truth in zip(kernel.results, other.results, exact.results, strict=False):
        comparable = rounding.are_comparable(right, value) and rounding.are_comparable(right, truth)
        if comparable and right.dtype == value.dtype:
            limit = ROUNDING_FACTOR * metrics.largest_distance(right, truth)
            if metrics.largest_distance(value, truth) > limit and not metrics.within_default_tolerance(value, right):
                return True
    return False


def find_worst_element(kernel: OperatorOutcome, other: OperatorOutcome) -> tuple[str, str]:
    """The element that differs most, as it is in both."""
    most, shown = -1.0, ("", "")
    for index, (a, b) in enumerate(zip(kernel.results, other.results, strict=False)):
        if not rounding.are_comparable(a, b) or not a.numel():
            continue
        a, b = densify(a), densify(b)
        apart = metrics.distance(a, b)
        if float(apart.max()) > most:
            most = float(apart.max())
            where, values = metrics.find_worst(apart, kernel=a.cpu(), other=b.cpu())
            place = f"result {index}[{', '.join(map(str, where or ()))}]"
            shown = f"{place} = {values['kernel']}", f"{place} = {values['other']}"
    return shown


def has_floats(values: Sequence[Any]) -> bool:
    """Return whether some tensor among the values is floating or complex."""
    return any(isinstance(v, torch.Tensor) and is_inexact(v) for v in values)


# A kernel that gives other values on operands of one layout than on contiguous copies of them. Where eager mode alone
# hands it such operands, eager mode is wrong and the compiled program right; where only the compiled program does, the
# reverse. Either way the kernel is at fault, not the stage in which both sides part.

Side = Literal["eager", "compiled"]


def measure_layouts(pair: Pair[Application]) -> OperatorStep | None:
    """Tell a kernel that is something else on its operands as they are than on contiguous ones."""
    application = pair.at
    given, plain = application.kernel, application.other
    if plain.error is not None or not ((plain.results and given.results) or given.error):
        return None
    if given.error is not None:
        return PartedStep(pair, "raises", None, "no error", describe_run_error(given.error))
    floats = [place for place, result in enumerate(plain.results) if has_floats([result])]
    if not floats and has_floats(plain.arguments):
        return None  # an index: of equal values any place may be given
    # Of equal values any place may be given: floating results alone count where there are any.
    kept = floats or range(len(plain.results))

    def keep(outcome: OperatorOutcome) -> OperatorOutcome:
        return replace(outcome, results=tuple(outcome.results[place] for place in kept if place < len(outcome.results)))

    given, plain = keep(given), keep(plain)
    exact = application.compute_in_float64() if rounding.largest_change(given.results, plain.results) else None
    if exact is None:
        return measure_outcomes(pair, plain, given, None)
    noise = partial(_measure_noise, application, exact)
    return measure_outcomes(pair, plain, given, (keep(exact[1]), keep(exact[0])), lambda _: noise())


def word_kernel(stage: str, wrong_in: Side, parting: OperatorStep) -> Found:
    """The kernel as a culprit of the stage in which both sides part, with its call as Python."""
    application = parting.pair.at
    kernel = describe_kernel_call(application.name, application.initial_arguments, parting.step, wrong_in)
    found = word_operator(parting)
    details: DetailsJson = {**found.culprit.details, "aten_kernel": kernel}
    culprit = replace(found.culprit, stage=stage, source=None, line=None, confidence="low", details=details)
    return Found(culprit, ContiguousOperands((application.name,)), certain=parting.certain)


def describe_kernel_call(
    operator: str, arguments: Arguments, step: float | None, wrong_in: Side, *, about: KernelFault = "layout"
) -> AtenKernelJson:
    """A call of a kernel that is wrong by ``step`` of its result's size, as Python, and the tensors that it gets."""
    inputs = list[KernelInputJson]()

    def name_input(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        shape, strides, dtype = list(value.shape), list(value.stride()), str(value.dtype).removeprefix("torch.")
        described: KernelInputJson = {"shape": shape, "stride": strides, "dtype": dtype}
        if not value.is_floating_point() and not value.is_complex() and value.numel():
            described["below"] = int(value.max()) + 1
        inputs.append(described)
        return _InputName(f"inputs[{len(inputs) - 1}]")

    args, kwargs = pytree.tree_map(name_input, arguments)
    parts = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
    call = f"{spell_operator(operator)}({', '.join(parts)})"
    return {
        "operator": operator, "call": call, "inputs": inputs, "differs_by": step, "wrong_in": wrong_in, "about": about,
    }  # fmt: skip


class _InputName(str):
    __slots__ = ()
    __repr__ = str.__str__


# Stands between a call and the program (`iter_program_lines`).
__watches_calls__ = True


class OperatorCheck:
    """Faults of the operators of one frame, or of the program without one, and of kernels on other layouts.

    ``watched`` runs the operators for so many ``seconds``.
    """

    def __init__(self, frame: Frame | None, seconds: float, where: Where | None = None) -> None:
        self.frame = frame
        self.faults: list[Found] = []
        self.kernels: list[Found] = []
        self.watched = Crossref(self._judge, seconds=seconds, where=where)

    def _judge(self, application: Application) -> None:
        pair = Pair(application, application.kernel, application.other)
        if application.way == CONTIGUOUS:
            if (parting := measure_layouts(pair)) is not None:
                decomposed = application.operator in read_decomposition_table()
                self.kernels.append(word_kernel(DECOMPOSITION if decomposed else LOWERING, "eager", parting))
        elif (parting := measure_operator(pair)) is not None:
            self.faults.append(word_operator(parting))


def check_operators(
    ledger: Ledger, config: Mapping[str, Any] | None = None, *, seconds: float = 20.0
) -> list[OperatorCheck]:
    """Run dynamo's graphs and compare every operator with what the compiler takes in its place.

    ``config`` are the entries of Inductor's config that the program was compiled under; operators that are not reached
    in so many ``seconds`` are not compared.
    """
    end, graphs = time.monotonic() + seconds, list[OperatorCheck]()
    with patch_config("inductor", config if config is not None else {"fallback_random": True}):
        for frame in ledger.frames:
            for number, (_, record, inputs) in enumerate(iter_captured(Ledger(frames=[frame]), calls=CAPTURED_CALLS)):
                left = end - time.monotonic()
                if left > 0:
                    graphs.append(OperatorCheck(frame, left))
                    graphs[-1].watched.run_graph(record.snapshots[-1], inputs, _find_tangents(frame, number))
    return graphs


def _find_tangents(frame: Frame, number: int) -> Sequence[Any] | None:
    """The gradients that the backward pass got; none of them where it never ran, None where there is none."""
    joint = frame.find_record(JOINT_GRAPH, "joint")
    if joint is None or not joint.snapshots:
        return None
    inputs = find_inputs(frame, joint, number)
    named = zip(list_placeholders(joint.snapshots[0]), inputs or (), strict=False)
    return [value for node, value in named if is_tangent(node)]


def check_captured_operators(divergence: Divergence) -> list[OperatorCheck]:
    """The operators of the captured graphs; of a program that cannot be captured, those that it calls in eager mode."""
    checked = check_operators(divergence.trial.ledger, divergence.config, seconds=divergence.seconds)
    failure = divergence.trial.observation.failure
    if failure is not None and failure.stage == DYNAMO:
        checked.append(divergence.once(check_eager_program))
    return checked


def check_eager_program(divergence: Divergence) -> OperatorCheck:
    """The operators that the program calls in eager mode, as it is: one of which there may be no graph.

    Raises:
        NotOnAllRanks: other processes run the program too, and operators that are run once more call collectives.
    """
    require_one_process("a look at the operators of eager mode")
    case = divergence.experiments.case
    program = build(case, divergence.experiments.device)
    with patch_config("inductor", divergence.config):
        checked = OperatorCheck(None, divergence.seconds, lambda: next(iter_program_lines(), None))
        checked.watched.run_program(partial(runs.observe, case, program, program.model))
    return checked


# Kinds of fault that can show as a kind of verdict, most telling first. What raises with the program's values in Python
# may go unchecked in compiled code: an index beyond its tensor reads what lies there.
_VALUES = ("values", "numbers", "mutation", "shape", "dtype", "alias", "raises")
_ERRORS = ("raises", "shape", "dtype", "device", "stride", "alias")
_SHOWS = {
    **dict.fromkeys((*VALUES, *HARMLESS), _VALUES),
    Verdict.METADATA: ("dtype", "shape", "device", "stride", "values", "mutation", "alias"),
    Verdict.ALIASING: ("alias", "mutation", "values"),
    Verdict.COMPILE_ERROR: _ERRORS,
    Verdict.RUNTIME_ERROR: (*_ERRORS, "mutation", "values"),
    Verdict.ACCEPTS_INVALID: ("check",),
}
# Kinds of fault that are wrong whatever reads them.
_WRONG_ANYWHERE = ("values", "mutation", "check", "raises")


def _find_operators(divergence: Divergence) -> list[Found]:
    """The operators whose fault can show as the verdict, one finding for each, most telling first.

    Proved faults come before those that rounding may explain, then kinds as they show in such a verdict, then the order
    of execution. For a lost error, a decomposition comes before fake tensors: these see no values, and where an
    operator is not decomposed its kernel still checks.
    """
    verdict, program_runs = divergence.verdict, divergence.experiments.runs
    kinds = list(_SHOWS.get(verdict, ()))
    if program_runs.draws and not program_runs.promises_eager_numbers and "numbers" in kinds:
        kinds.remove("numbers")  # a program that draws nothing has no other numbers to show
    shows_memory = verdict.kind != "values" or verdict is Verdict.WRONG_GRADIENT
    faults = [
        fault
        for graph in divergence.once(check_captured_operators)
        for fault in graph.faults
        # Shared memory shows in values only if something is written to. Where a result is the argument itself in eager
        # mode alone, the argument lacks that result's gradient.
        if _kind(fault) in kinds and (_kind(fault) != "alias" or shows_memory or graph.watched.writes)
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


def prove_operators(ablator: Ablator, *, certain: bool) -> Attribution | None:
    """The decomposition or fake tensor at fault, among those that are ``certain``, as all fakes are, or the rest."""
    found = [each for each in ablator.once(OPERATORS.find) if each.culprit.stage in (DECOMPOSITION, FAKE_TENSOR)]
    chosen = [each for each in found if (each.certain or each.culprit.stage == FAKE_TENSOR) == certain]
    if any(_kind(each) == "check" and each.culprit.stage == FAKE_TENSOR for each in chosen):
        # Few fake tensors check what a kernel does: where that still runs behind them, its check is lost later.
        checked = ablator.is_repaired_by(TRACE_ONLY, record=False)
        chosen = [each for each in chosen if each.culprit.stage != FAKE_TENSOR or not checked]
    attribution = prove_in_turn(ablator, chosen) or (_prove_beside_lowering(ablator, chosen) if certain else None)
    if attribution is not None or not certain:
        return attribution
    fakes = [each.culprit for each in chosen if each.certain and each.culprit.stage == FAKE_TENSOR]
    first = next((each for each in chosen if each.certain and _tells_form(each, fakes)), None)
    # What no compile could do without (its sizes are symbols, say) is left to eager mode with the whole call.
    return prove_at_call(ablator, first) if first is not None else None


def _prove_beside_lowering(ablator: Ablator, certain: Sequence[Found]) -> Attribution | None:
    """The first decomposition that is wrong, where the lowering of what it decomposes repeats its fault."""
    first = next((each for each in certain if isinstance(each.without, Undecomposed)), None)
    if first is None or not isinstance(first.without, Undecomposed):
        return None
    repaired = ablator.attempt_under(first.without, with_aten(first.without.names))[1]
    return Attribution(replace(first.culprit, necessary=True)) if repaired else None


def _tells_form(found: Found, fakes: Sequence[Culprit]) -> bool:
    """Return whether it is a fake tensor's rule, or the decomposition that one is."""
    own = found.culprit
    return any((own.rewrite, own.source, own.line) == (fake.rewrite, fake.source, fake.line) for fake in fakes)


def doubt_operators(ablator: Ablator) -> Attribution | None:
    """An operator that is certainly wrong, though something else keeps the result wrong without it."""
    wrong = (each for each in ablator.once(OPERATORS.find) if each.certain and _kind(each) in _WRONG_ANYWHERE)
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
    expected = describe_run_error(error) if error is not None else "an error"
    culprit = Culprit.from_operator(stage, str(operator), nodes=place.nodes, site=place.site, confidence="low")
    yield Found(replace(culprit, details={"kind": "check", "expected": expected, "got": "no error"}))


def _is_traced(checked: OperatorCheck) -> bool:
    operator: Any = checked.watched.operator
    record = checked.frame.find_record(JOINT_GRAPH) if checked.frame is not None else None
    if record is None or not record.snapshots:
        return checked.frame is not None
    wanted, place = (operator, find_functional_form(operator)), checked.watched.place
    for node in record.snapshots[0].graph.nodes:
        origins = {str(origin.name) for origin in node.meta.get("from_node") or ()}
        if node.target in wanted or (place is not None and origins.intersection(place.nodes)):
            return isinstance(node.target, torch._ops.OpOverload)
    return False


LOST_CHECKS = Way(
    "eager mode's errors, and where they are lost",
    _find_lost_check,
    prove_at_call,
    lambda divergence: divergence.verdict is Verdict.ACCEPTS_INVALID,
)


_MAX_TRIED = 3


def _find_kernels(divergence: Divergence) -> Iterator[Found]:
    checked = divergence.once(check_captured_operators)
    faults = [fault for graph in checked for fault in graph.kernels]
    called = {name for graph in checked for name in graph.watched.called}

    def judge(application: Application) -> None:
        parting = measure_layouts(Pair(application, application.kernel, application.other))
        if parting is not None:
            stage = FUNCTIONALIZATION if application.name in called else DECOMPOSITION
            faults.append(word_kernel(stage, "compiled", parting))

    for _, record, inputs in iter_captured(divergence.trial.ledger, stage=JOINT_GRAPH):
        Crossref(judge, layouts_only=True).run_graph(record.snapshots[-1], inputs)
    kind = "raises" if divergence.verdict in ERRORS else "values"
    unique: dict[tuple[str | None, str], Found] = {}
    for fault in sorted(faults, key=lambda fault: not fault.certain):
        if _kind(fault) == kind:
            unique.setdefault((fault.culprit.rewrite, fault.culprit.details["aten_kernel"]["wrong_in"]), fault)
    yield from unique.values()


KERNELS = Way(
    "kernels on operands as they are, and on contiguous ones",
    _find_kernels,
    None,
    lambda divergence: divergence.is_of_values or divergence.verdict in ERRORS,
    most=None,
)


def prove_kernels(ablator: Ablator) -> Attribution | None:
    """The kernel without whose fault both sides agree: it is given contiguous copies of its operands."""
    for found in ablator.once(KERNELS.find)[:_MAX_TRIED]:
        name, side = str(found.culprit.rewrite), found.culprit.details["aten_kernel"]["wrong_in"]
        toggle = f"{name} on contiguous operands, {side}"
        if side == "eager":
            repaired = ablator.attempt_in_eager(use_contiguous_operands([name]), toggle)
        else:
            repaired = ablator.attempt_under(ContiguousOperands((name,)), toggle=toggle)[1]
        if repaired:
            return Attribution(replace(found.culprit, necessary=True, confidence="high"))
    return None
