"""Promises of equal bits, judged for ``--contract bitwise`` or for the case's own settings."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from fuzzcompile.compiler.graph_replay import GraphReplayer
from fuzzcompile.compiler.graph_text import find_changed_nodes
from fuzzcompile.compiler.kernels.lowering_control import Control, get_operator_name
from fuzzcompile.compiler.operators.decompositions import get_operator_family
from fuzzcompile.compiler.operators.operator_application import CONTIGUOUS, Application
from fuzzcompile.compiler.operators.operator_crossref import Crossref
from fuzzcompile.compiler.torch_config import patch_config
from fuzzcompile.compiler.watch import ledger as ledgers
from fuzzcompile.compiler.watch.rule_labels import find_location, find_source
from fuzzcompile.compiler.watch.unseen import format_unseen, gather_unseen, get_gathered
from fuzzcompile.diagnosis.attribution.culprit import Ablation, Culprit, OutOfTime
from fuzzcompile.diagnosis.attribution.steps import Step, measure_steps
from fuzzcompile.diagnosis.bitwise import bit_difference as bits
from fuzzcompile.diagnosis.bitwise import execution as executions
from fuzzcompile.diagnosis.bitwise.execution import SHOWN, Execution, StrictCompiler
from fuzzcompile.diagnosis.decision import asks_for_casts, describe_promise
from fuzzcompile.diagnosis.kernels.watched_graph import find_kernel, watch_graphs
from fuzzcompile.diagnosis.stages.ways import iter_captured
from fuzzcompile.diagnosis.triage_report import TriageReport
from fuzzcompile.model.contract import ContractJson
from fuzzcompile.model.culprit_contract import DetailsJson
from fuzzcompile.model.errors import describe_error
from fuzzcompile.model.facts import facts
from fuzzcompile.model.stages import CODEGEN, DECOMPOSITION, POST_GRAD
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.run.case import Case
from fuzzcompile.run.runs import computes_in_short_floats

# Partings before lowering: decompositions and rewrites, replayed on the program's own values.

_REWRITTEN = "torch promises nothing of rewrites that reorder arithmetic"
_SECONDS = 15.0  # for the comparison of operators with their decompositions


def _find_graph_partings(ledger: ledgers.Ledger) -> list[bits.Parting]:
    found = [_make_rewrite_parting(step) for step in measure_steps(ledger)]
    with patch_config("inductor", executions.strict_settings()):
        for frame, record, inputs in iter_captured(ledger):

            def judge(application: Application, frame: ledgers.Frame = frame) -> None:
                found.append(_make_decomposition_parting(frame, application))

            trained = frame.find_record(POST_GRAD, "backward") is not None
            tangents: list[object] | None = [] if trained else None
            Crossref(judge, seconds=_SECONDS).run_graph(record.snapshots[-1], inputs, tangents)
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
    exact = bool(families) and families <= facts().bitwise.covered.exactly_rounded
    label, site = step.label, str(step.rewrite.site) if step.rewrite.site else None
    place, nodes = (label.source, label.line), step.rewrite.nodes[:1]
    culprit = Culprit.from_operator(label.stage, label.rewrite, place, nodes=nodes, site=site)
    apart = bits.BitDifference(label.rewrite, 0, 0, detail=f"results move by {step.native:.1e} of their size")
    what, why = "the rewrite changes bits of its graph", None if exact else _REWRITTEN
    return bits.Parting(step.frame, step.record.direction, culprit, apart, what, unpromised=why)


def _make_decomposition_parting(frame: ledgers.Frame, application: Application) -> bits.Parting | None:
    place = application.place
    if application.way in ("fake", CONTIGUOUS) or place.inside or application.draws:
        return None
    pairs = zip(application.kernel.results, application.other.results, strict=False)
    differences = (
        bits.compare_bits(f"result {number}", left, right)
        for number, (left, right) in enumerate(pairs)
        if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor) and left.layout == torch.strided
    )
    apart = next((each for each in differences if each is not None), None)
    if apart is None:
        return None
    code = find_source(application.function)
    culprit = Culprit.from_operator(DECOMPOSITION, application.name, code, nodes=place.nodes, site=place.site)
    # The position of the first node of the user's line in the graph that was lowered.
    records = [record for record in frame.records if record.stage == POST_GRAD and record.snapshots]
    wanted = [record for record in records if (record.direction == "backward") == place.backward] or records
    nodes = wanted[0].snapshots[-1].graph.nodes if wanted else ()
    position = next((number for number, node in enumerate(nodes) if find_location([node]) == place.location), 0)
    direction, why = "backward" if place.backward else "forward", bits.why_open_family(culprit.family, apart)
    what = f"the decomposition rounds in another way: {apart}"
    return bits.Parting(frame.index, direction, culprit, apart, what, unpromised=why, position=position)


EAGER = "eager"


def _judge_eager(compiler: StrictCompiler) -> bits.PromiseAnswer:
    (eager, again), execution = compiler.eager, compiler.compiled
    outputs = tuple(bits.compare_runs(eager, execution.first))
    if not outputs:
        return bits.PromiseAnswer(EAGER, True, "every output has the bits of eager's")
    if bits.compare_runs(eager, again):
        return bits.PromiseAnswer(EAGER, None, "eager itself gives other bits in its second run", outputs=outputs)
    if all(output.only_payloads for output in outputs):
        why = "nothing but payloads of NaN differs, which IEEE 754 leaves open"
        return bits.PromiseAnswer(EAGER, None, why, outputs=outputs)
    local = _find_local_partings(execution)
    if any(parting.culprit.stage == CODEGEN for parting in local) and not compiler.is_late:
        local = _refine(compiler, execution, local)
    partings = bits.sort_partings((*local, *_find_graph_partings(execution.ledger)))
    return bits.answer_partings(EAGER, "bits part", partings, outputs)


def _differs_from_eager(compiler: StrictCompiler, control: Control) -> bool:
    execution = compiler.execute(control=control)
    if execution.first.failure or not bits.compare_runs(compiler.eager[0], execution.first):
        return bool(execution.first.failure)
    return any(parting.is_promised for parting in _find_local_partings(execution))


def _find_local_partings(execution: Execution) -> list[bits.Parting]:
    """The partings of lowerings and kernels in the calls of the first run, each place once."""
    found: dict[object, bits.Parting] = {}
    for look in watch_graphs(execution.ledger, execution.calls):
        for parting in bits.find_call_partings(look):
            found.setdefault((parting.place, parting.culprit.stage, parting.culprit.nodes), parting)
    return list(found.values())


def _is_of_promised_kernel(parting: bits.Parting) -> bool:
    return parting.is_promised and parting.culprit.stage == CODEGEN


def _find_kernel_partings(compiler: StrictCompiler, control: Control) -> list[bits.Parting]:
    execution = compiler.execute(control=control)
    partings = _find_local_partings(execution) if not execution.first.failure else []
    return list(filter(_is_of_promised_kernel, partings))


def _refine(compiler: StrictCompiler, execution: Execution, partings: list[bits.Parting]) -> list[bits.Parting]:
    """The partings of kernels by their operators, as far as a compile shows those that stores the values of each."""
    finer = _find_kernel_partings(compiler, SHOWN)
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
    named = _find_kept_operator(compiler, by_place[hidden.place], hidden)
    return [named if each is hidden else each for each in kept]


def _find_kept_operator(compiler: StrictCompiler, lowered: ledgers.LoweredGraph, hidden: bits.Parting) -> bits.Parting:
    """The operator whose value a kernel does not keep as it is stored, where storing every value hides the difference.

    That is the first operator that has to be stored, with all after it, for the kernel to be right.
    """
    kernel = lowered.find_kernel(hidden.kernel)
    names = [name for name in (kernel.nodes if kernel is not None else ()) if name in lowered.labels]
    first, last = 0, len(names) - 1
    while first < last and not compiler.is_late:
        middle = (first + last + 1) // 2
        stored = Control(realised=tuple(lowered.labels[name] for name in names[middle:]), stored=True)
        if any(hidden.place == each.place for each in _find_kernel_partings(compiler, stored)):
            last = middle - 1
        else:
            first = middle
    node = lowered.find_node(names[first]) if names and first == last else None
    if node is None:
        return hidden
    what = "the kernel goes on with another value than it would store"
    parting = bits.make_parting(lowered, node, hidden.difference, what, None, kernel)
    return replace(parting, position=hidden.position)


class _Promise(NamedTuple):
    judge: Callable[[StrictCompiler], bits.PromiseAnswer]
    differs: Callable[[StrictCompiler, Control], bool]
    verdict: Verdict


_PROMISES = {
    EAGER: _Promise(_judge_eager, _differs_from_eager, Verdict.PRECISION_LOSS),
    executions.BATCH: _Promise(executions.judge_batch, executions.rows_differ, Verdict.PRECISION_LOSS),
    executions.RUN_TO_RUN: _Promise(executions.judge_run_to_run, executions.repeats_differ, Verdict.NONDETERMINISTIC),
}
# A program that differs from run to run differs from eager too, so that this comes first.
_GRAVEST = (executions.RUN_TO_RUN, EAGER, executions.BATCH)


def _judge_promises(compiler: StrictCompiler, names: Sequence[str] = tuple(_PROMISES)) -> list[bits.PromiseAnswer]:
    return [_judge_promise(name, compiler) for name in _PROMISES if name in names]


def _judge_promise(name: str, compiler: StrictCompiler) -> bits.PromiseAnswer:
    backend = compiler.case.settings.backend
    try:
        if backend != "inductor":
            why = f"the settings are Inductor's, and {backend} compiles"
        elif failure := compiler.eager[0].failure:
            why = f"eager raises {failure}"
        elif failure := compiler.compiled.first.failure:
            why = f"compiled raises {failure}"
        else:
            return _PROMISES[name].judge(compiler)
        return _leave_promise(name, why, unsure=False)
    except OutOfTime:
        return _leave_promise(name, "out of time; raise --timeout")
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:  # of a program run in other ways, or of the looking: the other promises still stand
        return _leave_promise(name, describe_error(error))


def _leave_promise(name: str, why: str, *, unsure: bool = True) -> bits.PromiseAnswer:
    return bits.PromiseAnswer(name, None, f"not looked at: {why}", unsure=unsure)


def _select_gravest(promises: Sequence[bits.PromiseAnswer]) -> bits.PromiseAnswer | None:
    broken = {promise.name: promise for promise in promises if promise.holds is False}
    return next((broken[name] for name in _GRAVEST if name in broken), None)


def _judge(
    compiler: StrictCompiler, report: TriageReport, names: Sequence[str]
) -> tuple[TriageReport, list[bits.PromiseAnswer], TriageReport]:
    """The report with what judging cost, the promises, and the report with the gravest broken one as its verdict.

    A compile in which ATen computes the operator where bits part first proves it.
    """
    started, replays, cost = time.perf_counter(), GraphReplayer.replays, report.cost
    promises = _judge_promises(compiler, names)
    broken = _select_gravest(promises)
    first, ablations, necessary = broken.first if broken is not None else None, list[Ablation](), None
    operator = first.culprit.rewrite if first is not None else None
    if broken is not None and operator is not None and not compiler.is_late:
        with contextlib.suppress(OutOfTime):
            necessary = not _PROMISES[broken.name].differs(compiler, Control(fallbacks=(operator,)))
            ablations.append(Ablation(f"ATen computes {operator}", necessary, None))
    compiles, replays = cost.compiles + compiler.compiles, cost.replays + GraphReplayer.replays - replays
    seconds = cost.seconds + time.perf_counter() - started
    report = replace(report, cost=replace(cost, compiles=compiles, replays=replays, seconds=seconds))
    if broken is None:
        return report, promises, report
    culprit = None
    if first is not None:
        details: DetailsJson = {"kernel": first.kernel, "graph": first.direction, "parting": first.detail}
        culprit = replace(first.culprit, necessary=necessary, details=details)
    attribution = replace(report.attribution, culprit=culprit, ablations=[*report.attribution.ablations, *ablations])
    sure = "high" if necessary and not broken.unsure else "low"
    judged = replace(report, verdict=_PROMISES[broken.name].verdict, confidence=sure, attribution=attribution)
    return report, promises, replace(judged, detail=f"{broken.name}: {broken.why}")


BITWISE = "bitwise"


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

    ``case`` is under the strict settings, ``own`` as its author wrote it. ``vetoes`` are refused throughout; no compile
    is begun after ``deadline``, a value of ``time.monotonic()``.
    """
    compiler = StrictCompiler(case, device, tuple(vetoes), deadline)
    report, promises, judged = _judge(compiler, report, tuple(_PROMISES))
    if not report.is_bug and judged is not report:
        report = replace(judged, detail=f"bitwise contract, {judged.detail}")
    elif any(promise.unsure for promise in promises) or _missed_something():
        report = replace(report, confidence="low")
    replaced = executions.list_replaced_settings(own)
    said = [f"the contract replaces what the case sets itself: {', '.join(replaced)}"] if replaced else []
    notes = tuple(dict.fromkeys((*report.notes, *format_unseen(get_gathered()), *said)))
    return replace(report, contract=_make_contract_json(promises), notes=notes)


def _missed_something() -> bool:
    return not all(missed.harmless for missed in get_gathered())


def _make_contract_json(promises: Sequence[bits.PromiseAnswer]) -> ContractJson:
    settings = executions.strict_settings()
    return {
        "name": BITWISE,
        "settings": settings,
        "promised": {entry: words for entry, words in facts().bitwise.promises.items() if entry in settings},
        "compared": "bits; payloads of NaN are counted apart and never a broken promise, signs of zeros count",
        "promises": [promise.to_json() for promise in promises],
    }


def make_unjudged_contract(why: str) -> ContractJson:
    """Return the contract of a case whose promises were not examined."""
    return _make_contract_json([_leave_promise(name, why) for name in _PROMISES])


# The promises of equal bits that a case's own settings make, judged with no ``--contract`` asked for.

DETERMINISTIC = "torch.use_deterministic_algorithms: equal bits from run to run"
"""Its documentation: such algorithms, "given the same input, and when run on the same software and hardware, always
produce the same output". Of ``config.deterministic`` torch says less: it takes numerics from no timing."""
# Of the strict settings, those that promise something else than eager's bits.
_OTHER_PROMISES = ("deterministic", "batch_invariant", "fallback_random")


def find_promises(case: Case, device: torch.device, *, rounding: bool) -> dict[str, str]:
    """The promises of equal bits that the case asks for, each with the words of a report.

    ``rounding``: some value has other bits than eager's. The CPU's code rounds as eager does once casts are kept, where
    there is something to cast; a GPU's takes all settings.
    """
    settings = case.settings
    if settings.backend != "inductor":
        return {}
    own = {**settings.inductor, **settings.options}
    strict = {name: value for name, value in executions.strict_settings().items() if name not in _OTHER_PROMISES}
    as_eager = device.type == "cpu" or all(own.get(name) == value for name, value in strict.items())
    promises: dict[str, str] = {}
    if rounding and as_eager and asks_for_casts(settings) and computes_in_short_floats(case, device):
        promises[EAGER] = describe_promise("emulate_precision_casts")
    if own.get("batch_invariant") is True:
        promises[executions.BATCH] = describe_promise("batch_invariant")
    if own.get("deterministic") is True:
        promises[executions.RUN_TO_RUN] = describe_promise("deterministic")
    if torch.are_deterministic_algorithms_enabled():
        promises[executions.RUN_TO_RUN] = DETERMINISTIC
    return promises


def find_broken_bits(
    case: Case, device: torch.device, wanted: str, *, vetoes: Sequence[str] = ()
) -> tuple[bits.PromiseAnswer | None, int]:
    """The promise of equal bits that reports call ``wanted``, if a case asks for it and breaks it; and the compiles."""
    names = tuple(name for name, words in find_promises(case, device, rounding=True).items() if words == wanted)
    compiler = StrictCompiler(case, device, tuple(vetoes))
    return _select_gravest(_judge_promises(compiler, names)) if names else None, compiler.compiles


@gather_unseen()
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
    report, promises, judged = _judge(StrictCompiler(case, device, tuple(vetoes), deadline), report, tuple(wanted))
    unseen = [f"{wanted[each.name]}: {each.why}" for each in promises if each.holds is None and each.unsure]
    broken = _select_gravest(promises)
    if broken is not None:
        report = replace(judged, promise=wanted[broken.name])
    elif unseen or _missed_something():
        report = replace(report, confidence="low")
    return replace(report, notes=(*report.notes, *unseen))
