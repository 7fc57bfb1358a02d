"""Coverage of a corpus: its share of all that the installed torch can do, by stage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache

import torch

from fuzzcompile.commands.passes import UNREGISTERED, Listed, list_passes
from fuzzcompile.corpus import (
    Counters,
    Store,
    StoredCampaign,
    StoredCoverage,
    campaign_seconds,
    compiler_of,
    moment_at,
)
from fuzzcompile.facts import Facts, Reason, facts
from fuzzcompile.generation.toggles import FOR_GPU, TOGGLES
from fuzzcompile.stage_names import SCHEDULER
from fuzzcompile.targets import target_of

# The kinds that are rewrite rules or observed passes, not operators or kernels.
RULES = ("pass", "pattern")


@dataclass(frozen=True)
class StageCoverage:
    """All entries of one kind in one stage, grouped by outcome.

    Attributes:
        stage: the stage.
        kind: pass, pattern, decomposition, lowering or kernel.
        known: how many torch registers; None for kernels, which are not registered.
        fired: fired at least once.
        refused: matched, and its own check refused every match.
        fallback: operators that were only called where others are lowered.
        off: never reached, and does not run under the present settings.
        never: never reached, for no known reason.
        unreachable: never reached, with the reason why this device or the default configuration cannot reach it.
    """

    stage: str
    kind: str
    known: int | None
    fired: Sequence[str] = ()
    refused: Sequence[str] = ()
    fallback: Sequence[str] = ()
    off: Sequence[str] = ()
    never: Sequence[str] = ()
    unreachable: Mapping[str, Reason] = field(default_factory=dict)

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
class Total:
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
    """The coverage that campaigns reached under one torch.

    Attributes:
        torch: its version.
        device: where rules would run.
        target: the target that the compiler generated code for; None for ``device``.
        corpus: where it was counted.
        stages: the stages in order.
        seen: the entries that the corpus has reached.
        within: the seconds of campaign time that were asked for; None for all.
        ran: the seconds of campaign time that were counted.
        campaigns: the campaigns that started in that time.
        counters: the counts of cases that they judged.
        note: why no rule counts as unreachable; None where reasons were checked on this torch.
    """

    torch: str
    device: str
    target: str | None
    corpus: str
    stages: Sequence[StageCoverage]
    seen: Sequence[StoredCoverage]
    within: float | None
    ran: float
    campaigns: Sequence[StoredCampaign]
    counters: Counters
    note: str | None

    @property
    def rules(self) -> Total:
        """All rewrite rules and observed passes together."""
        rows = [row for row in self.stages if row.kind in RULES]
        unreachable = None if self.note else sum(len(row.unreachable) for row in rows)
        return Total(sum(row.known or 0 for row in rows), unreachable, sum(len(row.fired) for row in rows))


def coverage_of(
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
    compiler = compiler_of({"torch": version, "target": target})
    kind = device.type if target is None else target_of(target).device_type
    with Store.open(location, create=False) as store:
        campaigns = [campaign for campaign in store.campaigns() if compiler_of(campaign.environment) == compiler]
        if within is not None:
            until = moment_at(campaigns, within) or datetime.now(UTC)
            campaigns = [campaign for campaign in campaigns if campaign.started <= until]
        counters = store.counters(compiler=compiler, until=until)
        seen, corpus = store.coverage(compiler, until=until), store.location
    groups = defaultdict[tuple[str, str], list[Listed]](list)
    for row in list_passes(device, location, target=target, until=until).rows:
        # A pass that torch does not register (a user's own) could only ever count as reached.
        if row.known.kind != "setting" and row.known.when != UNREGISTERED:
            groups[row.known.stage, row.known.kind].append(row)
    reasons = own if target is None else None
    stages = [_stage(*group, rows, kind, reasons) for group, rows in groups.items()]
    ran = min(campaign_seconds(campaigns), float("inf") if within is None else within)
    return CoverageTable(
        version,
        device.type,
        target,
        corpus,
        [*stages, *_kernels(seen)],
        seen,
        within,
        ran,
        campaigns,
        counters,
        _note(own, target),
    )


def _note(own: Facts, target: str | None) -> str | None:
    if target is not None:
        return f"Which rules {target} cannot reach was not checked, so no share of what it can is given."
    if own.has_reasons:
        return None
    return f"Which rules cannot be reached was not checked on torch {own.version}, so no share of what can be is given."


@cache
def switched_on(*, gpu: bool = False) -> frozenset[str]:
    """Settings that some toggle of the generator changes, with ``gpu`` for a GPU too; written as in a reason."""
    toggles = (*TOGGLES, *FOR_GPU) if gpu else TOGGLES
    entries: list[tuple[str, object]] = [entry for toggle in toggles for entry in toggle.options]
    inside = {f"{name}:{key}" for name, value in entries if isinstance(value, Mapping) for key in value}
    return frozenset({name for name, _ in entries} | inside)


def _stage(stage: str, kind: str, rows: Sequence[Listed], device_type: str, own: Facts | None) -> StageCoverage:
    names = defaultdict[str, list[str]](list)
    unreachable = dict[str, Reason]()
    for row in rows:
        outcome, name = _outcome(row), _name(row, rows)
        reason = None
        if own is not None and kind in RULES and outcome not in ("fired", "fallback"):
            reason = own.reason_for(stage, row.known.name, device_type, switched_on(gpu=device_type != "cpu"))
        if reason is None:
            names[outcome].append(name)
        else:
            unreachable[name] = reason
    return StageCoverage(stage, kind, len(rows), unreachable=unreachable, **names)


def _outcome(row: Listed) -> str:
    if row.fired:
        return "fired"
    if row.fallback:
        return "fallback"
    if row.refused:
        return "refused"
    return "off" if row.known.on is False else "never"


def _name(row: Listed, rows: Iterable[Listed]) -> str:
    """The name, with its pass where the stage has another of that name."""
    known = row.known
    alone = sum(candidate.known.name == known.name for candidate in rows) == 1
    return known.name if alone or not known.pass_name else f"{known.name} ({known.pass_name})"


def _kernels(seen: Iterable[StoredCoverage]) -> Iterator[StageCoverage]:
    """The shapes of kernels that were scheduled, the most frequent first."""
    shapes = sorted((-row.count, row.rewrite) for row in seen if row.stage == SCHEDULER)
    if shapes:
        yield StageCoverage(SCHEDULER, "kernel", None, [name for _, name in shapes])
