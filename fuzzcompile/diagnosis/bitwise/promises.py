"""Promises of equal bits, judged for ``--contract bitwise`` or for the case's own settings."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from fuzzcompile.compiler.graph_text import find_changed_nodes
from fuzzcompile.compiler.kernels.lowering_control import Control, get_operator_name
from fuzzcompile.compiler.operators.decompositions import apply_config, get_operator_family
from fuzzcompile.compiler.operators.operator_application import Application
from fuzzcompile.compiler.operators.operator_crossref import watch_operators
from fuzzcompile.compiler.watch.ledger import (
    Frame,
    Ledger,
    LoweredGraph,
    Snapshot,
    format_reason,
    format_unseen,
    gather_unseen,
    get_gathered,
)
from fuzzcompile.compiler.watch.rule_labels import find_location, find_source
from fuzzcompile.diagnosis.attribution.culprit import Ablation
from fuzzcompile.diagnosis.attribution.steps import ReplayCount, Step, find_inputs, measure_steps
from fuzzcompile.diagnosis.bitwise import invariance
from fuzzcompile.diagnosis.bitwise.bit_difference import (
    BitDifference,
    Parting,
    PromiseAnswer,
    compare_bits,
    compare_runs,
    sort_partings,
    why_open_family,
)
from fuzzcompile.diagnosis.bitwise.execution import (
    SHOWN,
    BitwiseOutOfTime,
    Execution,
    StrictCompiler,
    describe_promises,
    list_replaced_settings,
    strict_settings,
)
from fuzzcompile.diagnosis.bitwise.kernel_bits import CallPartings, make_parting
from fuzzcompile.diagnosis.decision import asks_for_casts, describe_promise
from fuzzcompile.diagnosis.kernels.kernel_culprits import find_kernel
from fuzzcompile.diagnosis.triage_report import TriageReport
from fuzzcompile.model.contract import ContractJson
from fuzzcompile.model.facts import facts
from fuzzcompile.model.stages import CODEGEN, DECOMPOSITION, POST_GRAD, PRE_GRAD
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.run.case import Case
from fuzzcompile.run.observation import Observation

# The promise that compiled equals eager bit for bit: partings in graphs, lowerings and kernels.

# Partings before lowering: decompositions and rewrites, replayed on the program's own values.

_REWRITTEN = "torch promises nothing of rewrites that reorder arithmetic"


def find_graph_partings(ledger: Ledger, count: ReplayCount, *, seconds: float) -> list[Parting]:
    """Decompositions and rewrites that moved any bit.

    Args:
        ledger: of the watched compile.
        count: counts the replays.
        seconds: how long operators are compared beside their decompositions, at most.
    """
    found = [parting for step in measure_steps(ledger, count) if (parting := _make_rewrite_parting(step)) is not None]
    with apply_config(strict_settings()):
        for frame in ledger.frames:
            found += _find_decomposition_partings(frame, seconds)
    return found


def _make_rewrite_parting(step: Step) -> Parting | None:
    if not step.changed_bits or step.random or step.native is None:
        return None
    before, after = (step.record.snapshots[at] for at in (step.rewrite.before, step.rewrite.after))
    names = [(before, name) for name in find_changed_nodes(before, after)]
    names += [(after, name) for name in find_changed_nodes(after, before)]
    families = {_find_family(snapshot, name) for snapshot, name in names} - {None}
    exact = families <= facts().bitwise.covered.exactly_rounded
    apart = BitDifference(step.label.rewrite, 0, 0, detail=f"results move by {step.native:.1e} of their size")
    return Parting(
        step.frame,
        step.record.direction,
        step.label.stage,
        step.label.rewrite,
        apart,
        "the rewrite changes bits of its graph",
        step.rewrite.nodes[0] if step.rewrite.nodes else None,
        site=str(step.rewrite.site) if step.rewrite.site else None,
        source=step.label.source,
        line=step.label.line,
        unpromised=None if exact and families else _REWRITTEN,
    )


def _find_family(snapshot: Snapshot, name: str) -> str | None:
    node = next(node for node in snapshot.graph.nodes if node.name == name)
    return get_operator_family(get_operator_name(node.target)) if node.op == "call_function" else None


def _find_decomposition_partings(frame: Frame, seconds: float) -> list[Parting]:
    record = frame.find_record(PRE_GRAD)
    inputs = find_inputs(frame, record) if record is not None and record.snapshots else None
    if record is None or inputs is None:
        return []
    found: list[Parting] = []

    def judge(application: Application) -> None:
        parting = _make_decomposition_parting(frame, application)
        if parting is not None:
            found.append(parting)

    trained = frame.find_record(POST_GRAD, "backward") is not None
    watch_operators(record.snapshots[-1], inputs, judge, tangents=[] if trained else None, seconds=seconds)
    return found


def _make_decomposition_parting(frame: Frame, application: Application) -> Parting | None:
    if application.way == "fake" or application.place.inside or application.draws:
        return None
    apart = _find_first_difference(application.kernel.results, application.other.results)
    if apart is None:
        return None
    name = get_operator_name(application.operator)
    source, line = find_source(application.function)
    place = application.place
    return Parting(
        frame.index,
        "backward" if place.backward else "forward",
        DECOMPOSITION,
        name,
        apart,
        f"the decomposition rounds in another way: {apart}",
        place.node,
        site=f"{place.location} #{place.ordinal}" if place.location else None,
        source=source,
        line=line,
        unpromised=why_open_family(get_operator_family(name), apart),
        position=_find_position(frame, place.location, backward=place.backward),
    )


def _find_first_difference(first: Sequence[object], second: Sequence[object]) -> BitDifference | None:
    """The first pair of tensors that differ."""
    for number, (left, right) in enumerate(zip(first, second, strict=False)):
        if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor) and left.layout == torch.strided:
            apart = compare_bits(f"result {number}", left, right)
            if apart is not None:
                return apart
    return None


def _find_position(frame: Frame, place: str | None, *, backward: bool) -> int:
    """Return the position of the first node of a user's line in the graph that was lowered."""
    records = [record for record in frame.records if record.stage == POST_GRAD and record.snapshots]
    wanted = [record for record in records if (record.direction == "backward") == backward] or records
    nodes = wanted[0].snapshots[-1].graph.nodes if wanted else ()
    return next((number for number, node in enumerate(nodes) if find_location([node]) == place), 0)


EAGER = "eager"
_SECONDS = 15.0


def judge_eager(
    compiles: StrictCompiler, eager: Observation, again: Observation, execution: Execution, count: ReplayCount
) -> PromiseAnswer:
    """Hold the compiled program against eager.

    Args:
        compiles: makes further compiles.
        eager: the eager run.
        again: another eager run, from the same state.
        execution: the compiled program.
        count: counts the replays.
    """
    outputs = tuple(compare_runs(eager, execution.first))
    if not outputs:
        return PromiseAnswer(EAGER, True, "every output has the bits of eager's")
    if compare_runs(eager, again):
        return PromiseAnswer(EAGER, None, "eager itself gives other bits in its second run", outputs=outputs)
    if all(output.only_payloads for output in outputs):
        return PromiseAnswer(
            EAGER, None, "nothing but payloads of NaN differs, which IEEE 754 leaves open", outputs=outputs
        )
    local = find_local_partings(execution, count)
    if any(parting.stage == CODEGEN for parting in local) and not compiles.is_late:
        finer = _find_finer_partings(compiles, SHOWN, count)
        local = _refine(local, execution, finer)
        hidden = next((parting for parting in sort_partings(local) if parting.is_promised), None)
        if (
            hidden is not None
            and hidden.stage == CODEGEN
            and not any(_are_in_same_graph(hidden, each) for each in finer)
        ):
            local = [
                _find_kept_operator(compiles, execution, each, count) if each is hidden else each for each in local
            ]
    partings = sort_partings((*local, *find_graph_partings(execution.ledger, count, seconds=_SECONDS)))
    return _answer_partings(partings, outputs)


def _answer_partings(partings: Sequence[Parting], outputs: tuple[BitDifference, ...]) -> PromiseAnswer:
    broken = next((parting for parting in partings if parting.is_promised), None)
    if broken is not None:
        why = f"bits part although promised: {broken}: {broken.detail}"
        return PromiseAnswer(EAGER, False, why, tuple(partings), outputs)
    if partings:
        first = partings[0]
        why = f"bits part where nothing is promised: {first}: {first.unpromised}"
        return PromiseAnswer(EAGER, None, why, tuple(partings), outputs)
    why = "bits part, and it could not be seen where"
    return PromiseAnswer(EAGER, None, why, outputs=outputs, unsure=True)


def find_local_partings(execution: Execution, count: ReplayCount) -> list[Parting]:
    """Find the partings at lowerings, kernels and wrappers, over the calls of the first run; each place once."""
    found: dict[tuple[int, str, str, str | None], Parting] = {}
    for look in execution.list_watched_graphs(count):
        for parting in CallPartings(look).find_partings():
            found.setdefault((parting.graph, parting.direction, parting.stage, parting.node), parting)
    return list(found.values())


def is_broken(compiles: StrictCompiler, eager: Observation, control: Control, count: ReplayCount) -> bool:
    """Return whether a compile changed by ``control`` still breaks the promise."""
    execution = compiles.execute(control=control)
    if execution.first.failure or not compare_runs(eager, execution.first):
        return bool(execution.first.failure)
    return any(parting.is_promised for parting in find_local_partings(execution, count))


def _find_finer_partings(compiles: StrictCompiler, control: Control, count: ReplayCount) -> list[Parting]:
    """The promised partings of kernels in a compile in which the values of more operators are stored."""
    execution = compiles.execute(control=control)
    partings = find_local_partings(execution, count) if not execution.first.failure else []
    return [parting for parting in partings if parting.is_promised and parting.stage == CODEGEN]


def _refine(partings: list[Parting], execution: Execution, finer: list[Parting]) -> list[Parting]:
    """The partings of kernels by their operators, as far as the finer look shows those."""
    graphs = {(parting.graph, parting.direction) for parting in finer}
    kept = [
        parting
        for parting in partings
        if not (parting.is_promised and parting.stage == CODEGEN and (parting.graph, parting.direction) in graphs)
    ]
    return [*kept, *(replace(parting, kernel=_find_kernel_name(execution, parting)) for parting in finer)]


def _find_kept_operator(compiles: StrictCompiler, execution: Execution, hidden: Parting, count: ReplayCount) -> Parting:
    """The operator whose value a kernel does not keep as it is stored, where storing every value hides the difference.

    That is the first operator that has to be stored, with all after it, for the kernel to be right.
    """
    lowered = next(each for each in execution.ledger.lowered if _is_in_graph(each, hidden))
    kernel = lowered.find_kernel(hidden.kernel)
    names = [name for name in (kernel.nodes if kernel is not None else ()) if name in lowered.labels]
    first, last = 0, len(names) - 1
    while first < last and not compiles.is_late:
        middle = (first + last + 1) // 2
        stored = Control(realised=tuple(lowered.labels[name] for name in names[middle:]), stored=True)
        if any(_are_in_same_graph(hidden, each) for each in _find_finer_partings(compiles, stored, count)):
            last = middle - 1
        else:
            first = middle
    node = lowered.find_node(names[first]) if names and first == last else None
    if node is None:
        return hidden
    what = "the kernel goes on with another value than it would store"
    return make_parting(lowered, CODEGEN, node, hidden.difference, what, None, kernel, hidden.position)


def _is_in_graph(lowered: LoweredGraph, parting: Parting) -> bool:
    return (lowered.frame, lowered.direction) == (parting.graph, parting.direction)


def _are_in_same_graph(first: Parting, second: Parting) -> bool:
    return (first.graph, first.direction) == (second.graph, second.direction)


def _find_kernel_name(execution: Execution, parting: Parting) -> str | None:
    """The kernel that computes the operator in the compile as it is."""
    for lowered in execution.ledger.lowered:
        if _is_in_graph(lowered, parting) and parting.node is not None:
            kernel = find_kernel(lowered, parting.node)
            return kernel.name if kernel is not None else None
    return parting.kernel


BITWISE = "bitwise"
PROMISE_NAMES = (EAGER, invariance.BATCH, invariance.RUN_TO_RUN)
# A program that differs from run to run differs from eager too, so that this comes first.
_GRAVEST = (invariance.RUN_TO_RUN, EAGER, invariance.BATCH)
_VERDICTS = {EAGER: Verdict.PRECISION_LOSS, invariance.BATCH: Verdict.PRECISION_LOSS,
             invariance.RUN_TO_RUN: Verdict.NONDETERMINISTIC}  # fmt: skip


@gather_unseen()
def judge_bitwise(
    case: Case,
    device: torch.device,
    report: TriageReport,
    *,
    own: Case,
    vetoes: Sequence[str] = (),
    deadline: float | None,
) -> TriageReport:
    """Judge the promises of equal bits, and put the answer into a report on the same case.

    Args:
        case: the case under the strict settings.
        device: where it runs.
        report: what was found out about its values.
        own: the case as its author wrote it.
        vetoes: rewrites that are refused throughout.
        deadline: value of ``time.monotonic()`` after which no further compile is begun.
    """
    started = time.perf_counter()
    compiles, count = StrictCompiler(case, device, tuple(vetoes), deadline), ReplayCount()
    promises, ablations = BitwiseJudge(compiles, count).judge_promises()
    broken = select_gravest(promises)
    cost = replace(
        report.cost,
        compiles=report.cost.compiles + compiles.count,
        replays=report.cost.replays + count.replays,
        seconds=report.cost.seconds + time.perf_counter() - started,
    )
    notes = (*report.notes, *format_unseen(get_gathered()), *_note_replaced_settings(own))
    report = replace(report, contract=make_contract_json(promises), cost=cost, notes=tuple(dict.fromkeys(notes)))
    unsure = any(promise.unsure for promise in promises) or not all(missed.harmless for missed in get_gathered())
    report = replace(report, confidence="low" if unsure else report.confidence)
    if report.is_bug or broken is None:
        return report
    report = with_broken_promise(report, broken, ablations)
    return replace(report, detail=f"bitwise contract, {report.detail}")


def select_gravest(promises: Sequence[PromiseAnswer]) -> PromiseAnswer | None:
    """The broken promise that the verdict is about; None if none is broken."""
    broken = {promise.name: promise for promise in promises if promise.holds is False}
    return next((broken[name] for name in _GRAVEST if name in broken), None)


def with_broken_promise(report: TriageReport, broken: PromiseAnswer, ablations: Sequence[Ablation]) -> TriageReport:
    """The report with the verdict on a broken promise, and its first parting as the culprit."""
    first, proved = broken.first, [ablation.repairs for ablation in ablations]
    necessary = proved[0] if proved else None
    culprit = first.culprit(necessary=necessary) if first is not None else None
    attribution = replace(report.attribution, culprit=culprit, ablations=[*report.attribution.ablations, *ablations])
    return replace(
        report,
        verdict=_VERDICTS[broken.name],
        confidence="high" if necessary and not broken.unsure else "low",
        detail=f"{broken.name}: {broken.why}",
        attribution=attribution,
    )


def make_contract_json(promises: Sequence[PromiseAnswer]) -> ContractJson:
    """The answer in the form of the triage contract."""
    return {
        "name": BITWISE,
        "settings": strict_settings(),
        "promised": describe_promises(),
        "compared": "bits; payloads of NaN are counted apart and never a broken promise, signs of zeros count",
        "promises": [promise.to_json() for promise in promises],
    }


def make_unjudged_contract(why: str) -> ContractJson:
    """Return the contract of a case whose promises were not examined."""
    return make_contract_json(
        [PromiseAnswer(name, None, f"not looked at: {why}", unsure=True) for name in PROMISE_NAMES]
    )


def _note_replaced_settings(own: Case) -> list[str]:
    entries = list_replaced_settings(own)
    return [f"the contract replaces what the case sets itself: {', '.join(entries)}"] if entries else []


def _make_late_promise(name: str) -> PromiseAnswer:
    return PromiseAnswer(name, None, "not looked at: out of time; raise --timeout", unsure=True)


@dataclass(frozen=True)
class BitwiseJudge:
    """Judges promises (all of :data:`PROMISE_NAMES` by default) one after the other; the gravest broken one is proved.

    Without ``proves`` it is named only, which saves a compile.
    """

    compiles: StrictCompiler
    count: ReplayCount
    names: tuple[str, ...] = PROMISE_NAMES
    proves: bool = True

    def judge_promises(self) -> tuple[list[PromiseAnswer], list[Ablation]]:
        """The promises, and the compiles that prove the gravest broken one."""
        refused = self._why_refused()
        if refused is not None:
            return [PromiseAnswer(name, None, f"not looked at: {refused}") for name in self.names], []
        runs = self.compiles.run_eager(), self.compiles.run_eager()
        plain, again = runs[0][0], runs[1][0]
        if plain.failure:
            return [
                PromiseAnswer(name, None, f"not looked at: eager raises {plain.failure}") for name in self.names
            ], []
        try:
            execution = self.compiles.execute(runs=2)
        except BitwiseOutOfTime:
            return [
                PromiseAnswer(name, None, "not looked at: out of time; raise --timeout", unsure=True)
                for name in self.names
            ], []
        failure = execution.first.failure
        if failure:
            return [PromiseAnswer(name, None, f"not looked at: compiled raises {failure}") for name in self.names], []
        judges: dict[str, Callable[[], PromiseAnswer]] = {
            EAGER: lambda: judge_eager(self.compiles, plain, again, execution, self.count),
            invariance.BATCH: lambda: invariance.judge_batch(self.compiles),
            invariance.RUN_TO_RUN: lambda: invariance.judge_run_to_run(self.compiles, execution),
        }
        promises = [self._judge_promise(name, judge) for name, judge in judges.items() if name in self.names]
        return promises, self._prove(promises, plain)

    def _why_refused(self) -> str | None:
        settings = self.compiles.case.settings
        return (
            None if settings.backend == "inductor" else f"the settings are Inductor's, and {settings.backend} compiles"
        )

    def _judge_promise(self, name: str, judge: Callable[[], PromiseAnswer]) -> PromiseAnswer:
        try:
            return judge()
        except BitwiseOutOfTime:
            return _make_late_promise(name)
        except (KeyboardInterrupt, MemoryError):
            raise
        except Exception as error:  # of a program run in other ways, or of the looking: the other promises still stand
            return PromiseAnswer(name, None, f"not looked at: {format_reason(error)}", unsure=True)

    def _prove(self, promises: Sequence[PromiseAnswer], plain: Observation) -> list[Ablation]:
        """A compile in which ATen computes the operator at fault."""
        broken = select_gravest(promises)
        first = broken.first if broken is not None else None
        if not self.proves or broken is None or first is None or first.operator is None or self.compiles.is_late:
            return []
        control = Control(fallbacks=(first.operator,))
        differs: dict[str, Callable[[], bool]] = {
            EAGER: lambda: is_broken(self.compiles, plain, control, self.count),
            invariance.BATCH: lambda: invariance.rows_differ(self.compiles, control),
            invariance.RUN_TO_RUN: lambda: invariance.repeats_differ(self.compiles, control),
        }
        try:
            return [Ablation(f"ATen computes {first.operator}", not differs[broken.name](), None)]
        except BitwiseOutOfTime:
            return []


# The promises of equal bits that a case's own settings make, judged with no ``--contract`` asked for.

DETERMINISTIC = "torch.use_deterministic_algorithms: equal bits from run to run"
"""Its documentation: such algorithms, "given the same input, and when run on the same software and hardware, always
produce the same output". Of ``config.deterministic`` torch says less: it takes numerics from no timing."""


def find_promises(case: Case, device: torch.device, *, rounding: bool) -> dict[str, str]:
    """The promises of equal bits that the case asks for, each with the words of a report.

    Args:
        case: whose settings are looked at, and torch's own as the case left them.
        device: where it runs; the CPU's code rounds as eager does once casts are kept, a GPU's takes all settings.
        rounding: whether any value has other bits than eager's, so that there is something to look into.
    """
    settings = case.settings
    if settings.backend != "inductor":
        return {}
    own = {**settings.inductor, **settings.options}
    strict = {name: value for name, value in strict_settings().items() if name not in _OTHER_PROMISES}
    as_eager = device.type == "cpu" or all(own.get(name) == value for name, value in strict.items())
    promises: dict[str, str] = {}
    if rounding and as_eager and asks_for_casts(settings):
        promises[EAGER] = describe_promise("emulate_precision_casts")
    if own.get("batch_invariant") is True:
        promises[invariance.BATCH] = describe_promise("batch_invariant")
    if own.get("deterministic") is True:
        promises[invariance.RUN_TO_RUN] = describe_promise("deterministic")
    if torch.are_deterministic_algorithms_enabled():
        promises[invariance.RUN_TO_RUN] = DETERMINISTIC
    return promises


def find_broken_bits(
    case: Case, device: torch.device, wanted: str, *, vetoes: Sequence[str] = ()
) -> tuple[PromiseAnswer | None, int]:
    """The promise of equal bits that reports call ``wanted``, if a case asks for it and breaks it; and the compiles.

    Args:
        case: a smaller form of one that breaks it.
        device: where it runs.
        wanted: of the values of :func:`find_promises`.
        vetoes: rewrites that are refused.
    """
    names = tuple(name for name, words in find_promises(case, device, rounding=True).items() if words == wanted)
    if not names:
        return None, 0
    compiles = StrictCompiler(case, device, tuple(vetoes))
    promises, _ = BitwiseJudge(compiles, ReplayCount(), names, proves=False).judge_promises()
    return select_gravest(promises), compiles.count


# Of the strict settings, those that promise something else than eager's bits.
_OTHER_PROMISES = ("deterministic", "batch_invariant", "fallback_random")


@gather_unseen()
def judge_own_promises(
    case: Case, device: torch.device, report: TriageReport, *, vetoes: Sequence[str] = (), deadline: float | None
) -> TriageReport:
    """Judge the promises of equal bits that the settings of a case make; a broken one becomes the report's verdict.

    A report that is a bug already, and one on graphs alone (``screened``), stays as it is.

    Args:
        case: under its own settings.
        device: where it runs.
        report: what was found out about its values.
        vetoes: rewrites that are refused throughout.
        deadline: value of ``time.monotonic()`` after which no further compile is begun.
    """
    if report.is_bug or report.screened or report.verdict is Verdict.INVALID or report.failure is not None:
        return report
    wanted = find_promises(case, device, rounding=report.verdict is not Verdict.EQUAL)
    if not wanted:
        return report
    started = time.perf_counter()
    compiles, count = StrictCompiler(case, device, tuple(vetoes), deadline), ReplayCount()
    promises, ablations = BitwiseJudge(compiles, count, tuple(wanted)).judge_promises()
    cost = replace(
        report.cost,
        compiles=report.cost.compiles + compiles.count,
        replays=report.cost.replays + count.replays,
        seconds=report.cost.seconds + time.perf_counter() - started,
    )
    unseen = [f"{wanted[each.name]}: {each.why}" for each in promises if each.holds is None and each.unsure]
    report = replace(report, cost=cost, notes=(*report.notes, *unseen))
    if unseen or not all(missed.harmless for missed in get_gathered()):
        report = replace(report, confidence="low")
    broken = select_gravest(promises)
    if broken is None:
        return report
    return replace(with_broken_promise(report, broken, ablations), promise=wanted[broken.name])
