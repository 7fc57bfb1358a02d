"""Promises of equal bits, judged for ``--contract bitwise`` or for the case's own settings."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from fuzzcompile.compiler.graph_text import find_changed_nodes
from fuzzcompile.compiler.kernels.lowering_control import Control, get_operator_name
from fuzzcompile.compiler.operators.decompositions import apply_config, get_operator_family
from fuzzcompile.compiler.operators.operator_application import CONTIGUOUS, Application
from fuzzcompile.compiler.operators.operator_crossref import watch_operators
from fuzzcompile.compiler.watch import ledger as ledgers
from fuzzcompile.compiler.watch.rule_labels import find_location, find_source
from fuzzcompile.diagnosis.attribution.culprit import Ablation, Culprit
from fuzzcompile.diagnosis.attribution.steps import ReplayCount, Step, measure_steps
from fuzzcompile.diagnosis.bitwise import bit_difference as bits
from fuzzcompile.diagnosis.bitwise import execution as executions
from fuzzcompile.diagnosis.bitwise import invariance
from fuzzcompile.diagnosis.bitwise.kernel_bits import find_call_partings, make_parting
from fuzzcompile.diagnosis.decision import asks_for_casts, describe_promise
from fuzzcompile.diagnosis.kernels.watched_graph import find_kernel
from fuzzcompile.diagnosis.stages.ways import iter_captured
from fuzzcompile.diagnosis.triage_report import TriageReport
from fuzzcompile.model.contract import ContractJson
from fuzzcompile.model.facts import facts
from fuzzcompile.model.stages import CODEGEN, DECOMPOSITION, POST_GRAD
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.run.case import Case
from fuzzcompile.run.observation import Observation

# Partings before lowering: decompositions and rewrites, replayed on the program's own values.

_REWRITTEN = "torch promises nothing of rewrites that reorder arithmetic"
_SECONDS = 15.0  # for the comparison of operators with their decompositions


def _find_graph_partings(ledger: ledgers.Ledger, count: ReplayCount) -> list[bits.Parting]:
    found = [_make_rewrite_parting(step) for step in measure_steps(ledger, count)]
    with apply_config(executions.strict_settings()):
        for frame, record, inputs in iter_captured(ledger):

            def judge(application: Application, frame: ledgers.Frame = frame) -> None:
                found.append(_make_decomposition_parting(frame, application))

            trained = frame.find_record(POST_GRAD, "backward") is not None
            tangents: list[object] | None = [] if trained else None
            watch_operators(record.snapshots[-1], inputs, judge, tangents=tangents, seconds=_SECONDS)
    return [parting for parting in found if parting is not None]


def _make_rewrite_parting(step: Step) -> bits.Parting | None:
    if not step.changed_bits or step.random or step.native is None:
        return None
    before, after = (step.record.snapshots[at] for at in (step.rewrite.before, step.rewrite.after))
    changed = ((before, find_changed_nodes(before, after)), (after, find_changed_nodes(after, before)))
    families = {
        get_operator_family(get_operator_name(node.target))
        for snapshot, names in changed
        for node in snapshot.graph.nodes
        if node.name in names and node.op == "call_function"
    }
    exact = families <= facts().bitwise.covered.exactly_rounded
    label, site = step.label, str(step.rewrite.site) if step.rewrite.site else None
    culprit = Culprit.from_operator(label.stage, label.rewrite, nodes=step.rewrite.nodes[:1], site=site)
    culprit = replace(culprit, source=label.source, line=label.line)
    apart = bits.BitDifference(step.label.rewrite, 0, 0, detail=f"results move by {step.native:.1e} of their size")
    why = None if exact and families else _REWRITTEN
    what = "the rewrite changes bits of its graph"
    return bits.Parting(step.frame, step.record.direction, culprit, apart, what, unpromised=why)


def _make_decomposition_parting(frame: ledgers.Frame, application: Application) -> bits.Parting | None:
    if application.way in ("fake", CONTIGUOUS) or application.place.inside or application.draws:
        return None
    pairs = enumerate(zip(application.kernel.results, application.other.results, strict=False))
    differences = (
        bits.compare_bits(f"result {number}", left, right)
        for number, (left, right) in pairs
        if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor) and left.layout == torch.strided
    )
    apart = next((each for each in differences if each is not None), None)
    if apart is None:
        return None
    source, line = find_source(application.function)
    place = application.place
    culprit = Culprit.from_operator(
        DECOMPOSITION, application.name, nodes=place.nodes, source=source, line=line, site=place.site
    )
    # The position of the first node of the user's line in the graph that was lowered.
    records = [record for record in frame.records if record.stage == POST_GRAD and record.snapshots]
    wanted = [record for record in records if (record.direction == "backward") == place.backward] or records
    nodes = wanted[0].snapshots[-1].graph.nodes if wanted else ()
    position = next((number for number, node in enumerate(nodes) if find_location([node]) == place.location), 0)
    direction, why = "backward" if place.backward else "forward", bits.why_open_family(culprit.family, apart)
    what = f"the decomposition rounds in another way: {apart}"
    return bits.Parting(frame.index, direction, culprit, apart, what, unpromised=why, position=position)


# The promise that compiled equals eager bit for bit.

EAGER = "eager"


def judge_eager(
    compiles: executions.StrictCompiler,
    eager: Observation,
    again: Observation,
    execution: executions.Execution,
    count: ReplayCount,
) -> bits.PromiseAnswer:
    """Hold the compiled program against an eager run; ``again`` is another one, from the same state."""
    outputs = tuple(bits.compare_runs(eager, execution.first))
    if not outputs:
        return bits.PromiseAnswer(EAGER, True, "every output has the bits of eager's")
    if bits.compare_runs(eager, again):
        return bits.PromiseAnswer(EAGER, None, "eager itself gives other bits in its second run", outputs=outputs)
    if all(output.only_payloads for output in outputs):
        why = "nothing but payloads of NaN differs, which IEEE 754 leaves open"
        return bits.PromiseAnswer(EAGER, None, why, outputs=outputs)
    local = _find_local_partings(execution, count)
    if any(parting.culprit.stage == CODEGEN for parting in local) and not compiles.is_late:
        local = _refine(compiles, execution, local, count)
    partings = bits.sort_partings((*local, *_find_graph_partings(execution.ledger, count)))
    return bits.answer_partings(EAGER, "bits part", partings, outputs)


def _find_local_partings(execution: executions.Execution, count: ReplayCount) -> list[bits.Parting]:
    """Find the partings at lowerings, kernels and wrappers, over the calls of the first run; each place once."""
    found: dict[object, bits.Parting] = {}
    for look in execution.list_watched_graphs(count):
        for parting in find_call_partings(look):
            found.setdefault((parting.place, parting.culprit.stage, parting.culprit.nodes), parting)
    return list(found.values())


def _is_broken(compiles: executions.StrictCompiler, eager: Observation, control: Control, count: ReplayCount) -> bool:
    execution = compiles.execute(control=control)
    if execution.first.failure or not bits.compare_runs(eager, execution.first):
        return bool(execution.first.failure)
    return any(parting.is_promised for parting in _find_local_partings(execution, count))


def _find_kernel_partings(
    compiles: executions.StrictCompiler, control: Control, count: ReplayCount
) -> list[bits.Parting]:
    execution = compiles.execute(control=control)
    partings = _find_local_partings(execution, count) if not execution.first.failure else []
    return list(filter(_is_of_promised_kernel, partings))


def _is_of_promised_kernel(parting: bits.Parting) -> bool:
    return parting.is_promised and parting.culprit.stage == CODEGEN


def _refine(
    compiles: executions.StrictCompiler,
    execution: executions.Execution,
    partings: list[bits.Parting],
    count: ReplayCount,
) -> list[bits.Parting]:
    """The partings of kernels by their operators, as far as a compile shows those that stores the values of each."""
    finer = _find_kernel_partings(compiles, executions.SHOWN, count)
    graphs = {parting.place for parting in finer}
    kept = [each for each in partings if not (_is_of_promised_kernel(each) and each.place in graphs)]
    by_place = {(lowered.frame, lowered.direction): lowered for lowered in execution.ledger.lowered}
    for each in finer:  # in the compile as it is, another kernel may compute the operator
        lowered = by_place.get(each.place)
        kernel = find_kernel(lowered, each.culprit.nodes[0]) if lowered is not None and each.culprit.nodes else None
        kept.append(replace(each, kernel=each.kernel if lowered is None else kernel.name if kernel else None))
    hidden = next((parting for parting in bits.sort_partings(kept) if parting.is_promised), None)
    if hidden is None or not _is_of_promised_kernel(hidden) or hidden.place in graphs:
        return kept
    return [_find_kept_operator(compiles, execution, each, count) if each is hidden else each for each in kept]


def _find_kept_operator(
    compiles: executions.StrictCompiler, execution: executions.Execution, hidden: bits.Parting, count: ReplayCount
) -> bits.Parting:
    """The operator whose value a kernel does not keep as it is stored, where storing every value hides the difference.

    That is the first operator that has to be stored, with all after it, for the kernel to be right.
    """
    lowered = next(each for each in execution.ledger.lowered if (each.frame, each.direction) == hidden.place)
    kernel = lowered.find_kernel(hidden.kernel)
    names = [name for name in (kernel.nodes if kernel is not None else ()) if name in lowered.labels]
    first, last = 0, len(names) - 1
    while first < last and not compiles.is_late:
        middle = (first + last + 1) // 2
        stored = Control(realised=tuple(lowered.labels[name] for name in names[middle:]), stored=True)
        if any(hidden.place == each.place for each in _find_kernel_partings(compiles, stored, count)):
            last = middle - 1
        else:
            first = middle
    node = lowered.find_node(names[first]) if names and first == last else None
    if node is None:
        return hidden
    what = "the kernel goes on with another value than it would store"
    parting = make_parting(lowered, CODEGEN, node, hidden.difference, what, None, kernel)
    return replace(parting, position=hidden.position)


BITWISE = "bitwise"
PROMISE_NAMES = (EAGER, invariance.BATCH, invariance.RUN_TO_RUN)
# A program that differs from run to run differs from eager too, so that this comes first.
_GRAVEST = (invariance.RUN_TO_RUN, EAGER, invariance.BATCH)
_VERDICTS = {EAGER: Verdict.PRECISION_LOSS, invariance.BATCH: Verdict.PRECISION_LOSS,
             invariance.RUN_TO_RUN: Verdict.NONDETERMINISTIC}  # fmt: skip


@ledgers.gather_unseen()
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

    ``case`` is under the strict settings, ``own`` as its author wrote it. ``vetoes`` are refused throughout; no compile
    is begun after ``deadline``, a value of ``time.monotonic()``.
    """
    compiles = executions.StrictCompiler(case, device, tuple(vetoes), deadline)
    report, promises, ablations = _judge(compiles, report, PROMISE_NAMES)
    broken = select_gravest(promises)
    replaced = executions.list_replaced_settings(own)
    said = [f"the contract replaces what the case sets itself: {', '.join(replaced)}"] if replaced else []
    notes = tuple(dict.fromkeys((*report.notes, *ledgers.format_unseen(ledgers.get_gathered()), *said)))
    report = replace(report, contract=_make_contract_json(promises), notes=notes)
    unsure = any(promise.unsure for promise in promises) or not all(
        missed.harmless for missed in ledgers.get_gathered()
    )
    report = replace(report, confidence="low" if unsure else report.confidence)
    if report.is_bug or broken is None:
        return report
    report = _with_broken_promise(report, broken, ablations)
    return replace(report, detail=f"bitwise contract, {report.detail}")


def _judge(
    compiles: executions.StrictCompiler, report: TriageReport, names: tuple[str, ...]
) -> tuple[TriageReport, list[bits.PromiseAnswer], list[Ablation]]:
    """The promises, the compiles that prove the gravest broken one, and the report with what both cost."""
    started, count = time.perf_counter(), ReplayCount()
    promises, ablations = BitwiseJudge(compiles, count, names).judge_promises()
    cost = replace(
        report.cost,
        compiles=report.cost.compiles + compiles.count,
        replays=report.cost.replays + count.replays,
        seconds=report.cost.seconds + time.perf_counter() - started,
    )
    return replace(report, cost=cost), promises, ablations


def select_gravest(promises: Sequence[bits.PromiseAnswer]) -> bits.PromiseAnswer | None:
    """The broken promise that the verdict is about; None if none is broken."""
    broken = {promise.name: promise for promise in promises if promise.holds is False}
    return next((broken[name] for name in _GRAVEST if name in broken), None)


def _with_broken_promise(
    report: TriageReport, broken: bits.PromiseAnswer, ablations: Sequence[Ablation]
) -> TriageReport:
    first, necessary = broken.first, next((ablation.repairs for ablation in ablations), None)
    culprit = first.prove(necessary=necessary) if first is not None else None
    attribution = replace(report.attribution, culprit=culprit, ablations=[*report.attribution.ablations, *ablations])
    sure = "high" if necessary and not broken.unsure else "low"
    report = replace(report, verdict=_VERDICTS[broken.name], confidence=sure, attribution=attribution)
    return replace(report, detail=f"{broken.name}: {broken.why}")


def _make_contract_json(promises: Sequence[bits.PromiseAnswer]) -> ContractJson:
    return {
        "name": BITWISE,
        "settings": executions.strict_settings(),
        "promised": executions.describe_promises(),
        "compared": "bits; payloads of NaN are counted apart and never a broken promise, signs of zeros count",
        "promises": [promise.to_json() for promise in promises],
    }


def make_unjudged_contract(why: str) -> ContractJson:
    """Return the contract of a case whose promises were not examined."""
    return _make_contract_json([_leave_promise(name, why, unsure=True) for name in PROMISE_NAMES])


def _leave_promise(name: str, why: str, *, unsure: bool = False) -> bits.PromiseAnswer:
    return bits.PromiseAnswer(name, None, f"not looked at: {why}", unsure=unsure)


_LATE = "out of time; raise --timeout"


@dataclass(frozen=True)
class BitwiseJudge:
    """Judges promises (all of :data:`PROMISE_NAMES` by default) one after the other; the gravest broken one is proved.

    Without ``proves`` it is named only, which saves a compile.
    """

    compiles: executions.StrictCompiler
    count: ReplayCount
    names: tuple[str, ...] = PROMISE_NAMES
    proves: bool = True

    def judge_promises(self) -> tuple[list[bits.PromiseAnswer], list[Ablation]]:
        """The promises, and the compiles that prove the gravest broken one."""
        backend = self.compiles.case.settings.backend
        if backend != "inductor":
            return self._leave(f"the settings are Inductor's, and {backend} compiles"), []
        plain, again = self.compiles.run_eager()[0], self.compiles.run_eager()[0]
        if plain.failure:
            return self._leave(f"eager raises {plain.failure}"), []
        try:
            execution = self.compiles.execute(runs=2)
        except executions.BitwiseOutOfTime:
            return self._leave(_LATE, unsure=True), []
        if execution.first.failure:
            return self._leave(f"compiled raises {execution.first.failure}"), []
        judges: dict[str, Callable[[], bits.PromiseAnswer]] = {
            EAGER: lambda: judge_eager(self.compiles, plain, again, execution, self.count),
            invariance.BATCH: lambda: invariance.judge_batch(self.compiles),
            invariance.RUN_TO_RUN: lambda: invariance.judge_run_to_run(self.compiles, execution),
        }
        promises = [self._judge_promise(name, judge) for name, judge in judges.items() if name in self.names]
        return promises, self._prove(promises, plain)

    def _leave(self, why: str, *, unsure: bool = False) -> list[bits.PromiseAnswer]:
        return [_leave_promise(name, why, unsure=unsure) for name in self.names]

    def _judge_promise(self, name: str, judge: Callable[[], bits.PromiseAnswer]) -> bits.PromiseAnswer:
        try:
            return judge()
        except executions.BitwiseOutOfTime:
            return _leave_promise(name, _LATE, unsure=True)
        except (KeyboardInterrupt, MemoryError):
            raise
        except Exception as error:  # of a program run in other ways, or of the looking: the other promises still stand
            return _leave_promise(name, ledgers.format_reason(error), unsure=True)

    def _prove(self, promises: Sequence[bits.PromiseAnswer], plain: Observation) -> list[Ablation]:
        broken = select_gravest(promises)
        operator = broken.first.culprit.rewrite if broken is not None and broken.first is not None else None
        if not self.proves or broken is None or operator is None or self.compiles.is_late:
            return []
        control = Control(fallbacks=(operator,))
        differs: dict[str, Callable[[], bool]] = {
            EAGER: lambda: _is_broken(self.compiles, plain, control, self.count),
            invariance.BATCH: lambda: invariance.rows_differ(self.compiles, control),
            invariance.RUN_TO_RUN: lambda: invariance.repeats_differ(self.compiles, control),
        }
        try:
            return [Ablation(f"ATen computes {operator}", not differs[broken.name](), None)]
        except executions.BitwiseOutOfTime:
            return []


# The promises of equal bits that a case's own settings make, judged with no ``--contract`` asked for.

DETERMINISTIC = "torch.use_deterministic_algorithms: equal bits from run to run"
"""Its documentation: such algorithms, "given the same input, and when run on the same software and hardware, always
produce the same output". Of ``config.deterministic`` torch says less: it takes numerics from no timing."""


def find_promises(case: Case, device: torch.device, *, rounding: bool) -> dict[str, str]:
    """The promises of equal bits that the case asks for, each with the words of a report.

    ``rounding``: some value has other bits than eager's. The CPU's code rounds as eager does once casts are kept; a
    GPU's takes all settings.
    """
    settings = case.settings
    if settings.backend != "inductor":
        return {}
    own = {**settings.inductor, **settings.options}
    strict = {name: value for name, value in executions.strict_settings().items() if name not in _OTHER_PROMISES}
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
) -> tuple[bits.PromiseAnswer | None, int]:
    """The promise of equal bits that reports call ``wanted``, if a case asks for it and breaks it; and the compiles."""
    names = tuple(name for name, words in find_promises(case, device, rounding=True).items() if words == wanted)
    if not names:
        return None, 0
    compiles = executions.StrictCompiler(case, device, tuple(vetoes))
    promises, _ = BitwiseJudge(compiles, ReplayCount(), names, proves=False).judge_promises()
    return select_gravest(promises), compiles.count


# Of the strict settings, those that promise something else than eager's bits.
_OTHER_PROMISES = ("deterministic", "batch_invariant", "fallback_random")


@ledgers.gather_unseen()
def judge_own_promises(
    case: Case, device: torch.device, report: TriageReport, *, vetoes: Sequence[str] = (), deadline: float | None
) -> TriageReport:
    """Judge the promises of equal bits that the settings of a case make; a broken one becomes the report's verdict.

    A report that is a bug already, and one on graphs alone (``screened``), stays as it is. ``vetoes`` are refused
    throughout; no compile is begun after ``deadline``, a value of ``time.monotonic()``.
    """
    if report.is_bug or report.screened or report.verdict is Verdict.INVALID or report.failure is not None:
        return report
    wanted = find_promises(case, device, rounding=report.verdict is not Verdict.EQUAL)
    if not wanted:
        return report
    compiles = executions.StrictCompiler(case, device, tuple(vetoes), deadline)
    report, promises, ablations = _judge(compiles, report, tuple(wanted))
    unseen = [f"{wanted[each.name]}: {each.why}" for each in promises if each.holds is None and each.unsure]
    report = replace(report, notes=(*report.notes, *unseen))
    if unseen or not all(missed.harmless for missed in ledgers.get_gathered()):
        report = replace(report, confidence="low")
    broken = select_gravest(promises)
    if broken is None:
        return report
    return replace(_with_broken_promise(report, broken, ablations), promise=wanted[broken.name])
