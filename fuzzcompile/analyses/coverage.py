"""Rules of the installed torch and what a corpus has seen of them: a listing, and coverage by stage.

Rules are passes, patterns, operators with a decomposition or lowering, and settings.

Of the compiler's Python it measures the share that cases reach, by statements and branches: a sample of those that
campaigns have judged is judged once more, by workers that have a probe in each statement and each branch of an
expression (`fuzzcompile.compiler.source_probes`). Of a function's code, what runs on import alone has no probe.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch

from fuzzcompile.compiler.rule_catalogue import Kind, KnownRule, list_known_rules
from fuzzcompile.compiler.sdpa_patterns import VariantResult, list_registered, read_variants, try_variants
from fuzzcompile.compiler.source_probes import ROOT, LineWatch, watch_lines
from fuzzcompile.corpus.models import CampaignRow, CoverageRow
from fuzzcompile.corpus.records import CorpusError, Counters, JudgedCase, campaign_seconds, identify_compiler, moment_at
from fuzzcompile.corpus.store import Store
from fuzzcompile.diagnosis.worker.judge import judge_file
from fuzzcompile.diagnosis.worker.local_pool import open_pool
from fuzzcompile.diagnosis.worker.worker_loss import make_start_error
from fuzzcompile.model.compiler_toggles import FOR_GPU, TOGGLES
from fuzzcompile.model.conditions import Conditions, Limits
from fuzzcompile.model.errors import FuzzcompileError
from fuzzcompile.model.facts import Facts, UnreachableReason, facts
from fuzzcompile.model.focus_plan import Span
from fuzzcompile.model.judge_task import JudgeTask
from fuzzcompile.model.stages import DECOMPOSITION, LOWERING, SCHEDULER, find_file_stage
from fuzzcompile.model.targets import find_target
from fuzzcompile.run.pool.worker import WorkerStartFailed

# The kinds that are rewrite rules or observed passes, not operators or kernels.
RULES = ("pass", "pattern")
UNREGISTERED = "not registered in this torch"
# What the corpus counts there are shapes of kernels, which torch does not register.
_UNLISTED = (SCHEDULER,)
_KINDS: Mapping[str, Kind] = {DECOMPOSITION: "decomposition", LOWERING: "lowering"}
# A process that compiles for a target registers its patterns first; trying all of those for attention takes minutes.
_SECONDS = 900.0

Result = TypeVar("Result")


def _ask_target(target: str | None, ask: Callable[[torch.device], Result], device: torch.device) -> Result:
    """Return the result of ``ask`` for ``device``, for a target in a process that compiles for it."""
    if target is None:
        return ask(device)
    with open_pool(Conditions(str(device), limits=Limits(_SECONDS), target=target), 1) as pool:
        try:
            return pool.submit(ask, device).result()
        except WorkerStartFailed as error:
            raise make_start_error(error) from error


def _list_sendable(device: torch.device) -> list[KnownRule]:
    """Return what is registered, without torch's own objects, which a process cannot send."""
    return [replace(row, made_of=()) for row in list_known_rules(device)]


@dataclass(frozen=True)
class ListedRule:
    """One pass, pattern, operator or setting with its counts in the corpus; None where nothing is counted."""

    known: KnownRule
    fired: int | None = None
    refused: int | None = None  # by the rule's own check
    fallback: int | None = None  # an operator with a lowering was called all the same

    def to_json(self) -> dict[str, object]:
        """Everything, as plain JSON."""
        counts = {} if self.known.kind == "setting" else {"fired": self.fired, "refused": self.refused}
        own = {key: value for key, value in vars(self.known).items() if key != "made_of"}
        return {**{key: value for key, value in own.items() if value not in (None, "") or key == "on"}, **counts}


def list_rules(
    device: torch.device, location: str | None, *, target: str | None = None, until: datetime | None = None
) -> tuple[list[ListedRule], str | None]:
    """The catalogue of the installed torch with the counts of a corpus, and that corpus (None: there is none).

    Rewrites that the corpus saw under this torch but torch does not register (a user's own passes) are added. Without
    a ``location``, the counts are those of the default corpus, if there is one. With a ``target``, what is registered
    for it is listed; what a case judged after ``until`` was the first to reach counts as never reached.
    """
    known = _ask_target(target, _list_sendable, device)
    compiler = identify_compiler({"torch": str(torch.__version__), "target": target})
    try:
        with Store.open(location, create=False) as store:
            seen, corpus = store.coverage(compiler, until=until), store.location
    except CorpusError:
        if location is not None:
            raise
        return [ListedRule(row) for row in known], None
    return _count_rules(known, seen), corpus


def _count_rules(known: Sequence[KnownRule], seen: Iterable[CoverageRow]) -> list[ListedRule]:
    counts = defaultdict[tuple[str, str], dict[str, Counter[str]]](lambda: defaultdict(Counter))
    for row in seen:
        counts[row.stage, row.rewrite][row.pass_name or ""][row.outcome] += row.count
    passes = defaultdict[tuple[str, str], set[str]](set)
    for rule in known:
        passes[rule.stage, rule.name].add(rule.pass_name or "")
    # A table of patterns counts as often as its patterns fired, and a pass as often as the rules that it makes.
    inside = defaultdict[tuple[str, str | None], Counter[str]](Counter)
    counted = list[tuple[KnownRule, Counter[str]]]()
    for rule in known:
        by_pass = counts.get((rule.stage, rule.name), {})
        # A name that stands once is counted whatever pass ran it: tables without a name get that of their caller.
        alone = len(passes[rule.stage, rule.name]) == 1
        own = by_pass.values() if alone else [by_pass.get(rule.pass_name or "", Counter())]
        counted.append((rule, sum(own, Counter[str]())))
        if rule.kind == "pattern":
            inside[rule.stage, rule.pass_name].update(counted[-1][1])
    unregistered = {at: by_pass for at, by_pass in counts.items() if at not in passes and at[0] not in _UNLISTED}
    for (stage, _), by_pass in unregistered.items():
        for pass_name, outcomes in by_pass.items():
            inside[stage, pass_name].update(outcomes)
    for rule, total in counted:
        if rule.kind == "pass":
            total.update(inside[rule.stage, rule.name])
    for (stage, name), by_pass in unregistered.items():
        rule = KnownRule(stage, _KINDS.get(stage, "pass"), name, next(iter(by_pass)) or None, when=UNREGISTERED)
        counted.append((rule, sum(by_pass.values(), Counter[str]())))
    return [
        ListedRule(rule)
        if rule.kind == "setting"
        else ListedRule(rule, total["fired"], total["refused"], total["fallback"] if rule.kind == "lowering" else None)
        for rule, total in counted
    ]


# Coverage: what campaigns have reached of all that torch registers.


@dataclass(frozen=True)
class StageCoverage:
    """All entries of one kind in one stage, grouped by outcome."""

    stage: str
    kind: str  # pass, pattern, decomposition, lowering or kernel
    known: int | None  # how many torch registers; None for kernels, which are not registered
    fired: Sequence[str] = ()
    refused: Sequence[str] = ()  # matched, and its own check refused every match
    fallback: Sequence[str] = ()  # operators that were only called where others are lowered
    off: Sequence[str] = ()  # never reached, and does not run under the present settings
    never: Sequence[str] = ()  # never reached, for no known reason
    # Never reached, with the reason why this device or the default configuration cannot reach it.
    unreachable: Mapping[str, UnreachableReason] = field(default_factory=dict)

    @property
    def share(self) -> float | None:
        """The share that fired or was called, of what has no reason against it; None for kernels, or of nothing."""
        reachable = (self.known or 0) - len(self.unreachable)
        return (len(self.fired) + len(self.fallback)) / reachable if reachable else None

    def to_json(self) -> dict[str, object]:
        """Everything, names included, as plain JSON."""
        reasons = {name: {"group": reason.group, "why": reason.why} for name, reason in self.unreachable.items()}
        return {**vars(self), "unreachable": reasons, "share": self.share}


@dataclass
class CoverageTotal:
    """Counts of the rewrite rules and observed passes of all stages."""

    known: int
    unreachable: int | None  # those with a reason against them; None if no reasons were checked on this torch
    fired: int

    def __post_init__(self) -> None:
        reachable = None if self.unreachable is None else max(self.known - self.unreachable, 1)
        self.share = None if reachable is None else self.fired / reachable  # of those that can be reached
        self.share_of_known = self.fired / max(self.known, 1)  # of all that torch registers


@dataclass(frozen=True)
class CoverageTable:
    """The coverage that campaigns reached under one torch."""

    torch: str
    device: str  # where rules would run
    target: str | None  # the target that the compiler generated code for; None for ``device``
    corpus: str  # where it was counted
    stages: Sequence[StageCoverage]
    seen: Sequence[CoverageRow]  # the entries that the corpus has reached
    within: float | None  # the seconds of campaign time that were asked for; None for all
    ran: float  # the seconds of campaign time that were counted
    campaigns: Sequence[CampaignRow]  # those that started in that time
    counters: Counters  # of the cases that they judged
    note: str | None  # why no rule counts as unreachable; None where reasons were checked on this torch

    @property
    def rules(self) -> CoverageTotal:
        """All rewrite rules and observed passes together."""
        rows = [row for row in self.stages if row.kind in RULES]
        unreachable = None if self.note else sum(len(row.unreachable) for row in rows)
        return CoverageTotal(sum(row.known or 0 for row in rows), unreachable, sum(len(row.fired) for row in rows))


def measure_coverage(
    device: torch.device, location: str | None, within: float | None = None, *, target: str | None = None
) -> CoverageTable:
    """Compare the coverage of a corpus under the installed torch with all that this torch registers.

    Rules would run on ``device``, or are those that campaigns for ``target`` reached. ``within`` counts only what
    campaigns had judged in their first so many seconds together. CorpusError if there is no corpus.
    """
    own, version, until = facts(), str(torch.__version__), None
    compiler = identify_compiler({"torch": version, "target": target})
    kind = device.type if target is None else find_target(target).device_type
    with Store.open(location, create=False) as store:
        campaigns = [campaign for campaign in store.campaigns() if identify_compiler(campaign.environment) == compiler]
        if within is not None:
            until = moment_at(campaigns, within) or datetime.now(UTC)
            campaigns = [campaign for campaign in campaigns if campaign.started <= until]
        counters = store.counters(compiler=compiler, until=until)
        seen, corpus = store.coverage(compiler, until=until), store.location
    groups = defaultdict[tuple[str, str], list[ListedRule]](list)
    for row in list_rules(device, location, target=target, until=until)[0]:
        # A pass that torch does not register (a user's own) could only ever count as reached.
        if row.known.kind != "setting" and row.known.when != UNREGISTERED:
            groups[row.known.stage, row.known.kind].append(row)
    reasons = own if target is None else None
    stages = [_measure_stage(*group, rows, kind, reasons) for group, rows in groups.items()]
    # The shapes of kernels that were scheduled, the most frequent first.
    shapes = sorted((-row.count, row.rewrite) for row in seen if row.stage == SCHEDULER)
    if shapes:
        stages.append(StageCoverage(SCHEDULER, "kernel", None, [name for _, name in shapes]))
    ran = min(campaign_seconds(campaigns), float("inf") if within is None else within)
    note = None
    if target is not None:
        note = f"Which rules {target} cannot reach was not checked, so no share of what it can is given."
    elif not own.has_reasons:
        unchecked = f"Which rules cannot be reached was not checked on torch {own.version}"
        note = f"{unchecked}, so no share of what can be is given."
    return CoverageTable(version, device.type, target, corpus, stages, seen, within, ran, campaigns, counters, note)


@cache
def list_switched_on(*, gpu: bool = False) -> frozenset[str]:
    """Settings that some toggle of the generator changes, with ``gpu`` for a GPU too; written as in a reason."""
    toggles = (*TOGGLES, *FOR_GPU) if gpu else TOGGLES
    entries: list[tuple[str, object]] = [entry for toggle in toggles for entry in toggle.options]
    inside = {f"{name}:{key}" for name, value in entries if isinstance(value, Mapping) for key in value}
    return frozenset({name for name, _ in entries} | inside)


def _measure_stage(
    stage: str, kind: str, rows: Sequence[ListedRule], device_type: str, own: Facts | None
) -> StageCoverage:
    names = defaultdict[str, list[str]](list)
    unreachable = dict[str, UnreachableReason]()
    same_name = Counter(row.known.name for row in rows)
    for row in rows:
        known, reached = row.known, [outcome for outcome in ("fired", "fallback", "refused") if getattr(row, outcome)]
        outcome = reached[0] if reached else "off" if known.on is False else "never"
        alone = same_name[known.name] == 1 or not known.pass_name
        name = known.name if alone else f"{known.name} ({known.pass_name})"
        reason = None
        if own is not None and kind in RULES and outcome not in ("fired", "fallback"):
            reason = own.find_reason(stage, known.name, device_type, list_switched_on(gpu=device_type != "cpu"))
        if reason is None:
            names[outcome].append(name)
        else:
            unreachable[name] = reason
    return StageCoverage(stage, kind, len(rows), unreachable=unreachable, **names)


@dataclass
class AttentionCoverage:
    """Names of SDPA patterns, in the order in which torch registers them."""

    registered: Sequence[str]
    can_fire: Sequence[str]  # when a search function of the patterns is compiled
    fired: Sequence[str]  # for a case of the corpus
    untried: dict[str, str]  # those whose search function does not compile, with the reason

    def __post_init__(self) -> None:
        self.never = [name for name in self.can_fire if name not in self.fired]
        self.silent = [name for name in self.registered if name not in self.can_fire]  # for any search function
        self.share = 1 - len(self.never) / len(self.can_fire) if self.can_fire else None  # of those that can fire


def measure_attention_coverage(
    device: torch.device,
    seen: Iterable[CoverageRow],
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    target: str | None = None,
) -> AttentionCoverage:
    """Compile every SDPA pattern's own search function (a minute on a CPU) and compare with what a corpus has seen.

    ``on_progress`` is told after each how many are done, and how many there are; not for a ``target``, in a process
    for which they are tried. EnvironmentUnfit if torch keeps no list of its patterns where it is expected.
    """
    known, attempts = (
        _try_patterns(device, on_progress) if target is None else _ask_target(target, _try_patterns, device)
    )
    can_fire = {name for attempt in attempts for name in attempt.fired}
    untried = {attempt.name: attempt.trouble for attempt in attempts if attempt.trouble is not None}
    fired = {row.rewrite for row in seen if row.outcome == "fired"}
    return AttentionCoverage(
        known, [name for name in known if name in can_fire], [name for name in known if name in fired], untried
    )


def _try_patterns(
    device: torch.device, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> tuple[list[str], list[VariantResult]]:
    candidates, attempts = read_variants(device), list[VariantResult]()
    for attempt in try_variants(device, candidates):
        attempts.append(attempt)
        on_progress(len(attempts), len(candidates))
    return list_registered(device), attempts


# Relative to torch's folder.
_FILES = (
    "_dynamo/variables/*.py", "_dynamo/symbolic_convert.py", "_dynamo/guards.py", "_dynamo/side_effects.py",
    "_dynamo/output_graph.py", "_dynamo/codegen.py", "_dynamo/resume_execution.py",
    "_functorch/partitioners.py", "_functorch/_aot_autograd/*.py", "_subclasses/functional_tensor.py", "_decomp/*.py",
    "_refs/**/*.py", "_prims/__init__.py", "_prims_common/*.py", "_meta_registrations.py", "_subclasses/fake_impls.py",
    "_inductor/bounds.py", "_inductor/constant_folding.py", "_inductor/decomposition.py", "_inductor/dependencies.py",
    "_inductor/dtype_propagation.py", "_inductor/freezing.py", "_inductor/fx_passes/*.py", "_inductor/fx_utils.py",
    "_inductor/graph.py", "_inductor/index_propagation.py", "_inductor/inductor_prims.py", "_inductor/ir.py",
    "_inductor/loop_body.py", "_inductor/lowering.py", "_inductor/*_lowerings.py", "_inductor/memory.py",
    "_inductor/mkldnn_ir.py", "_inductor/ops_handler.py", "_inductor/optimize_indexing.py",
    "_inductor/pattern_matcher.py", "_inductor/scheduler.py", "_inductor/sizevars.py", "_inductor/codegen/common.py",
    "_inductor/codegen/cpp*.py", "_inductor/codegen/simd.py", "_inductor/codegen/wrapper.py",
    "_inductor/codegen/memory_planning.py",
)  # fmt: skip
# Keys of caches, logs, and what only other devices or distributed programs run.
_LEFT_OUT = {
    "autograd_cache.py", "aot_autograd_result.py", "logging_utils.py", "streams.py", "bucketing.py", "decomp_comms.py",
    "ddp_fusion.py", "fsdp.py", "low_contention_collectives.py", "micro_pipeline_tp.py", "overlap_scheduling.py",
    "overlap_manual_scheduling.py", "overlap_preserving_bucketer.py", "node_runtime_estimation.py", "spmd_check.py",
    "memory_estimator.py", "numeric_utils.py", "profile_guided_estimation.py", "cpp_wrapper_gpu.py",
    "cpp_wrapper_mps.py", "cpp_wrapper_cpu_array_ref.py", "distributed.py", "script_object.py",
}  # fmt: skip
_LEAST_THREADS = 1
_SEED = 0


def list_compiler_files() -> dict[str, str]:
    """The stage of each file of the compiler that a CPU runs, by its path from the folder that holds torch."""
    paths = {path for pattern in _FILES for path in (ROOT / "torch").glob(pattern) if path.name not in _LEFT_OUT}
    names = sorted(path.relative_to(ROOT).as_posix() for path in paths)
    return {name: stage for name in names if (stage := find_file_stage(name)) is not None}


@dataclass(frozen=True)
class StageCode:
    """Statements and branches of a stage: how many there are, and how many were reached.

    ``missed`` has for each file the number of those that were not, the largest first.
    """

    stage: str
    known: int
    reached: int
    missed: tuple[tuple[str, int], ...]

    @property
    def share(self) -> float:
        """The share reached, from 0 to 1."""
        return self.reached / self.known if self.known else 0.0

    def to_json(self) -> dict[str, object]:
        """The JSON form."""
        return {**vars(self), "share": self.share, "missed": dict(self.missed)}


@dataclass(frozen=True)
class CodeCoverage:
    """What ``cases`` of the ``judged`` cases of a corpus reach, by stage; ``failed`` could not be judged again."""

    stages: tuple[StageCode, ...]
    cases: int
    judged: int
    failed: int

    @property
    def total(self) -> StageCode:
        """All stages together."""
        missed = (row for stage in self.stages for row in stage.missed)
        known, reached = sum(each.known for each in self.stages), sum(each.reached for each in self.stages)
        return StageCode("all", known, reached, tuple(sorted(missed, key=lambda row: -row[1])))

    def to_json(self) -> dict[str, object]:
        """The JSON form."""
        counted = {"cases": self.cases, "judged": self.judged, "failed": self.failed}
        return {**counted, "share": self.total.share, "stages": [stage.to_json() for stage in self.stages]}


def measure_code(
    cases: Sequence[JudgedCase], conditions: Conditions, seconds: float, workers: int, say: Callable[[str], None]
) -> CodeCoverage:
    """Judge cases anew, in random order, for so many seconds at most, and count what they reach.

    Each is screened or judged in full as it was; no culprit is looked for. ``say`` is called with the progress.
    """
    order = random.Random(_SEED).sample(list(cases), len(cases))
    reached, done, failed = set[int](), 0, 0
    with tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder:
        plant = Path(folder, "probes.py")
        plant.write_text(f"from {__name__} import watch_compiler\nwatch_compiler()\n", encoding="utf-8")
        conditions = replace(conditions, plants=(*conditions.plants, plant))
        with open_pool(conditions, workers, least_threads=_LEAST_THREADS) as pool:
            files = pool.submit(list_probes).result()
            ends, waiting, running = time.monotonic() + seconds, iter(order), set[Future[tuple[int, ...]]]()
            while True:
                free = workers - len(running) if time.monotonic() < ends else 0
                for case in itertools.islice(waiting, free):
                    task = JudgeTask(path=f"{case.name}.py", source=case.source, screen=case.screened, seconds=0.0)
                    running.add(pool.submit(judge_with_probes, task))
                if not running:
                    break
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    done += 1
                    try:
                        reached.update(future.result())
                    except Exception:  # the case, or its worker, is lost: it is counted
                        failed += 1
                say(f"{done} of {len(order)} cases: {len(reached)} of {len(files)} statements and branches")
    return CodeCoverage(tuple(_count_stages(files, reached)), done, len(cases), failed)


def _count_stages(files: Sequence[str], reached: set[int]) -> list[StageCode]:
    stages = list_compiler_files()
    known, met = Counter(files), Counter(files[number] for number in reached)
    rows = []
    for stage in dict.fromkeys(stages.values()):
        own = [file for file in known if stages[file] == stage]
        missed = sorted(((file, known[file] - met[file]) for file in own), key=lambda row: -row[1])
        rows.append(StageCode(stage, sum(known[f] for f in own), sum(met[f] for f in own), tuple(missed)))
    return [row for row in rows if row.known]


# In a worker.

_watched: list[LineWatch] = []
_kept = contextlib.ExitStack()
_told: set[int] = set()


def watch_compiler() -> None:
    """Put a probe into every function of the compiler's files, for the life of this process."""
    _watched.append(_kept.enter_context(watch_lines(Span(file) for file in list_compiler_files())))


def list_probes() -> tuple[str, ...]:
    """The file of each probe, by its number."""
    return tuple(probe.span.file for probe in _watched[0].probes)


def judge_with_probes(task: JudgeTask) -> tuple[int, ...]:
    """Judge a case; return the numbers of the probes that no case of this process had reached before."""
    with contextlib.suppress(FuzzcompileError):  # what it compiled until then counts
        judge_file(task)
    new = _watched[0].reached - _told
    _told.update(new)
    return tuple(new)
