"""From observations to a decision: the verdict, refined by float64, emulated casts, repetition and promises."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from fuzzcompile.compiler.compile_changes import CASTS, KEPT_CASTS, InductorSettings, ProgramsInOrder, Templates
from fuzzcompile.compiler.session import Compilation, get_effective_setting
from fuzzcompile.compiler.target import target_process
from fuzzcompile.compiler.target.kernel_log import ProgramOrder
from fuzzcompile.compiler.target.target_process import TEMPLATES, current_target, explain_unfit_kernels
from fuzzcompile.compiler.torch_api import check_torch_same
from fuzzcompile.compiler.watch.unseen import Unseen
from fuzzcompile.diagnosis.attribution.culprit import REPLAY, SUSPICION, VALUES, Evidence
from fuzzcompile.diagnosis.attribution.steps import Step, select_semantic_steps
from fuzzcompile.diagnosis.oracle import random_streams
from fuzzcompile.diagnosis.oracle.judgement import Judgement, choose_wrong_values_verdict, have_same_bits
from fuzzcompile.diagnosis.oracle.rounding import relative_change
from fuzzcompile.diagnosis.stages.graph_ways import BOUNDARY, Boundary, find_boundaries
from fuzzcompile.diagnosis.trials.case_runs import MANY_NOISE_RUNS, NOISE_RUNS, Trial
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.model import stages as names
from fuzzcompile.model.contract import EAGER, TargetJson
from fuzzcompile.model.facts import facts
from fuzzcompile.model.stages import PRE_GRAD
from fuzzcompile.model.thresholds import (
    AS_WRONG,
    GROSS_ERROR,
    HIDDEN_ULPS,
    HIDEABLE_STEP,
    INVISIBLE_ULPS,
    NATIVE_SHARE,
    SEMANTIC_STEP,
    SLIGHT_LOSS,
)
from fuzzcompile.model.verdicts import AGREEING, Comparison, Verdict
from fuzzcompile.run.case import CompileSettings
from fuzzcompile.run.case_program import build
from fuzzcompile.run.observation import Observation
from fuzzcompile.run.runs import observe
from fuzzcompile.run.sharded_tensors import is_in_group
from fuzzcompile.run.tensors import is_inexact, list_tensors

# Promises that a case's own settings make, as far as its judged compile shows whether they are kept.

FULLGRAPH = "fullgraph: an error in place of a graph break"
"""``torch.compile``: "If True, then it will error if the entire function is not capturable into a single graph"."""


def describe_promise(setting: str) -> str:
    """Name the promise of an entry of Inductor's config, as reports do: the entry, and torch's words on it."""
    return f"{setting}: {facts().bitwise.promises[setting].strip()}"


def asks_for_casts(settings: CompileSettings) -> bool:
    """Return whether settings request eager's rounding, by name or by a numerics mode that implies it (torch 2.15)."""
    own = settings.own_config
    return own.get(CASTS) is True or str(own.get("numerics", "")) in ("strict", "strict_pointwise")


def _promises_casts(experiments: Experiments) -> bool:
    settings = experiments.case.settings
    return settings.backend == "inductor" and asks_for_casts(settings)


def find_broken_promise(experiments: Experiments, trial: Trial, verdict: Verdict) -> str | None:
    """The promise that the judged compile breaks, for a verdict that is a bug; None if it breaks none.

    Promises of equal bits take compiles of their own (`fuzzcompile.diagnosis.bitwise.promises`).
    """
    if trial.draws_others:
        return describe_promise("fallback_random")
    if verdict is Verdict.PRECISION_LOSS and _promises_casts(experiments) and trial.judgement.casts_dropped:
        return describe_promise(CASTS)
    return FULLGRAPH if verdict is Verdict.ACCEPTS_INVALID and _breaks_silently(experiments, trial) else None


def _breaks_silently(experiments: Experiments, trial: Trial) -> bool:
    """Return whether a graph broke without an error in a program that asks to be one graph."""
    settings, compiled = experiments.case.settings, trial.observation
    return bool(settings.fullgraph and compiled.failure is None and trial.ledger.graph_breaks)


@dataclass(frozen=True)
class Decision:
    """A verdict that stands, and what shows it; ``boundary`` is the change of meaning before the graph passes."""

    verdict: Verdict
    confidence: str
    detail: str = ""
    evidence: Evidence = VALUES
    boundary: Boundary | None = None


def decide(experiments: Experiments, trial: Trial, steps: Sequence[Step]) -> Decision:
    """The verdict on a compile whose rewrites moved the result by ``steps``, refined by float64 and emulated casts."""
    first, runs = trial.judgement, experiments.runs
    judged = Decision(first.verdict, first.confidence, first.detail)
    failed = trial.observation.failure
    in_backward = runs.backward_failure if first.verdict is Verdict.COMPILE_ERROR else None
    if failed is not None and in_backward is not None and failed.is_like(in_backward):
        why = "eager raises this as well, in backward, which the compiler traces ahead of time; compile under no_grad"
        return replace(judged, verdict=Verdict.INVALID, detail=why)
    if not first.verdict.is_bug and _breaks_silently(experiments, trial):
        return Decision(Verdict.ACCEPTS_INVALID, "high", f"{_BROKE}: {'; '.join(trial.ledger.graph_breaks)}")
    semantic = _list_semantic(experiments, steps)
    if first.casts_dropped and not first.verdict.is_bug and not semantic:
        return _decide_casts(experiments, judged)
    if first.verdict in (Verdict.ROUNDING, Verdict.EQUAL):
        return _decide_within_rounding(experiments, trial, semantic)
    overflows = experiments.overflows_by_casts(trial.observation, first)
    if overflows and (first.verdict is Verdict.UNSTABLE or not semantic) and _emulation_repairs(experiments):
        return replace(judged, verdict=Verdict.PRECISION_CASTS, detail=_OVERFLOWING)
    if trial.sampled is not None:  # random values: float64 draws others
        return judged
    far = first.verdict in (Verdict.MISCOMPILE, Verdict.WRONG_GRADIENT) and all(
        c.finding != "integer" for c in first.comparisons
    )
    return _decide_precision(experiments, trial, judged) if far and not semantic else judged


# What moves in float64 is wrong, unless Inductor compiles both sides: there, both have it.


def _list_semantic(experiments: Experiments, steps: Sequence[Step]) -> list[Step]:
    return [] if experiments.compares_modes else select_semantic_steps(steps)


def _list_boundaries(experiments: Experiments, trial: Trial) -> list[Boundary]:
    return [] if experiments.compares_modes else find_boundaries(trial.ledger)


# Perturbed runs are held at once: of a larger program, no more than it is judged by are made.
_MOST_HELD = 2**30
_UNSETTLED = Unseen("perturbed runs", "more of them would not fit into memory", (), "runs that decide otherwise")


def settle(experiments: Experiments, trial: Trial, steps: Sequence[Step]) -> tuple[Experiments, Trial]:
    """Experiments and trial with more perturbed runs, if these show that eager has no digits where values are wrong.

    Where rounding decides between two results, a few runs may all decide as eager mode does. What a rewrite or a
    decomposition moves in float64 too is wrong whatever they say; a move that no operator is found for may be rounding
    in float64.
    """
    wrong = trial.judgement.verdict.kind == "values" and trial.sampled is None
    if not wrong or experiments.quick:
        return experiments, trial
    moved = any(boundary.operator is not None for boundary in _list_boundaries(experiments, trial))
    if moved or _list_semantic(experiments, steps):
        return experiments, trial
    held = sum(value.value.nbytes for value in experiments.runs.eager.values if value.is_tensor)
    if held * MANY_NOISE_RUNS > _MOST_HELD:
        trial.ledger.unseen.note(_UNSETTLED)
        return experiments, trial
    longer = experiments
    for runs in range(NOISE_RUNS + 1, MANY_NOISE_RUNS + 1):
        longer = experiments.with_noise_runs(runs)
        judgement = longer.judge(trial.observation)
        if judgement.verdict is Verdict.UNSTABLE:
            return longer, replace(trial, judgement=judgement)
    if _is_like_noise(trial, longer):
        return longer, replace(trial, judgement=replace(trial.judgement, verdict=Verdict.UNSTABLE, confidence="low"))
    return experiments, trial


def _is_like_noise(trial: Trial, experiments: Experiments) -> bool:
    """Return whether what is wrong in the compiled run is as wrong in some perturbed runs of eager mode.

    Near a pole, one element of many is no number somewhere else in each run; where nearly all digits cancel, a few are
    far off. All else must agree, and where elements are no numbers, the others be no farther from float64 than eager's.
    """
    wrong = [each for each in trial.judgement.comparisons if each.finding not in AGREEING]
    if not wrong or any(each.finding not in ("nonfinite", "far") for each in wrong):
        return False
    if any(each.finding == "nonfinite" and each.rms_error_compiled > each.rms_error_eager for each in wrong):
        return False
    judged = list(experiments.judge_noise())
    far, broken = ([each for each in wrong if each.finding == finding] for finding in ("far", "nonfinite"))
    return all(_is_far_in_noise(each, judged) for each in far) and all(
        _looks_wrong_in_noise(each.name, trial.observation, experiments, judged) for each in broken
    )


def _is_far_in_noise(comparison: Comparison, noise: list[Judgement]) -> bool:
    found = (each for run in noise for each in run.comparisons if each.name == comparison.name)
    errors = sorted(each.rms_error_compiled for each in found if each.finding in ("far", "wild"))
    return len(errors) >= _LOOK_WRONG and comparison.rms_error_compiled <= AS_WRONG * errors[-_LOOK_WRONG]


def _looks_wrong_in_noise(name: str, compiled: Observation, experiments: Experiments, noise: list[Judgement]) -> bool:
    runs = (experiments.runs.eager, experiments.runs.reference, compiled, *experiments.noisy)
    values = [value.value for run in runs if (value := run.index_by_name().get(name)) is not None and value.is_tensor]
    if len(values) < len(runs) or len({value.shape for value in values}) > 1:
        return False  # a reference of other sizes, say
    eager, exact, *others = map(torch.isfinite, values)
    apart, *of_noise = (int(((other != eager) & (other != exact)).sum()) for other in others)
    found = [{each.name for each in run.comparisons if each.finding == "nonfinite"} for run in noise]
    return sum(name in names for names in found) >= _LOOK_WRONG and apart <= max(of_noise, default=0)


def parts_where_eager_is_finite(experiments: Experiments, trial: Trial) -> bool:
    """Return whether a run has NaN or infinity where eager mode has a finite value; of another shape, that it may."""
    compiled = trial.observation.index_by_name()
    for value in experiments.runs.eager.values:
        other = compiled.get(value.name)
        if other is None or not (value.is_tensor and other.is_tensor and is_inexact(value.value)):
            continue
        if value.value.shape != other.value.shape:
            return True
        if bool((value.value.isfinite() & ~other.value.isfinite()).any()):
            return True
    return False


_LOOK_WRONG = 2  # perturbed runs, of 16, in which an output has to look wrong


def _decide_within_rounding(experiments: Experiments, trial: Trial, semantic: Sequence[Step]) -> Decision:
    """Values that rounding explains natively: what float64 says of the graphs, the program and its casts."""
    first = trial.judgement
    judged, wrong = Decision(first.verdict, first.confidence, first.detail), choose_wrong_values_verdict(first)
    if semantic:
        step = semantic[0]
        why = f"{_NATIVELY} {step.label.rewrite} moves the float64 result by {step.float64:.1e} of its size"
        if first.verdict is Verdict.EQUAL and trial.sampled is None and survives_float64(experiments, first) is False:
            return replace(judged, detail=f"{why}; a later step undoes it, and compiled in float64 nothing differs")
        return Decision(wrong, first.confidence, why, evidence=REPLAY)
    boundary = None  # the largest change of meaning between dynamo's graphs and those that the passes get
    if first.verdict is not Verdict.EQUAL:
        found = _list_boundaries(experiments, trial)
        boundary = max(found, key=lambda boundary: boundary.step, default=None)
    if boundary is not None and _has_other_kernel(experiments, trial, boundary):
        why = (
            f"in float64 the captured graph and the compiler's differ by {boundary.step:.1e} of a result's size, which "
            "the values of both runs contradict: there, attention takes another kernel"
        )
        return replace(judged, confidence="low", detail=why)
    invisible = INVISIBLE_ULPS * _find_least_ulp(experiments.runs.eager)
    hidden = all(each.max_ulps_compiled <= HIDDEN_ULPS for each in first.comparisons)
    if boundary is not None and boundary.step <= invisible and hidden:
        boundary = None
    # What is smaller may be right but for the rounding of the program's own dtypes, by which perturbed runs differ.
    if boundary is not None and HIDEABLE_STEP < boundary.step <= _measure_sensitivity(experiments):
        why = (
            f"in float64 the captured graph and the compiler's differ by {boundary.step:.1e} of a result's size, as "
            "eager mode does from itself where rounding decides otherwise"
        )
        return replace(judged, confidence="low", detail=why)
    if boundary is not None:
        what = f"the decomposition of {boundary.operator}" if boundary.operator else "a decomposition"
        moved = "gradient" if boundary.gradient else "result"
        why = f"{_NATIVELY} {what} moves a float64 {moved} by {boundary.step:.1e} of its size"
        return Decision(wrong, first.confidence, why, evidence=BOUNDARY, boundary=boundary)
    if trial.sampled is None and first.suspicious and survives_float64(experiments, first):
        return Decision(wrong, "low", "small, but it survives when the program is compiled in float64", SUSPICION)
    # Elided casts are visible beyond default tolerances, if the values are within them once the casts are kept.
    visible = not all(c.within_default_tolerance for c in first.comparisons)
    if visible and experiments.runs.has_low_precision_casts and _emulation_repairs(experiments, closely=True):
        return replace(judged, verdict=Verdict.PRECISION_CASTS, detail=_ELIDED)
    return judged


def _find_least_ulp(run: Observation) -> float:
    """The relative ulp of the most precise floating or complex dtype among a run's values."""
    dtypes = [value.value.dtype for value in run.values if value.is_tensor]
    return min((torch.finfo(dtype).eps for dtype in dtypes if dtype.is_floating_point or dtype.is_complex), default=0.0)


def _measure_sensitivity(experiments: Experiments) -> float:
    """The most by which a perturbed eager run moves a result, in units of its size; of another form, or NaN, not."""
    moved = (change for run in experiments.noisy for change in _measure_changes(experiments.runs.eager, run))
    return max(filter(math.isfinite, moved), default=0.0)


def _measure_changes(before: Observation, after: Observation) -> Iterator[float]:
    """How far the values that both runs have are apart, in units of their size."""
    left, right = before.index_by_name(), after.index_by_name()
    return (relative_change(left[name].value, right[name].value) for name in left.keys() & right.keys())


def _decide_casts(experiments: Experiments, judged: Decision) -> Decision:
    """Right only without the user's casts: their verdict, if emulating the casts makes it right with them."""
    if _promises_casts(experiments):
        return replace(judged, verdict=Verdict.PRECISION_LOSS, detail=_CASTS_BROKEN)
    if not _emulation_repairs(experiments):
        return Decision(Verdict.ROUNDING, "low", "compiled keeps more precision than the program asks for")
    return replace(judged, verdict=Verdict.PRECISION_CASTS, detail=_ELIDED)


def _has_other_kernel(experiments: Experiments, trial: Trial, boundary: Boundary) -> bool:
    """Return whether attention's float64 kernel causes the change, which the native values contradict.

    No fused kernel of a GPU takes float64, and the math kernel in its place treats some rows in another way: torch 2.11
    hands cuDNN -65504 for what is masked, so that it averages a row without any key, which the math kernel makes zero.
    """
    if experiments.device.type != "cuda" or boundary.step <= HIDEABLE_STEP:
        return False
    captured = [frame.find_record(PRE_GRAD) for frame in trial.ledger.frames if frame.index == boundary.frame]
    calls = [call for record in captured if record is not None for call in record.snapshots[-1].operator_names]
    apart = max(_measure_changes(experiments.baseline, trial.observation), default=float("inf"))
    return apart < NATIVE_SHARE * boundary.step and any("scaled_dot_product" in call for call in calls)


_BROKE = "the graph breaks, although FULLGRAPH promises an error there"
_CASTS_BROKEN = "low-precision casts in the program are elided, although emulate_precision_casts promises to keep them"
_NATIVELY = "within rounding natively, but"
_OVERFLOWING = "low-precision casts in the program, which overflow, are elided; equal under emulate_precision_casts"
_ELIDED = "low-precision casts in the program are elided; equal under emulate_precision_casts"


def _emulation_repairs(experiments: Experiments, *, closely: bool = False) -> bool:
    """Return whether eager and compiled agree under ``emulate_precision_casts`` with the user's casts kept.

    ``closely``: within default tolerances.
    """
    how = replace(experiments.how.under(KEPT_CASTS), record=False)
    emulated = experiments.trial(how).judgement
    benign = emulated.verdict in (Verdict.EQUAL, Verdict.ROUNDING)
    close = not closely or all(c.within_default_tolerance for c in emulated.comparisons)
    return benign and close and not emulated.suspicious and not emulated.casts_dropped


def _decide_precision(experiments: Experiments, trial: Trial, judged: Decision) -> Decision:
    """Wrong values that no rewrite explains: lost precision, if they are right when compiled in float64."""
    first, runs = trial.judgement, experiments.runs
    gross = any(c.relative_error > GROSS_ERROR or _off_by_whole(c) for c in first.suspicious)
    floating = {v.value.dtype for v in runs.eager.values if v.is_tensor and v.value.is_floating_point()}
    if gross or floating == {torch.float64}:
        return judged
    survives = survives_float64(experiments, first)
    if survives:
        return judged
    slight = all(
        c.torch_same and c.relative_error <= SLIGHT_LOSS for c in _ask_torch(experiments, trial, first.suspicious)
    )
    if slight and _adds_up(trial):
        why = "compiled is less accurate than eager, as sums in another precision are: torch's own `same` passes"
        return Decision(Verdict.ROUNDING, "low", why)
    # Where it is not known whether it stays in float64, precision is not what is lacking.
    why = "far from float64 where eager is not; gone when compiled in float64"
    return judged if survives is None else replace(judged, verdict=Verdict.PRECISION_LOSS, detail=why)


def _adds_up(trial: Trial) -> bool:
    """Return whether a graph that the compiler made code of reduces anything, gradients too."""
    graphs = [record.snapshots[-1].graph for frame in trial.ledger.frames for record in frame.records]
    tags = (getattr(node.target, "tags", ()) for graph in graphs for node in graph.nodes)
    reduction = getattr(torch.Tag, "reduction", None)  # earlier versions have none
    return any(reduction in each for each in tags)


def compare_with_torch_same(experiments: Experiments, trial: Trial) -> tuple[Comparison, ...]:
    """The comparisons of a judged run with what ``torch._dynamo.utils.same`` says of each, if it can be asked."""
    return _ask_torch(experiments, trial, trial.judgement.comparisons)


def _ask_torch(experiments: Experiments, trial: Trial, comparisons: tuple[Comparison, ...]) -> tuple[Comparison, ...]:
    reference = experiments.runs.reference
    if not comparisons or reference.failure or experiments.case.settings.path == EAGER:
        return comparisons
    runs = [run.index_by_name() for run in (experiments.baseline, trial.observation, reference)]

    def ask(comparison: Comparison) -> bool | None:
        if comparison.finding == "same":
            return True
        values = [run[comparison.name].value for run in runs if comparison.name in run]
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        if len(tensors) != len(runs) or len({t.shape for t in tensors}) > 1 or not tensors[0].numel():
            return comparison.torch_same
        try:
            return check_torch_same(*tensors)
        except (AssertionError, RuntimeError, TypeError):  # it does not know every dtype and layout
            return comparison.torch_same

    random = trial.sampled or ()
    return tuple(c if c.name in random else replace(c, torch_same=ask(c)) for c in comparisons)


def _off_by_whole(comparison: Comparison) -> bool:
    """Return whether the worst element is whole in all runs and differs when compiled: no lack of precision."""
    values = [comparison.at.get(run) for run in ("eager", "compiled", "float64")]
    return all(value is not None and float(value).is_integer() for value in values) and values[0] != values[1]


def survives_float64(experiments: Experiments, native: Judgement) -> bool | None:
    """Return whether what is wrong ``native``ly is so, beyond rounding, when the program is compiled in float64.

    None if it cannot be run there, draws other numbers when compiled, or is wrong there alone. One compile, made once.
    """
    judged = experiments.in_float64
    if judged is None:
        return None
    found = [_is_of_float64_alone(c, native) for c in _list_float64_findings(judged)]
    return None if found and all(found) else bool(found)


def _list_float64_findings(judged: Judgement) -> list[Comparison]:
    return [
        c
        for c in judged.comparisons
        if c.finding in ("integer", "nonfinite")
        or (c.finding == "far" and not c.by_norm and c.relative_error > SEMANTIC_STEP)
    ]


def _is_of_float64_alone(found: Comparison, native: Judgement) -> bool:
    """Return whether less than a share of what is wrong in float64 is seen natively, which rounding could not hide."""
    natively = next((c for c in native.comparisons if c.name == found.name), None)
    if natively is None:
        return False
    if found.finding != "far" or natively.finding in ("integer", "nonfinite"):
        return natively.finding in AGREEING
    return natively.relative_error < NATIVE_SHARE * found.relative_error


def describe_float64_fault(experiments: Experiments, native: Judgement) -> str | None:
    """Say that the program compiled in float64 is wrong by itself, where that was seen; None where it was not."""
    judged = experiments.in_float64 if experiments.knows_float64 else None
    found = () if judged is None else _list_float64_findings(judged)
    fault = next((c for c in found if _is_of_float64_alone(c, native)), None)
    if fault is None:
        return None
    return (
        f"compiled in float64, {fault.name} is wrong by more than here: that is another bug, which a run of the "
        "program in float64 shows"
    )


def confirm(experiments: Experiments, trial: Trial, decision: Decision) -> Decision:
    """The decision, if a second compile shows the finding too or gives the same bits; else ``nondeterministic``.

    Where eager mode gives other bits the second time too, what comes and goes is no bug of the compiler.
    """
    evidence = decision.evidence
    second = experiments.trial(replace(experiments.how, record=evidence.replays, timed=True))
    if evidence.replays:
        again = evidence.shows(second)
    else:
        again = second.judgement.verdict.is_bug or bool(second.judgement.suspicious)
    if again or have_same_bits(trial.observation, second.observation):
        return decision
    both = f"{decision.verdict} in the first compile, {second.judgement.verdict} in the second"
    if not experiments.is_deterministic:
        return Decision(Verdict.UNSTABLE, "low", f"{both}; eager mode is not deterministic either")
    return Decision(Verdict.NONDETERMINISTIC, "low", both)


def find_survival(experiments: Experiments, trial: Trial, decision: Decision, *, ask: bool) -> bool | None:
    """Return whether the divergence persists in float64; None if it was not tried, or can say nothing.

    ``ask`` compiles the program in float64 if values are apart at all; otherwise only a known answer is given.
    """
    values = decision.verdict.kind == "values" or any(
        not c.within_default_tolerance for c in trial.judgement.comparisons
    )
    if trial.sampled is not None or trial.observation.failure is not None or not values:
        return None
    differing = [c for c in trial.judgement.comparisons if c.finding != "same"]
    if all(c.finding == "integer" and c.where is None for c in differing):
        return None  # values of Python alone, which no precision moves
    if not have_same_bits(experiments.runs.eager, experiments.again):
        return None  # what eager itself does not repeat differs in float64 as well
    return survives_float64(experiments, trial.judgement) if ask or experiments.knows_float64 else None


def describe_randomness(experiments: Experiments, trial: Trial, *, own_stream: Trial | None = None) -> str | None:
    """Describe how a program that draws random numbers was judged; None if it draws none.

    ``own_stream`` is the compile in which the compiler drew from a stream of its own, if there was one.
    """
    if not experiments.runs.draws:
        return None
    drawn = " and ".join(experiments.runs.draws)
    if trial is own_stream:
        text = f"the compiler's own stream (fallback_random=False), not {drawn}'s: {_SAMPLED}"
    elif trial.draws_others:
        text = f"draws from {drawn}; compiled draws other numbers, although fallback_random promises eager's own"
    elif trial.sampled is not None:
        text = f"random stream not aligned (compiled draws from {drawn} in another way than eager): {_SAMPLED}"
    else:
        text = f"draws from {drawn}; compiled draws the same numbers"
    if not experiments.runs.reference.failure and not experiments.runs.reference_draws_alike:
        text += "; the float64 run draws others, so that eager stands in for the reference"
    if own_stream is not None and own_stream is not trial:
        text += "; with the compiler's own stream (fallback_random=False) no difference either"
    return text


_SAMPLED = f"judged on support, mean, RMS, range and the gradient's mask over {random_streams.SEEDS} seeds"


# Limits of claims about a target: graphs ran on the CPU, kernels in an interpreter, nothing on a device.

# In descending order programs run one by one.
_ONE_BY_ONE = 512
_FAKE = "real code, fake device"
_NO_DEVICE = "nothing is recorded without a device"


def limit_claims(experiments: Experiments, trial: Trial, decision: Decision) -> Decision:
    """The decision, without what cannot be said of a device that is not there; as it is where there is no target.

    Rounding is the device's own, so that a loss of precision is none to report; NaN and infinities count where they
    remain in float64, as a kernel may read padding that only a device fills.
    """
    if current_target() is None:
        return decision
    if decision.verdict is Verdict.PRECISION_LOSS:
        return Decision(Verdict.ROUNDING, "low", "apart by rounding alone, of which a device makes its own")
    if decision.verdict is Verdict.NONFINITE and survives_float64(experiments, trial.judgement) is not True:
        return Decision(Verdict.UNSTABLE, "low", "not finite in one of the runs, which is not so in float64")
    return decision


def doubt_layout(experiments: Experiments, trial: Trial) -> str | None:
    """Say why other strides mean nothing: nothing has a layout, or eager mode has the same under gradients.

    None where anything but strides differs, or they mean something.
    """
    case, wrong = experiments.case, [c for c in trial.judgement.comparisons if c.finding not in AGREEING]
    made = trial.observation.index_by_name()
    if not wrong or any(each.finding != "stride" or each.name not in made for each in wrong):
        return None
    if all(sum(size != 1 for size in made[each.name].value.shape) < 2 for each in wrong):
        return "no result with other strides has two dimensions longer than 1"
    if case.differentiates or case.state is not None or is_in_group():
        return None
    program = build(case, experiments.device)
    for tensor in list_tensors(program.calls):
        if tensor.is_leaf and is_inexact(tensor):
            tensor.requires_grad_()
    recorded = observe(replace(case, grad="enabled"), program, program.model).index_by_name()
    if all(each.name in recorded and recorded[each.name].stride == made[each.name].stride for each in wrong):
        return "eager mode returns these strides itself where its inputs require gradients"
    return None


def iter_other_ways(experiments: Experiments, trial: Trial) -> Iterator[tuple[str, Compilation]]:
    """Further ways to compile for the target that a device might take, where only timing or order decides.

    Yields:
        What is decided the other way than in ``trial``, and how to compile so.
    """
    if current_target() is None or trial.observation.failure is not None:
        return
    how, log = experiments.how, trial.ledger.interpreted
    if target_process.PADDING in log.undecided:
        yield target_process.PADDING, replace(how.under(InductorSettings({"force_shape_pad": True})), screen=True)
    if any(question.startswith(TEMPLATES) for question in log.undecided) and not trial.how.screen:
        yield TEMPLATES, how.under(Templates())
    programs = [math.prod(launch.grid) for launch in log.launches]
    if 1 < max(programs, default=0) <= _ONE_BY_ONE:
        yield "order of programs", replace(how.under(ProgramsInOrder(ProgramOrder.BACKWARD)), screen=how.screen)


def make_target_notes(experiments: Experiments, trial: Trial, tried: tuple[str, ...]) -> TargetJson | None:
    """Describe how each stage was examined for the target; None without one.

    ``tried`` is what a device would decide by timing, and was compiled both ways.
    """
    target = current_target()
    if target is None:
        return None
    refused, questions = experiments.runs.uninterpreted, trial.ledger.interpreted.undecided
    if refused:
        kernels = "not looked at: " + "; ".join(f"{kernel}: {why}" for kernel, why in refused.items())
    elif trial.how.screen:
        kernels = f"not looked at: {explain_unfit_kernels() or 'screened'}"
    else:
        kernels = trial.ledger.interpreted.summarise()
    shown = ", ".join("template or library call" if question == TEMPLATES else question for question in tried)
    left = ", ".join(question for question in questions if not question.startswith(tried))
    decided = [f"both ways: {shown}"] * bool(shown) + [f"not decided: {left}"] * bool(left)
    freezing = bool(get_effective_setting(experiments.case.settings, trial.how, "freezing"))
    stages = {
        names.DYNAMO: "real code, on the CPU",
        **dict.fromkeys((names.PRE_GRAD, names.FUNCTIONALIZATION, names.DECOMPOSITION, names.JOINT_GRAPH), _FAKE),
        names.PARTITION: _FAKE if any(frame.partitions for frame in trial.ledger.frames) else "nothing to cut",
        names.FREEZING: _FAKE if freezing else "off",
        names.POST_GRAD: _FAKE,
        **dict.fromkeys((names.LOWERING, names.SCHEDULER, names.CODEGEN), _FAKE if not trial.how.screen else kernels),
        "kernels": kernels,
        "library calls": "run by the CPU's libraries",
        "autotuning": "; ".join(decided) or "nothing to decide",
        "strides": "not judged",
        names.CUDAGRAPHS: f"not looked at: {_NO_DEVICE}",
    }
    return TargetJson(device=target.name, stages=stages, confirmed_on_device=False)
