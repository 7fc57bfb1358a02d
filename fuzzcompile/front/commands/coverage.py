"""Coverage of a corpus: its share of all that the installed torch can do, by stage."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache

import torch

from fuzzcompile.compiler.inductor_toggles import FOR_GPU, TOGGLES
from fuzzcompile.compiler.sdpa_patterns import VariantResult, list_registered, read_variants, try_variants
from fuzzcompile.corpus.records import (
    Counters,
    StoredCampaign,
    StoredCoverage,
    campaign_seconds,
    identify_compiler,
    moment_at,
)
from fuzzcompile.corpus.store import Store
from fuzzcompile.front.commands.passes import UNREGISTERED, ListedPass, ask_target, list_passes
from fuzzcompile.fuzz.campaign.budget import format_duration
from fuzzcompile.model.facts import Facts, UnreachableReason, facts
from fuzzcompile.model.privacy import scrub
from fuzzcompile.model.stages import SCHEDULER
from fuzzcompile.model.targets import find_target
from fuzzcompile.model.templates import get_environment
from fuzzcompile.model.versions import __version__
from fuzzcompile.report.circumstances import versions
from fuzzcompile.run.device import describe_environment

# The kinds that are rewrite rules or observed passes, not operators or kernels.
RULES = ("pass", "pattern")


@dataclass(frozen=True)
class StageCoverage:
    """All entries of one kind in one stage, grouped by outcome."""

    stage: str  # the stage
    kind: str  # pass, pattern, decomposition, lowering or kernel
    known: int | None  # how many torch registers; None for kernels, which are not registered
    fired: Sequence[str] = ()  # fired at least once
    refused: Sequence[str] = ()  # matched, and its own check refused every match
    fallback: Sequence[str] = ()  # operators that were only called where others are lowered
    off: Sequence[str] = ()  # never reached, and does not run under the present settings
    never: Sequence[str] = ()  # never reached, for no known reason
    # never reached, with the reason why this device or the default configuration cannot reach it
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


@dataclass(frozen=True)
class CoverageTotal:
    """Counts of the rewrite rules and observed passes of all stages.

    ``unreachable`` counts those with a reason against them; None if no reasons were checked on this torch.
    """

    known: int
    unreachable: int | None
    fired: int

    @property
    def share_of_known(self) -> float:
        """The share that fired of all that torch registers."""
        return self.fired / max(self.known, 1)

    @property
    def share(self) -> float | None:
        """The share that fired of those that can be reached; None if that is not known."""
        return None if self.unreachable is None else self.fired / max(self.known - self.unreachable, 1)

    def to_json(self) -> dict[str, object]:
        """As plain JSON."""
        return {**vars(self), "share": self.share, "share_of_known": self.share_of_known}


@dataclass(frozen=True)
class CoverageTable:
    """The coverage that campaigns reached under one torch."""

    torch: str  # its version
    device: str  # where rules would run
    target: str | None  # the target that the compiler generated code for; None for ``device``
    corpus: str  # where it was counted
    stages: Sequence[StageCoverage]  # the stages in order
    seen: Sequence[StoredCoverage]  # the entries that the corpus has reached
    within: float | None  # the seconds of campaign time that were asked for; None for all
    ran: float  # the seconds of campaign time that were counted
    campaigns: Sequence[StoredCampaign]  # the campaigns that started in that time
    counters: Counters  # the counts of cases that they judged
    note: str | None  # why no rule counts as unreachable; None where reasons were checked on this torch

    @property
    def rules(self) -> CoverageTotal:
        """All rewrite rules and observed passes together."""
        rows = [row for row in self.stages if row.kind in RULES]
        unreachable = None if self.note else sum(len(row.unreachable) for row in rows)
        return CoverageTotal(sum(row.known or 0 for row in rows), unreachable, sum(len(row.fired) for row in rows))


def measure_coverage(
    device: torch.device,
    location: str | None,
    within: float | None = None,
    version_facts: Facts | None = None,
    *,
    target: str | None = None,
) -> CoverageTable:
    """Compare the coverage of a corpus under the installed torch with all that this torch registers.

    Args:
        device: where rules would run.
        location: path or URL of the corpus; None for the default one.
        within: count only what campaigns had judged in their first so many seconds together.
        version_facts: the facts whose reasons apply; by default those of the installed torch.
        target: count what campaigns for this target reached.

    Raises:
        CorpusError: there is no corpus.
    """
    own = version_facts or facts()
    version, until = str(torch.__version__), None
    compiler = identify_compiler({"torch": version, "target": target})
    kind = device.type if target is None else find_target(target).device_type
    with Store.open(location, create=False) as store:
        campaigns = [campaign for campaign in store.campaigns() if identify_compiler(campaign.environment) == compiler]
        if within is not None:
            until = moment_at(campaigns, within) or datetime.now(UTC)
            campaigns = [campaign for campaign in campaigns if campaign.started <= until]
        counters = store.counters(compiler=compiler, until=until)
        seen, corpus = store.coverage(compiler, until=until), store.location
    groups = defaultdict[tuple[str, str], list[ListedPass]](list)
    for row in list_passes(device, location, target=target, until=until).rows:
        # A pass that torch does not register (a user's own) could only ever count as reached.
        if row.known.kind != "setting" and row.known.when != UNREGISTERED:
            groups[row.known.stage, row.known.kind].append(row)
    reasons = own if target is None else None
    stages = [_measure_stage(*group, rows, kind, reasons) for group, rows in groups.items()]
    ran = min(campaign_seconds(campaigns), float("inf") if within is None else within)
    return CoverageTable(
        version,
        device.type,
        target,
        corpus,
        [*stages, *_count_kernels(seen)],
        seen,
        within,
        ran,
        campaigns,
        counters,
        _make_note(own, target),
    )


def _make_note(own: Facts, target: str | None) -> str | None:
    if target is not None:
        return f"Which rules {target} cannot reach was not checked, so no share of what it can is given."
    if own.has_reasons:
        return None
    return f"Which rules cannot be reached was not checked on torch {own.version}, so no share of what can be is given."


@cache
def list_switched_on(*, gpu: bool = False) -> frozenset[str]:
    """Settings that some toggle of the generator changes, with ``gpu`` for a GPU too; written as in a reason."""
    toggles = (*TOGGLES, *FOR_GPU) if gpu else TOGGLES
    entries: list[tuple[str, object]] = [entry for toggle in toggles for entry in toggle.options]
    inside = {f"{name}:{key}" for name, value in entries if isinstance(value, Mapping) for key in value}
    return frozenset({name for name, _ in entries} | inside)


def _measure_stage(
    stage: str, kind: str, rows: Sequence[ListedPass], device_type: str, own: Facts | None
) -> StageCoverage:
    names = defaultdict[str, list[str]](list)
    unreachable = dict[str, UnreachableReason]()
    for row in rows:
        outcome, name = _classify_outcome(row), _format_name(row, rows)
        reason = None
        if own is not None and kind in RULES and outcome not in ("fired", "fallback"):
            reason = own.find_reason(stage, row.known.name, device_type, list_switched_on(gpu=device_type != "cpu"))
        if reason is None:
            names[outcome].append(name)
        else:
            unreachable[name] = reason
    return StageCoverage(stage, kind, len(rows), unreachable=unreachable, **names)


def _classify_outcome(row: ListedPass) -> str:
    if row.fired:
        return "fired"
    if row.fallback:
        return "fallback"
    if row.refused:
        return "refused"
    return "off" if row.known.on is False else "never"


def _format_name(row: ListedPass, rows: Iterable[ListedPass]) -> str:
    """The name, with its pass where the stage has another of that name."""
    known = row.known
    alone = sum(candidate.known.name == known.name for candidate in rows) == 1
    return known.name if alone or not known.pass_name else f"{known.name} ({known.pass_name})"


def _count_kernels(seen: Iterable[StoredCoverage]) -> Iterator[StageCoverage]:
    """The shapes of kernels that were scheduled, the most frequent first."""
    shapes = sorted((-row.count, row.rewrite) for row in seen if row.stage == SCHEDULER)
    if shapes:
        yield StageCoverage(SCHEDULER, "kernel", None, [name for _, name in shapes])


# Coverage of SDPA patterns: those that can fire on a device, and those that a corpus has made fire.


@dataclass(frozen=True)
class AttentionCoverage:
    """Names of SDPA patterns, in the order in which torch registers them."""

    registered: Sequence[str]  # all that torch registers for the device
    can_fire: Sequence[str]  # fire when a search function of the patterns is compiled
    fired: Sequence[str]  # fired for a case of the corpus
    untried: dict[str, str]  # those whose search function does not compile, with the reason

    @property
    def never(self) -> list[str]:
        """Those that can fire and never did."""
        return [name for name in self.can_fire if name not in self.fired]

    @property
    def silent(self) -> list[str]:
        """Those that do not fire for any search function."""
        return [name for name in self.registered if name not in self.can_fire]

    @property
    def share(self) -> float | None:
        """The share of those that can fire which did; None where none can."""
        return 1 - len(self.never) / len(self.can_fire) if self.can_fire else None

    def to_json(self) -> dict[str, object]:
        """Everything, names included, as plain JSON."""
        return {**vars(self), "never": self.never, "silent": self.silent, "share": self.share}


def measure_attention_coverage(
    device: torch.device,
    seen: Iterable[StoredCoverage],
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    target: str | None = None,
) -> AttentionCoverage:
    """Compile every SDPA pattern's own search function (a minute on a CPU) and compare with what a corpus has seen.

    Args:
        device: where the patterns would run.
        seen: what the corpus has reached.
        on_progress: called after each with how many are done, and how many there are; not for a target.
        target: try the patterns in a process that compiles for this target.

    Raises:
        EnvironmentUnfit: the installed torch keeps no list of its SDPA patterns where fuzzcompile expects it.
    """
    known, attempts = (
        _try_patterns(device, on_progress) if target is None else ask_target(target, _try_patterns, device)
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
    """The registered patterns, and what the search function of each made fire."""
    candidates, attempts = read_variants(device), list[VariantResult]()
    for attempt in try_variants(device, candidates):
        attempts.append(attempt)
        on_progress(len(attempts), len(candidates))
    return list_registered(device), attempts


# A coverage table as a report in Markdown.


def format_coverage_report(table: CoverageTable, patterns: AttentionCoverage | None, missing: str | None) -> str:
    """The report: what was counted, the table by stage, SDPA patterns, what cannot be reached and why, what never was.

    Args:
        table: what was reached.
        patterns: the SDPA patterns; None to leave them out.
        missing: why they are left out, as a sentence, if they were asked for.
    """
    rules = [row for row in table.stages if row.kind in RULES]
    names = defaultdict[tuple[str, str, str], list[str]](list)
    for row in rules:
        for name, reason in row.unreachable.items():
            names[row.stage, row.kind, reason.why].append(name)
    machine = {**describe_environment(torch.device(table.device), table.target), "torch": table.torch}
    return (
        get_environment()
        .get_template("reports/coverage.md.j2")
        .render(
            table=table,
            total=table.rules,
            rules=rules,
            groups=Counter(reason.group for row in rules for reason in row.unreachable.values()).most_common(),
            reasons=[(*place, listed) for place, listed in names.items()],
            attention=patterns,
            missing=missing,
            version=__version__,
            versions=versions(machine),
            clock=format_duration,
            percent=format_percent,
            scrub=scrub,
        )
    )


def format_percent(share: float | None, digits: int = 1) -> str:
    """A share as a percentage, ``-`` for None."""
    return "-" if share is None else f"{100 * share:.{digits}f} %"
