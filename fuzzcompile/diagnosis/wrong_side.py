"""Which side is wrong where values part: the compiled program, eager mode, or both.

The float64 reference calls eager mode's kernels, and shares their errors. A second reference that shares none of them
(`fuzzcompile.compiler.operators.second_reference`) tells a kernel that is wrong; gradients are measured against
differences of the forward pass as well, which calls no backward kernel at all.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from fuzzcompile.compiler.functional_run import OperatorMode
from fuzzcompile.compiler.operators.decompositions import get_operator_family
from fuzzcompile.compiler.operators.kernel_faults import (
    ContiguousFloat64,
    NativeCheck,
    SurroundingsCheck,
    call_on_copies,
    find_wrong_size,
)
from fuzzcompile.compiler.operators.second_reference import ContestedCall, SecondReference, UnopposedCall
from fuzzcompile.compiler.operators.sharded_check import ShardingFault
from fuzzcompile.diagnosis.attribution.culprit import Ablation, Attribution, Culprit, Workaround
from fuzzcompile.diagnosis.decision import Decision
from fuzzcompile.diagnosis.gradient_judgement import add_parts, iter_wrong_gradients
from fuzzcompile.diagnosis.oracle.judgement import (
    Judgement,
    Observations,
    compare,
    have_same_bits,
    judge,
    reshape_like_eager,
)
from fuzzcompile.diagnosis.stages.operator_ways import describe_kernel_call
from fuzzcompile.diagnosis.trials.case_runs import CaseRuns, Trial
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.model.contract import EAGER, WrongSide
from fuzzcompile.model.culprit_contract import DetailsJson, KernelFault
from fuzzcompile.model.stages import ATEN
from fuzzcompile.model.thresholds import DIFFERENCE_STEP, MEETS, MISSES
from fuzzcompile.model.verdicts import AGREEING, HARMLESS, Verdict
from fuzzcompile.run import runs
from fuzzcompile.run.case_program import build
from fuzzcompile.run.differences import measure_slope
from fuzzcompile.run.metrics import rms, widen
from fuzzcompile.run.observation import Observation, Value, list_gradient_leaves

# Gradients that are measured, the most different first.
_MOST_GRADIENTS = 4
# Verdicts that an eager mode which differs from run to run may hide behind.
_UNSURE = (Verdict.UNSTABLE, Verdict.ROUNDING, Verdict.NONDETERMINISTIC)


@dataclass(frozen=True)
class SideVerdict:
    """The side that is wrong, why in words, and the operator of eager mode that is at fault, if one is.

    ``proved``: a run in which the operator is repaired is right, or the compiled program's values are seen to be.
    """

    wrong: WrongSide
    why: str = ""
    call: ContestedCall | None = None
    proved: bool = True
    # Operators whose kernels both references share, and how many calls there are of which one opinion is all there is.
    unopposed: Mapping[str, UnopposedCall] = field(default_factory=dict)
    alone: int = 0
    sharding: ShardingFault | None = None  # of eager mode, on ``DTensor``s in parts

    @property
    def note(self) -> str:
        """What a reader should know of a compiled program that is said to be wrong: calls with one opinion only."""
        return f"compiled is said to be wrong: {self.why}" if self.wrong == "compiled" and self.alone else ""

    @property
    def family(self) -> str:
        """The family of eager mode's operator that is at fault, as its culprit has it, without a look at its kernel."""
        name = self.sharding.operator if self.sharding is not None else None
        return Culprit.from_operator(ATEN, name if self.call is None else str(self.call.operator)).family

    def weigh_culprit(self, culprit: Culprit | None) -> SideVerdict:
        """The side, undecided if the compiler is accused of what only the kernel that both references share denies.

        An operator of the user's is what its kernel computes.
        """
        if self.wrong != "compiled" or culprit is None:
            return self
        # Generated code has names of its own for operators (``CppOverrides.i0`` of ``aten.special_i0``).
        accused = {*culprit.family.split("+"), str(culprit.rewrite).rpartition(".")[2]}
        accused = {name.removeprefix("special_") for name in accused}
        families = {name: get_operator_family(name).removeprefix("special_") for name in self.unopposed}
        calls = (call for name, call in self.unopposed.items() if families[name] in accused)
        doubtful = next(
            (each for each in calls if each.operator.namespace == "aten" and not each.fits_derivative), None
        )
        if doubtful is None:
            return self
        return SideVerdict("undecided", f"only the kernel of {doubtful.operator} itself says that compiled is wrong")


def blame_kernel(call: ContestedCall, *, proved: bool = True) -> SideVerdict:
    """Eager mode is wrong, by the kernel of a call."""
    return SideVerdict("eager", name_contradiction(call), call, proved=proved)


def find_wrong_side(experiments: Experiments, trial: Trial, decision: Decision) -> SideVerdict | None:
    """The side that is wrong in a decision on values; None for other verdicts, and where eager is not a side."""
    if experiments.against != "eager":
        return None
    unsure = decision.verdict.kind == "values" or decision.verdict in _UNSURE
    # Compiled code that does not repeat itself may call what eager mode repeats by chance.
    if unsure and (decision.verdict is Verdict.NONDETERMINISTIC or not experiments.is_deterministic):
        unsteady = find_unsteady_kernel(experiments.runs)
        if unsteady is not None:
            right = unsteady.judge(experiments.runs, trial.observation).verdict in HARMLESS
            return SideVerdict("eager" if right else "both", name_contradiction(unsteady.call), unsteady.call)
    if decision.verdict is Verdict.UNSTABLE:
        return _find_fault_of_dtype(experiments, trial)
    if decision.verdict.kind != "values":
        return None
    if trial.sampled is not None or (experiments.runs.draws and not experiments.runs.reference_draws_alike):
        return SideVerdict("undecided", "random numbers were compared by their distribution")
    if (
        experiments.runs.eager.failure is not None
    ):  # values are none: what compiled leaves entered is not what eager does
        return SideVerdict("compiled", "both raise, and eager mode leaves what it has entered")
    second, mode = run_second(experiments.runs)
    if second.failure is not None:
        return SideVerdict("undecided", f"a second reference cannot be run: it raises {second.failure}")
    wrong = [call for call in mode.contested if call.kernel_is_wrong]
    if wrong:
        return _judge_repaired(experiments, trial, wrong)
    contradicting = [call for call in mode.contested if call.opinion.by == "place"]
    if contradicting and (side := _follow_places(experiments, trial, contradicting)) is not None:
        return side
    by_difference = _measure_gradients(experiments, trial)
    contested = [call for call in mode.contested if call.kernel_is_wrong is None and call not in contradicting]
    if by_difference is not None and by_difference.wrong == "eager" and contested:
        repaired = _judge_repaired(experiments, trial, contested)
        return replace(by_difference, call=repaired.call if repaired.wrong == "eager" else None)
    if by_difference is not None:
        formula = next(iter_wrong_gradients(experiments.runs), None) if by_difference.wrong == "eager" else None
        if formula is None:
            return by_difference
        return blame_kernel(formula.call, proved=formula.repaired is not None)
    for parted in filter(None, (contested, mode.conventions)):
        if _is_repaired(experiments, trial, parted):
            return SideVerdict("undecided", f"{name_parted(parted)}, and nothing tells which of them is right")
    why = _word_agreement(experiments, trial, second, mode)
    return SideVerdict("compiled", why, unopposed=mode.unopposed, alone=len(mode.alone))


def name_parted(calls: Sequence[ContestedCall]) -> str:
    """The operators whose kernel and another opinion part, of which none outvotes the other."""
    at_infinities = all(call.opinion.by == "convention" for call in calls)
    others = "formula" if at_infinities else "decomposition"
    names = ", ".join(dict.fromkeys(str(call.operator) for call in calls))
    return f"kernel and {others} of {names} part{' on infinities' if at_infinities else ''}"


def _word_agreement(experiments: Experiments, trial: Trial, second: Observation, mode: SecondReference) -> str:
    """The references that contradict the compiled program: two where none of what parts hangs on one opinion."""
    if not mode.alone:
        return _TWO_REFERENCES
    counted = _word_calls_alone(mode)
    apart = {c.name for c in trial.judgement.comparisons if c.finding not in AGREEING}
    moved, _ = run_second(experiments.runs, moved=mode.alone)
    if moved.failure is None and apart.isdisjoint(_list_moved(second, moved)):
        return f"{_TWO_REFERENCES}; nothing that parts depends on {counted}"
    return f"the float64 reference contradicts it, and depends on {counted}: a fault of theirs would not show"


_TWO_REFERENCES = "two references that share no kernel agree against it"


def _word_calls_alone(mode: SecondReference) -> str:
    """The number of calls of which there is one opinion only, and their operators."""
    counts = Counter(map(str, mode.alone.values()))
    total = f"{len(mode.alone)} call{'s' if len(mode.alone) > 1 else ''}"
    return f"{total} that only eager's own kernels compute ({', '.join(f'{n}x {name}' for name, n in counts.items())})"


def _list_moved(before: Observation, after: Observation) -> set[str]:
    """The names of values that are not the same in two runs, or that one of them lacks."""
    pairs = before.index_by_name(), after.index_by_name()
    shared = pairs[0].keys() & pairs[1].keys()
    same = {name for name in shared if compare(pairs[0][name], pairs[1][name], None, ()).finding == "same"}
    return (pairs[0].keys() | pairs[1].keys()) - same


def run_second(
    made: CaseRuns, repaired: Sequence[ContestedCall] = (), *, moved: Collection[int] = ()
) -> tuple[Observation, SecondReference]:
    """The second reference of a case, with another opinion's values for the ``repaired`` calls, and ``moved`` ones."""
    program = build(made.case, made.device, double=True, streamed=True)
    mode = SecondReference(
        native=program.dtype, repaired={call.number: call.elsewhere for call in repaired}, moved=moved
    )
    with runs.interpret_compiled_operators():
        return runs.observe(made.case, program, program.model, around=mode), mode


def _judge_repaired(experiments: Experiments, trial: Trial, wrong: Sequence[ContestedCall]) -> SideVerdict:
    """Eager mode is wrong if the compiled program is right beside an eager run whose kernels are repaired."""
    alone = (call for call in wrong if len(wrong) > 1 and _is_repaired(experiments, trial, [call]))
    if len(wrong) == 1 or (found := next(alone, None)) is None:
        found = wrong[0]
    said = name_contradiction(found)
    # Of a low-precision program, eager mode's own run on copies rounds as the compiled one does.
    repaired = _is_repaired(experiments, trial, wrong)
    if repaired or (found.opinion.by_layout and _find_repairing_copies(experiments, trial, found) is not None):
        return SideVerdict("eager", f"{said}; with that repaired, compiled is right", found)
    return SideVerdict("both", f"{said}; with that repaired, compiled is wrong all the same", found)


def _follow_places(experiments: Experiments, trial: Trial, calls: Sequence[ContestedCall]) -> SideVerdict | None:
    """Eager mode, if the compiled program gives for all elements what eager's kernel gives in one of two places."""
    for elsewhere in (False, True):
        repaired = [replace(call, elsewhere=elsewhere) for call in calls]
        if _is_repaired(experiments, trial, repaired):
            found = next((call for call in repaired if _is_repaired(experiments, trial, [call])), repaired[0])
            said = name_contradiction(found)
            return SideVerdict("eager", f"{said}; compiled is what it gives in one of the two everywhere", found)
    return None


def name_contradiction(call: ContestedCall) -> str:
    """What a kernel of eager mode contradicts, and on which inputs."""
    beside = {
        "formula": "its formula",
        "contiguous": "itself on contiguous copies",
        "decomposition": "its own derivative",
        "float64": "itself in float64",
        "surroundings": "itself on contiguous copies, on which alone it repeats itself",
        "convention": "its formula on infinities",
        "place": "itself on the same elements in another place of a tensor",
        "differences": "its own gradient, which differences of it miss",
    }[call.opinion.by]
    return f"eager's {call.operator} contradicts {beside} (inputs: {call.describe_inputs()})"


def _is_repaired(experiments: Experiments, trial: Trial, calls: Sequence[ContestedCall]) -> bool:
    """Return whether the compiled program is right beside the second reference with these calls repaired."""
    made = experiments.runs
    exact, _ = run_second(made, calls)
    return exact.failure is None and agree(experiments, trial.observation, reshape_like_eager(made.eager, exact), exact)


def agree(experiments: Experiments, observation: Observation, right: Observation, exact: Observation) -> bool:
    """Return whether a run gives values that are right, up to rounding; their layout is another matter.

    Values that are float64's, rounded once, have less of an error than any run: perturbed ones may stand beside it too.
    """
    moved = (_move_values(right, experiments.runs.eager, sample) for sample in experiments.noisy)
    judged = (judge_beside(experiments, each, exact, observation) for each in (right, *moved))
    return any(_is_right(each) for each in judged)


def _is_right(judgement: Judgement) -> bool:
    """Return whether nothing is wrong: where rounding decides, compiled must be as near to float64 as the right run."""
    if judgement.verdict is Verdict.UNSTABLE:
        return all((comparison.error_ratio or 0) <= 1 for comparison in judgement.comparisons)
    return judgement.verdict in (*HARMLESS, Verdict.METADATA) and not judgement.suspicious


def judge_beside(
    experiments: Experiments, right: Observation, exact: Observation, observation: Observation
) -> Judgement:
    """The judgement on a run beside values that are ``right`` in eager's place, moved as rounding moves eager's."""
    made = experiments.runs
    noisy = [_move_values(right, made.eager, sample) for sample in experiments.noisy]
    return judge(Observations(right, right, exact, noisy, observation))


def _move_values(right: Observation, eager: Observation, sample: Observation) -> Observation:
    """The values that are right, moved by what rounding moved eager's by in a perturbed run."""
    before, after = eager.index_by_name(), sample.index_by_name()

    def move(value: Value) -> Value:
        pair = before.get(value.name), after.get(value.name)
        tensors = [each.value for each in pair if each is not None and each.is_tensor]
        if len(tensors) < len(pair) or not value.is_tensor or not value.value.is_floating_point():
            return value
        own = widen(value.value)
        move = widen(tensors[1]) - widen(tensors[0])
        moved = torch.where(move.isfinite(), own + move, own)  # eager's own NaN says nothing of rounding
        return replace(value, value=moved.to(value.value.dtype))

    return replace(right, values=tuple(map(move, right.values)))


def _find_fault_of_dtype(experiments: Experiments, trial: Trial) -> SideVerdict | None:
    """Eager mode, if one of its kernels is wrong in the program's own dtype alone, where no digit of its is right."""
    made = experiments.runs
    if made.draws or trial.sampled is not None:
        return None
    second, _ = run_second(made)
    if second.failure is not None or not judge_run(experiments, second, made.eager).verdict.is_bug:
        return None
    is_right = not judge_run(experiments, second, trial.observation).verdict.is_bug
    return name_native_fault(experiments, second) if is_right else None


def judge_run(experiments: Experiments, exact: Observation, eager: Observation) -> Judgement:
    """The judgement on a run of eager mode, in the place of a compiled one, beside the reference in eager's."""
    return judge_beside(experiments, reshape_like_eager(experiments.runs.eager, exact), exact, eager)


def name_native_fault(experiments: Experiments, exact: Observation) -> SideVerdict | None:
    """The operator whose kernel is wrong in the program's own dtype: with float64's values for it, eager is right."""
    calls = sorted(_run_checked(experiments)[1].contested, key=lambda call: -call.opinion.step)
    # One call alone may not be all that is wrong. Many that are merely off may be rounding, or the signs of factors.
    gross = [call for call in calls if math.isinf(call.opinion.step)]
    operators = dict.fromkeys(call.operator for call in gross)
    alike = ([call for call in gross if call.operator is operator] for operator in operators)
    for wrong in (*([call] for call in calls), *(group for group in (*alike, gross) if len(group) > 1)):
        repaired, _ = _run_checked(experiments, {call.number for call in wrong})
        if repaired.failure is None and not judge_run(experiments, exact, repaired).verdict.is_bug:
            return blame_kernel(wrong[0])
    return None


def _run_checked(experiments: Experiments, repaired: Collection[int] = ()) -> tuple[Observation, NativeCheck]:
    case, device = experiments.case, experiments.device
    program, mode = build(case, device, streamed=True), NativeCheck(repaired)
    return runs.observe(case, program, program.model, around=mode), mode


# Gradients, against differences of the forward pass.


def _measure_gradients(experiments: Experiments, trial: Trial) -> SideVerdict | None:
    """The side whose gradients are not the limit of differences of the loss; None where that tells nothing.

    In float64, along d = (g − c) / rms(g − c) for eager's gradient g and the compiled one c of a tensor x,
    (loss(x + hd) − loss(x − hd)) / 2h is ⟨g, d⟩ or ⟨c, d⟩, which are as far apart as they can be.
    """
    made = experiments.runs
    apart = [c for c in trial.judgement.comparisons if c.finding in ("far", "nonfinite")]
    if not apart or any(c.kind != "gradient" for c in apart):
        return None
    most = sorted(apart, key=lambda c: -c.relative_error)[:_MOST_GRADIENTS]
    names = [comparison.name for comparison in most]
    wrong = weigh_gradients(made, made.reference, trial.observation, names)
    told = {
        "compiled": "differences of the forward pass agree with eager's gradients",
        "eager": "differences of the forward pass agree with the compiled gradients, not with eager's",
        "both": "differences of the forward pass agree with neither side's gradients",
    }
    return _weigh_linearity(made, trial.observation, names) if wrong is None else SideVerdict(wrong, told[wrong])


def _weigh_linearity(made: CaseRuns, compiled: Observation, names: Sequence[str]) -> SideVerdict | None:
    """Eager mode, if its backward pass is not linear in its cotangent; None where it is, as a wrong one may be too.

    That the compiled gradients are right is proved only where they are the sum of eager's for two parts of it.
    """
    if made.says_its_derivative:  # which may clip
        return None
    added, met = add_parts(made), list[bool]()
    ours, theirs = made.reference.index_by_name(), compiled.index_by_name()
    for name in names:
        pair = _pair_gradients(ours, theirs, name)
        if name not in added or pair is None or any(each.shape != added[name].shape for each in pair):
            continue
        eager, other = pair
        parted, exact = rms(eager - other), widen(added[name])
        if parted and math.isfinite(parted) and rms(eager - exact) > MISSES * parted:
            met.append(rms(other - exact) < MEETS * parted)
    if not met:
        return None
    said = "the compiled ones are" if all(met) else "nothing was found against the compiled ones"
    why = f"eager's gradients are not the sum of those for two parts of its cotangent; {said}"
    return SideVerdict("eager", why, proved=all(met))


def weigh_gradients(
    made: CaseRuns, eager: Observation, other: Observation, names: Sequence[str] | None = None
) -> WrongSide | None:
    """The side whose gradients (``names``, by default all) are wrong, ``compiled`` for ``other``'s; None if untold."""
    if made.case.state is not None or made.says_its_derivative:
        return None
    program = build(made.case, made.device)
    if len(program.calls) != 1:  # gradients add up over calls
        return None
    leaves = list_gradient_leaves(None, program, *program.calls)
    ours, theirs, told = eager.index_by_name(), other.index_by_name(), set[WrongSide]()
    gradients = [value.name for value in eager.values if value.kind == "gradient"]
    for name in gradients if names is None else names:
        pair, leaf = _pair_gradients(ours, theirs, name), leaves.get(name)
        if leaf is None or pair is None or any(each.shape != leaf.shape for each in pair):
            continue
        if leaf.numel():
            side = _measure_gradient(made, name, leaf, *pair)
            told |= set() if side is None else {side}
    return told.pop() if len(told) == 1 else "both" if told else None


def _pair_gradients(
    ours: Mapping[str, Value], theirs: Mapping[str, Value], name: str
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """A gradient on either side, widened; None where one has none."""
    eager, other = ours.get(name), theirs.get(name)
    if eager is None or other is None or not (eager.is_tensor and other.is_tensor):
        return None
    return widen(eager.value), widen(other.value)


def _measure_gradient(
    made: CaseRuns, name: str, leaf: torch.Tensor, eager: torch.Tensor, compiled: torch.Tensor
) -> WrongSide | None:
    apart = eager - compiled
    size = rms(apart)
    if not size or not math.isfinite(size):
        return None
    direction = apart / size * (rms(leaf) or 1.0)  # as long as the tensor is large
    slopes = [measure_slope(gradient, direction).value for gradient in (eager, compiled)]
    parted = abs(slopes[0] - slopes[1])
    near, nearer = (_find_slope(made, name, direction, step) for step in (DIFFERENCE_STEP, DIFFERENCE_STEP / 2))
    if not abs(near - nearer) < MEETS * parted:
        return None  # a kink or a step, or a loss too large for such differences
    misses = [abs(nearer - slope) / parted for slope in slopes]
    if misses[0] < MEETS and misses[1] > MISSES:
        return "compiled"
    if misses[1] < MEETS and misses[0] > MISSES:
        return "eager"
    return "both" if min(misses) > MISSES else None


def _find_slope(made: CaseRuns, name: str, direction: torch.Tensor, step: float) -> float:
    """The central difference of the loss along a direction of one tensor; NaN if the program cannot be run so."""
    moved = ({name: sign * step * direction} for sign in (1, -1))
    ahead, behind = (runs.measure_moved_loss(made.case, made.device, changes) for changes in moved)
    return (ahead - behind) / (2 * step)


def attribute_eager_fault(
    experiments: Experiments, trial: Trial, side: SideVerdict, attribution: Attribution
) -> Attribution:
    """The attribution with the kernel of eager mode that is at fault, the run that proves it, and a workaround.

    Where nothing was compiled, a kernel that is wrong in any layout has none.
    """
    compiled = None if experiments.case.settings.path == EAGER else Workaround(_COMPILED)
    if side.call is None:
        return replace(attribution, culprit=_word_eager_fault(side), workaround=compiled)
    by_layout, by = side.call.opinion.by_layout, side.call.opinion.by
    repair = "on contiguous operands" if by_layout else "replaced"
    repair = "differentiated by differences" if by == "differences" else repair
    ablations = [Ablation(f"eager mode with {side.call.operator} {repair}", True, None)] if side.proved else []
    copied = _find_repairing_copies(experiments, trial, side.call) if by_layout else None
    workaround = compiled if copied is None else Workaround(_word_copies(str(side.call.operator), copied))
    return replace(attribution, culprit=_word_eager_fault(side), ablations=ablations, workaround=workaround)


_COMPILED = "torch.compile(model): the compiled program is right"


def _find_repairing_copies(experiments: Experiments, trial: Trial, call: ContestedCall) -> list[str] | None:
    """The arguments of a kernel of whose contiguous copies eager mode is right; None if it is not."""
    made, copied = experiments.runs, call.misread
    if call.opinion.by == "surroundings":  # their runs were made to find it
        return copied
    program = build(made.case, made.device)
    around = OperatorMode(functools.partial(call_on_copies, call))
    repaired = runs.observe(made.case, program, program.model, around=around)
    exact, _ = run_second(made, [call])
    if repaired.failure is not None or exact.failure is not None:
        return None
    # The operator's result may lie otherwise in memory than that of operands as they are, which is no fault.
    right, observation = reshape_like_eager(made.eager, repaired), trial.observation
    if made.case.settings.path == EAGER:  # nothing was compiled that it could agree with
        right, observation = reshape_like_eager(made.eager, exact), right
    return copied if agree(experiments, observation, right, exact) else None


def _word_copies(operator: str, copied: Sequence[str]) -> str:
    """What makes the arguments contiguous, in a user's program: a gradient is reached by a hook alone."""
    gradients = [name for name in copied if name.startswith("grad")]
    ways = [] if len(gradients) == len(copied) else ["x = x.contiguous() for its input"]
    ways += (
        ["y.register_hook(lambda grad: grad.contiguous()) on the tensor y whose gradient it gets"] if gradients else []
    )
    return (
        f"in eager mode, a contiguous {' and '.join(copied)} for {operator.removesuffix('.default')}: {'; '.join(ways)}"
    )


def _word_eager_fault(side: SideVerdict) -> Culprit:
    """The kernel of eager mode that is at fault as a culprit, proved by a run in which it is repaired."""
    call = side.call
    if call is None:
        return Culprit.from_operator(ATEN, None, confidence="low")
    name, opinion = str(call.operator), call.opinion
    faults: dict[str, KernelFault] = {"differences": "gradient", "float64": "dtype"}
    wrong = None if opinion.by_layout else find_wrong_size(call)
    otherwise: KernelFault = "values" if wrong is None else "size"
    about = "layout" if opinion.by_layout else faults.get(opinion.by, otherwise)
    kernel = describe_kernel_call(name, call.arguments, opinion.step, "eager", about=about)
    if opinion.by_layout:
        kernel["misreads"] = call.misread
    if wrong is not None:
        kernel["size"], kernel["right_sizes"] = wrong.size, wrong.right
    details: DetailsJson = {"kind": "values", "aten_kernel": kernel}
    return Culprit.from_operator(ATEN, name, step=opinion.step, necessary=side.proved or None, details=details)


# Kernels because of which eager mode differs from run to run, although it draws no random numbers: one that reads
# memory beside its arguments gives what happens to lie there. The float64 reference reads memory of its own, so that no
# value of either run says anything; on contiguous copies such a kernel is steady.


@dataclass(frozen=True)
class UnsteadyKernel:
    """A call whose arguments' copies make eager mode repeat itself, and the runs on these: in float64, and eager's."""

    call: ContestedCall
    exact: Observation
    repaired: Observation

    def judge(self, made: CaseRuns, run: Observation) -> Judgement:
        """The judgement on a run beside those on copies; what else rounding does shows in how far these are apart."""
        right = reshape_like_eager(made.eager, self.exact)
        return judge(Observations(right, right, self.exact, (self.repaired,), run))


def find_unsteady_kernel(made: CaseRuns) -> UnsteadyKernel | None:
    """The kernel on copies of whose arguments eager mode repeats itself; None if no kernel alone is why it does not.

    Two runs may show the same by chance: what lies beside the arguments is chosen here.
    """
    if made.draws:
        return None
    mode = SurroundingsCheck()
    program = build(made.case, made.device, streamed=True)
    runs.observe(made.case, program, program.model, around=mode)
    for call in sorted(mode.contested, key=lambda call: -call.opinion.step):
        repaired = [_run_repaired(made, call) for _ in range(2)]
        exact = _run_exact(made, call)
        if exact.failure is None and repaired[0].failure is None and have_same_bits(*repaired):
            return UnsteadyKernel(call, exact, repaired[0])
    return None


def _run_repaired(made: CaseRuns, call: ContestedCall) -> Observation:
    program = build(made.case, made.device, streamed=True)
    mode = OperatorMode(functools.partial(call_on_copies, call))
    return runs.observe(made.case, program, program.model, around=mode)


def _run_exact(made: CaseRuns, call: ContestedCall) -> Observation:
    program = build(made.case, made.device, double=True, streamed=True)
    return runs.observe(made.case, program, program.model, around=ContiguousFloat64(call, native=program.dtype))
