"""From observations to a verdict: pure functions on runs that the caller makes.

Errors of a program that eager and compiled both refuse are alike, unlike, or of the compiler's own.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from fuzzcompile.diagnosis.oracle.rounding import compare_floats, compare_integers
from fuzzcompile.model.evidence import (
    ONLY_COMPILED,
    ONLY_EAGER,
    AliasDifference,
    EagerRefusal,
    InternalError,
    UnlikeErrors,
    ValuePair,
)
from fuzzcompile.model.signatures import normalise_message
from fuzzcompile.model.stages import DECOMPOSITION, DYNAMO, FAKE_TENSOR, find_file_stage
from fuzzcompile.model.thresholds import ROUNDING_FACTOR, VANISHING
from fuzzcompile.model.verdicts import AGREEING, FORMS, Comparison, Finding, Verdict
from fuzzcompile.run import metrics
from fuzzcompile.run.observation import Failure, Observation, Phase, Value, drop_effects
from fuzzcompile.run.raise_sites import RaisedError
from fuzzcompile.run.tensors import is_inexact

# Compare one observable of the compiled run with its counterparts in eager and in the reference.

DtypeFactor = Callable[[torch.dtype], float]

_NUMBERS = (int, float, complex)


def compare(
    eager: Value,
    compiled: Value | None,
    reference: Value | None,
    noisy: Sequence[Value],
    *,
    smallest_scale: float = 0.0,
    factor_of: DtypeFactor | None = None,
) -> Comparison:
    """Compare one observable of the eager and the compiled run with the float64 reference and perturbed eager runs.

    Where there is no reference, eager stands in for it. Below ``smallest_scale`` a value counts as exactly zero (a
    gradient that vanishes by symmetry consists of rounding only). ``factor_of`` stands for ``ROUNDING_FACTOR``, by the
    dtype of the values.
    """
    if compiled is None:
        return Comparison(eager.name, eager.kind, "missing", detail=ONLY_EAGER)
    if eager.is_rounded_number and type(eager.value) is type(compiled.value):
        eager, compiled = eager.as_tensor(), compiled.as_tensor()
        reference, noisy = reference and reference.as_tensor(), [sample.as_tensor() for sample in noisy]
    if not eager.is_tensor or not compiled.is_tensor:
        return _with_aliases(_compare_objects(eager, compiled), eager, compiled)
    expected, actual = eager.value, compiled.value
    if expected.shape != actual.shape:
        return _differ_in("shape", eager, tuple(expected.shape), tuple(actual.shape))
    comparison = _compare_tensors(eager, compiled, reference, noisy, smallest_scale, factor_of)
    if _values_agree(comparison):
        if expected.dtype != actual.dtype:
            return _differ_in("dtype", eager, expected.dtype, actual.dtype)
        if eager.form != compiled.form:
            return _differ_in("dtype", eager, eager.form or "Tensor", compiled.form or "Tensor")
        comparison = _with_aliases(comparison, eager, compiled)
        if comparison.finding == "alias":
            return comparison
        if eager.requires_grad != compiled.requires_grad:
            return _differ_in("requires_grad", eager, eager.requires_grad, compiled.requires_grad)
        if eager.kind == "output" and eager.stride != compiled.stride:
            raises = _is_contiguous(expected.shape, eager.stride) and not _is_flat(actual.shape, compiled.stride)
            return replace(_differ_in("stride", eager, eager.stride, compiled.stride), view_raises=raises)
    return comparison


def _is_contiguous(shape: Sequence[int], significant: Sequence[int]) -> bool:
    expected, following = list[int](), 1
    for size in reversed([size for size in shape if size != 1]):
        expected.insert(0, following)
        following *= size
    return list(significant) == expected


def _is_flat(shape: Sequence[int], significant: Sequence[int]) -> bool:
    """Return whether ``view(-1)`` runs: each step along a dimension is a whole row of the next one."""
    sizes = [size for size in shape if size != 1]
    inner = zip(significant, sizes[1:], significant[1:], strict=False)
    return all(stride == size * step for stride, size, step in inner)


def _values_agree(comparison: Comparison) -> bool:
    suspicion = comparison.finding == "far" and comparison.within_scaled_tolerance
    return suspicion or comparison.finding in AGREEING


def _with_aliases(comparison: Comparison, eager: Value, compiled: Value) -> Comparison:
    """The comparison, or the other values that a write into this one changes in one run only.

    Measured on torch 2.13 (inductor, CPU, some 130 forms of views, copies and no-ops, with and without gradients):
    compiled keeps eager's aliases in all but two forms. ``F.dropout`` with nothing to drop returns its input in eager
    and a copy when compiled (pytorch#115249, pytorch#195422); ``x * ones`` and ``x + zeros`` are new tensors in eager
    and the operand itself when compiled (pytorch#197893). A write into the result shows either, and both are open
    issues, so neither is a mere note.
    """
    if not _values_agree(comparison) or set(eager.aliases) == set(compiled.aliases):
        return comparison
    difference = AliasDifference.of(eager.name, eager.aliases, compiled.aliases)
    return replace(comparison, finding="alias", detail=str(difference))


def _differ_in(finding: Finding, value: Value, expected: object, actual: object) -> Comparison:
    return Comparison(value.name, value.kind, finding, detail=str(ValuePair(str(expected), str(actual))))


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def _compare_objects(eager: Value, compiled: Value) -> Comparison:
    expected, actual = eager.value, compiled.value
    # By name: a make() that defines classes defines new ones at every call.
    types, equal = [type(value).__qualname__ for value in (expected, actual)], _equal_objects(expected, actual)
    if types[0] == types[1] and equal is None:
        return Comparison(eager.name, eager.kind, "same", detail=f"{_UNCOMPARED}: {types[0]} has no equality")
    if types[0] == types[1] and equal:
        return Comparison(eager.name, eager.kind, "same")
    numbers = isinstance(expected, _NUMBERS) and isinstance(actual, _NUMBERS)
    finding: Finding = "dtype" if equal and numbers else "integer"
    shown = (_ADDRESS.sub("", f"{value!r:.80}") for value in (expected, actual))
    return _differ_in(finding, eager, *map(" ".join, zip(types, shown, strict=True)))


_UNCOMPARED = "not compared"


def _list_uncompared(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """What could not be compared, neither as an object nor by the values that it holds."""
    for comparison in comparisons:
        held = f"{comparison.name}."
        if comparison.detail.startswith(_UNCOMPARED) and not any(c.name.startswith(held) for c in comparisons):
            yield f"{comparison.name} {comparison.detail}"


def _equal_objects(expected: object, actual: object) -> bool | None:
    """Return whether two objects are equal; None if they cannot be compared."""
    if expected is actual:
        return True
    if type(expected).__eq__ is object.__eq__:
        return None
    try:
        return bool(expected == actual)
    except (TypeError, ValueError, RuntimeError):  # an __eq__ that returns arrays or tensors
        return None


def _compare_tensors(
    eager: Value,
    compiled: Value,
    reference: Value | None,
    noisy: Sequence[Value],
    smallest_scale: float,
    factor_of: DtypeFactor | None,
) -> Comparison:
    expected, actual = eager.value, compiled.value
    if metrics.have_same_values(expected, actual):
        return Comparison(eager.name, eager.kind, "same", scale=metrics.rms(expected))
    samples = [sample.value for sample in noisy if sample.is_tensor and sample.value.shape == expected.shape]
    exact = reference.value if reference is not None and reference.is_tensor else None
    if exact is None or exact.shape != expected.shape:
        exact = expected
    if _is_coarser(actual, expected):
        # The wrong dtype is a finding of its own: the values need only be as exact as that dtype can hold them.
        expected, samples = expected.to(actual.dtype), [sample.to(actual.dtype) for sample in samples]
    if not is_inexact(expected):
        return compare_integers(eager, expected, actual, exact, samples)
    factor = ROUNDING_FACTOR if factor_of is None else factor_of(expected.dtype)
    return compare_floats(eager, expected, actual, exact, samples, smallest_scale, factor)


def _is_coarser(first: torch.Tensor, second: torch.Tensor) -> bool:
    floating = first.is_floating_point() and second.is_floating_point()
    return floating and torch.finfo(first.dtype).eps > torch.finfo(second.dtype).eps


# The verdict on a run, from all its observables.


@dataclass(frozen=True)
class Observations:
    """The runs of one case that a verdict rests on; ``again`` is a second eager run.

    ``factor_of`` stands for ``ROUNDING_FACTOR`` where another way to run has eager's place.
    """

    eager: Observation
    again: Observation
    reference: Observation
    noisy: Sequence[Observation]
    compiled: Observation
    factor_of: DtypeFactor | None = None

    def without_lasting_effects(self) -> Observations:
        """The runs without what eager mode does not do twice, because the first run has done it."""
        runs = (self.eager, self.again, self.reference, self.compiled)
        eager, again, reference, compiled = drop_effects(runs, self.eager, self.again)
        noisy = drop_effects(self.noisy, self.eager, self.again)
        return replace(self, eager=eager, again=again, reference=reference, noisy=noisy, compiled=compiled)


@dataclass(frozen=True)
class Judgement:
    """A verdict on one set of observations, before any further experiment.

    ``casts_dropped`` says that the values are right only if the program's own low-precision casts are not made.
    """

    verdict: Verdict
    comparisons: tuple[Comparison, ...] = ()
    detail: str = ""
    confidence: str = "high"
    casts_dropped: bool = False
    note: str = ""  # what lowers the confidence, where neither a comparison nor the detail says it

    @property
    def suspicious(self) -> tuple[Comparison, ...]:
        """Values that are farther from the reference than rounding explains.

        Whether their meaning changed or precision was lost takes a float64 replay or a compile in float64.
        """
        return tuple(comparison for comparison in self.comparisons if comparison.finding == "far")

    @property
    def worst(self) -> Comparison | None:
        """The comparison that decides; None if nothing was compared."""
        if not self.comparisons:
            return None
        return max(self.comparisons, key=lambda c: (_SEVERITY[c.finding], c.relative_error))


_SEVERITY = {
    "same": 0, "close": 1, "wild": 2, "stride": 3, "requires_grad": 4, "dtype": 5, "alias": 6, "shape": 7, "far": 8,
    "missing": 9, "integer": 10, "nonfinite": 11,
}  # fmt: skip


def judge(runs: Observations) -> Judgement:
    """Give the first verdict on a case.

    Errors take precedence, then values (NaN and infinities, integers, floats), then aliases, then metadata.
    """
    runs = runs.without_lasting_effects()
    modes = _compare_modes(runs)
    if runs.eager.failure or runs.compiled.failure:
        judged = _judge_failures(runs.eager, runs.compiled)
        if not modes or judged.verdict is not Verdict.INVALID:
            return judged
        said = f"{judged.detail}, and leaves the process otherwise"
        return replace(judged, verdict=Verdict.MISCOMPILE, comparisons=modes, detail=said)
    if runs.eager.structure != runs.compiled.structure:
        return Judgement(
            Verdict.METADATA, detail=f"eager returns {runs.eager.structure}, compiled {runs.compiled.structure}"
        )
    comparisons = (*_compare_all(runs), *modes)
    sure = runs.reference.failure is None and have_same_bits(runs.eager, runs.again)
    uncompared = "; ".join(_list_uncompared(comparisons))
    confidence = "high" if sure and not uncompared else "low"
    return Judgement(_choose_verdict(comparisons, runs), comparisons, uncompared, confidence)


def have_same_bits(first: Observation, second: Observation) -> bool:
    """Return whether two runs show the same values bit for bit."""
    if bool(first.failure) != bool(second.failure) or len(first.values) != len(second.values):
        return False
    return all(
        compare(before, after, None, ()).finding == "same" or not before.is_tensor
        for before, after in zip(first.values, second.values, strict=True)
    )


def choose_wrong_values_verdict(judgement: Judgement) -> Verdict:
    """The verdict on values known to be wrong: ``wrong_gradient`` if nothing but gradients differs."""
    differing = [c for c in judgement.comparisons if c.finding != "same"]
    gradients = differing and all(c.kind == "gradient" for c in differing)
    return Verdict.WRONG_GRADIENT if gradients else Verdict.MISCOMPILE


def largest_error(judgement: Judgement) -> float | None:
    """The largest distance of a compiled value from the reference, for tables of ablations."""
    return max((c.max_abs_error_compiled for c in judgement.comparisons), default=None)


def _judge_failures(eager: Observation, compiled: Observation) -> Judgement:
    if eager.failure and compiled.failure:
        return _judge_both(eager.failure, compiled.failure)
    if eager.failure:
        return Judgement(Verdict.ACCEPTS_INVALID, detail=str(EagerRefusal(str(eager.failure))))
    failure = compiled.failure
    assert failure is not None
    return Judgement(_ERRORS[failure.phase], detail=str(failure))


_ERRORS: dict[Phase, Verdict] = {"compile": Verdict.COMPILE_ERROR, "run": Verdict.RUNTIME_ERROR}


def _judge_both(eager: Failure, compiled: Failure) -> Judgement:
    """The judgement on a program that both refuse: no bug, unless the compiler fails by itself."""
    relation = relate_failures(eager, compiled)
    if relation == "internal":
        return Judgement(_ERRORS[compiled.phase], detail=str(InternalError(str(compiled), str(eager))))
    same = eager.type_name == compiled.type_name
    detail = f"eager raises {eager}; compiled {'too' if same else f'raises {compiled}'}"
    if relation == "alike":
        return Judgement(Verdict.INVALID, detail=detail)
    note = str(UnlikeErrors(str(eager), str(compiled)))
    return Judgement(Verdict.INVALID, detail=detail, confidence="low", note=note)


def _compare_modes(runs: Observations) -> tuple[Comparison, ...]:
    """The switches of the process that compiled leaves otherwise than eager does, twice alike."""
    eager, again, compiled = runs.eager.modes, runs.again.modes, runs.compiled.modes
    return tuple(
        Comparison(f"{name} after the call", "mutation", "integer", detail=str(ValuePair(value, compiled[name])))
        for name, value in eager.items()
        if compiled.get(name, value) != value == again.get(name, value)
    )


def _compare_all(runs: Observations) -> list[Comparison]:
    compiled, exact = runs.compiled.index_by_name(), runs.reference.index_by_name()
    # If eager is not deterministic, its own variation is noise like any other.
    noisy = [run.index_by_name() for run in (*runs.noisy, runs.again) if run.failure is None]
    gradients = (_measure_scale(value) for value in exact.values() if value.kind == "gradient")
    vanishing = VANISHING * max(gradients, default=0.0)
    comparisons = []
    for value in runs.eager.values:
        reference = exact.get(value.name)
        zero = value.kind == "gradient" and _measure_scale(reference) < vanishing
        found = compare(
            value,
            compiled.get(value.name, _stay_as_before(value)),
            reference,
            [run[value.name] for run in noisy if value.name in run],
            smallest_scale=vanishing / VANISHING if zero else 0.0,
            factor_of=runs.factor_of,
        )
        comparisons.append(found if value.name in compiled else _agree_or_miss(found, ONLY_EAGER))
    known = {value.name for value in runs.eager.values}
    for value in (value for value in runs.compiled.values if value.name not in known):
        eager = _stay_as_before(value)
        found = compare(value if eager is None else eager, None if eager is None else value, exact.get(value.name), [])
        comparisons.append(_agree_or_miss(found, ONLY_COMPILED))
    if _list_weighed(runs.eager) == _list_weighed(runs.compiled):
        return comparisons
    # The gradients are of two losses.
    why = f"{_UNCOMPARED}: outputs of other shapes or kinds have other cotangents"
    return [Comparison(c.name, c.kind, "same", detail=why) if c.kind == "gradient" else c for c in comparisons]


def _agree_or_miss(found: Comparison, detail: str) -> Comparison:
    """The comparison of what one run alone changed with what it was before, or that the other run misses it."""
    return found if found.finding in AGREEING else Comparison(found.name, found.kind, "missing", detail=detail)


def _stay_as_before(value: Value) -> Value | None:
    """What a run has in which a floating tensor kept its values: a change may be of the size of rounding."""
    before = value.before
    return replace(value, value=before) if before is not None and before.is_floating_point() else None


def _measure_scale(value: Value | None) -> float:
    return metrics.rms(metrics.widen(value.value)) if value is not None and value.is_tensor else 0.0


def _list_weighed(run: Observation) -> list[tuple[str, torch.Size]]:
    """The outputs that the loss of a run weighs, by numbers that hang on those before them."""
    tensors = [value for value in run.values if value.kind == "output" and isinstance(value.value, torch.Tensor)]
    weighed = (value for value in tensors if is_inexact(value.value))
    return [(value.name, value.value.shape) for value in weighed]


def _choose_verdict(comparisons: Sequence[Comparison], runs: Observations) -> Verdict:
    findings = {comparison.finding for comparison in comparisons}
    if findings <= {"same"}:
        return Verdict.EQUAL
    if "nonfinite" in findings:
        return Verdict.NONFINITE
    # Farther than rounding explains, and beyond PyTorch's default tolerances as well.
    far = [c for c in comparisons if c.finding == "far" and not c.within_scaled_tolerance]
    wrong = {c.kind for c in comparisons if c.finding == "integer"} | {c.kind for c in far}
    if "output" in wrong or "mutation" in wrong:
        return Verdict.MISCOMPILE
    if wrong:
        return Verdict.WRONG_GRADIENT
    if "alias" in findings or any(c.finding == "missing" and c.kind == "mutation" for c in comparisons):
        return Verdict.ALIASING
    if "missing" in findings or findings.intersection(FORMS):
        return Verdict.METADATA
    return Verdict.UNSTABLE if "wild" in findings else Verdict.ROUNDING


# Observations with values of another run in place of their own, so that the rest can be judged.


def reshape_like_eager(eager: Observation, values: Observation) -> Observation:
    """The values of ``values`` with the dtypes, devices, strides and aliases that eager gives them."""
    return eager.adjust(values, _give_value)


def with_eager_strides(eager: Observation, compiled: Observation) -> Observation:
    """The compiled run with eager's strides, so that nothing but the rest can differ."""
    return compiled.adjust(eager, lambda value, own: replace(value, stride=own.stride) if _alike(value, own) else value)


def with_eager_values(eager: Observation, compiled: Observation, names: Sequence[str]) -> Observation:
    """The compiled run with eager's values under these names, so that the rest can be judged value by value."""

    def change(value: Value, own: Value) -> Value:
        return _give_value(value, own) if value.name in names and _alike(value, own) else value

    return compiled.adjust(eager, change)


def _give_value(form: Value, value: Value) -> Value:
    if isinstance(form.value, torch.Tensor) and isinstance(value.value, torch.Tensor):
        return replace(form, value=value.value.to(form.value.device, form.value.dtype))
    return replace(form, value=value.value)


def _alike(first: Value, second: Value) -> bool:
    if not first.is_tensor or not second.is_tensor:
        return first.is_tensor == second.is_tensor
    return bool(first.value.shape == second.value.shape)


Relation = Literal["alike", "unlike", "internal"]

# Stages that check arguments as operators of eager mode do: what is raised there refuses the program.
_REFUSING = (FAKE_TENSOR, DECOMPOSITION)
_FAKE_TENSORS = "torch/_subclasses/"  # what is asserted there is of the compiler's own
# Exceptions by which no operator refuses its arguments: a program that looks something up is at fault.
_RUN_SLIPS = ("AssertionError", "AttributeError", "KeyError", "NameError", "RecursionError", "UnboundLocalError")
_SLIPS = (*_RUN_SLIPS, "StopIteration", "ZeroDivisionError")
# Operators and device kernels raise it too, but not by a statement of Python in these folders.
_UNFINISHED, _UNFINISHED_IN = "NotImplementedError", ("torch/_dynamo/", "torch/_inductor/", "torch/_functorch/")
# Those by which operators, checks and kernels do.
_REFUSALS = ("RuntimeError", "ValueError", "IndexError", "TypeError", "NotImplementedError", "AssertionError")
# Dynamo's word for an operator that refuses fake tensors.
_REFUSED_FAKE = "TorchRuntimeError"
_COMMON = ("Exception", "BaseException", "object")
_FILE = re.compile(r"\S*/\S*")
_WORD = re.compile(r"[A-Z]?[a-z]{3,}")
# Words that messages have in common whatever they are about.
_EMPTY_WORDS = frozenset((
    "error", "expected", "expects", "with", "that", "this", "from", "have", "must", "should", "tensor", "tensors",
    "torch", "kernel", "given", "found", "invalid", "does", "only", "were", "when", "while", "input", "argument",
    "got", "but", "the", "and", "for", "not", "are", "out", "was", "has", "been",
))  # fmt: skip


def relate_failures(eager: Failure, compiled: Failure) -> Relation:
    """How the error of a compiled program relates to the one with which eager mode refuses the program.

    Alike are errors of which one is of the other's class, those that say the same, and two refusals of arguments: a
    meta function, a decomposition and a kernel check arguments in an order, and with classes, of their own. Of unlike
    errors nothing tells whether the compiled program is at fault.
    """
    if _is_internal(compiled, eager):
        return "internal"
    if _are_of_a_kind(compiled, eager) or _share_words(compiled, eager):
        return "alike"
    return "alike" if _refuses_arguments(compiled) and _refuses_arguments(eager) else "unlike"


def _is_internal(compiled: Failure, eager: Failure) -> bool:
    """Return whether an error is the compiler's own, and not the refusal of a program that eager mode refuses too."""
    if compiled.unsupported or compiled.machine:
        return False
    if compiled.phase == "run":
        return _slips_at_run(compiled, eager)
    if compiled.type_name == "InternalTorchDynamoError":  # dynamo's own word for it
        return True
    if _says_the_same(compiled, eager):
        return False  # an operator refused its arguments wherever the compiler called it
    file = compiled.raised[0][0] if compiled.raised else ""
    stage = find_file_stage(file)
    asserted = compiled.origin == "AssertionError" and compiled.worded
    if asserted and stage in _REFUSING and not file.startswith(_FAKE_TENSORS):
        return False  # so do meta functions and decompositions say what arguments they do not take
    if stage in (None, DYNAMO, *_REFUSING):
        slipped = compiled.origin in _SLIPS or _is_unfinished(compiled)
        return compiled.origin != eager.type_name and slipped
    return True


def _slips_at_run(compiled: Failure, eager: Failure) -> bool:
    """Return whether a compiled program fails in code of the compiler, or that it generated, by a slip of that."""
    site, name = compiled.site, compiled.origin or compiled.type_name
    if site is None or name == eager.type_name or _says_the_same(compiled, eager):
        return False
    stage = find_file_stage(site.file) if site.owner == "torch" else None
    own = site.owner == "generated" or stage not in (None, *_REFUSING)
    return own and (name in _RUN_SLIPS or _is_unfinished(compiled))


def _is_unfinished(failure: Failure) -> bool:
    site = failure.site
    if site is None or (failure.origin or failure.type_name) != _UNFINISHED:
        return False
    return site.how == "stated" and (site.owner == "generated" or site.file.startswith(_UNFINISHED_IN))


def _says_the_same(compiled: Failure, eager: Failure) -> bool:
    """Return whether two errors are of one type and have one message, up to numbers and names, or up to a colon."""
    if compiled.is_like(eager):
        return True
    said = normalise_message(eager.message)
    return (
        bool(said)
        and (compiled.origin or compiled.type_name) == eager.type_name
        and said in normalise_message(compiled.message)
    )


def _are_of_a_kind(compiled: Failure, eager: Failure) -> bool:
    """Return whether the class of an error, or of one that it was raised for, is eager's, a base of it or below it."""
    first, *_ = _list_errors(eager)
    chain = _list_errors(compiled)
    return any(error.name in first.classes or first.name in error.classes for error in chain)


def _list_errors(failure: Failure) -> tuple[RaisedError, ...]:
    """The error and its causes; of one that came without its classes, what is known of them by name."""
    if failure.chain:
        return failure.chain
    names = (failure.type_name, *([failure.origin] if failure.origin else []))
    return tuple(RaisedError(_list_classes(name), failure.message) for name in names)


def _list_classes(name: str) -> tuple[str, ...]:
    kind = getattr(builtins, name, None)
    if not isinstance(kind, type):
        return (name,)
    return tuple(base.__name__ for base in kind.__mro__ if base.__name__ not in _COMMON) or (name,)


def _share_words(compiled: Failure, eager: Failure) -> bool:
    """Return whether the errors say the same, or have most of their words in common."""
    said = (compiled.message, *(error.message for error in _list_errors(compiled)))
    return any(_are_alike_in_words(eager.message, text) for text in said if text)


def _are_alike_in_words(first: str, second: str) -> bool:
    """Return whether two messages are one, or have two words and half of the shorter one's in common."""
    if normalise_message(first) == normalise_message(second):
        return True
    words = [_list_words(text) for text in (first, second)]
    shared, least = words[0] & words[1], min(map(len, words))
    return bool(shared) and (words[0] == words[1] or len(shared) >= max(2, least / 2))


def _list_words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(_FILE.sub(" ", text))} - _EMPTY_WORDS


def _refuses_arguments(failure: Failure) -> bool:
    """Return whether an operator, or a check in its place, refused its arguments on purpose.

    What the program itself raises says something of its own, and so does what Python raises for an instruction in the
    compiler.
    """
    site = failure.site
    if site is None or not set(_list_errors(failure)[-1].classes) & set(_REFUSALS):
        return False
    if site.owner in ("program", "library"):
        return site.how != "stated"  # operators are called, or stand between operands
    if site.how == "implied":
        return False
    stage = find_file_stage(site.file)
    if failure.phase == "run":
        return site.how == "called" or site.owner == "generated" or stage in (None, *_REFUSING)
    return failure.type_name == _REFUSED_FAKE or stage in (None, *_REFUSING)
