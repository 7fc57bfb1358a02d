"""The fleet of a corpus: campaigns, machines and their speed of judging, and cases on which they disagree.

Everything is read from the corpus. A campaign's runs are stored in their order, so that those of the last hour are the
end of its rows, which is found by bisection over an index.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, TypeAlias

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from fuzzcompile.corpus.machines import Alike, Place, conditions, identify_machine, list_changes, processor
from fuzzcompile.corpus.models import CampaignRow, CaseRow, EnvironmentRow, FindingRow, RunRow
from fuzzcompile.corpus.records import public_id
from fuzzcompile.corpus.transactions import SILENT
from fuzzcompile.model.verdicts import HARMLESS

# Cases of which machines say different things: a fault of a machine, or a bug that shows on some of them only.

# The cases judged more than once that are looked at, the latest first.
_MOST_CASES = 5000
# So many ids stand in one statement.
_CHUNK = 500
# Verdicts that are no judgement on the compiler: a time-out seen once, say, is `is_bug` false.
_NO_JUDGEMENT = ("unjudged", "crash", "timeout")


@dataclass(frozen=True)
class MachineJudgement:
    """The verdict of one machine on a case."""

    machine: str
    processor: str
    verdict: str


@dataclass(frozen=True)
class Disagreement:
    """A case of which machines with the same torch, device and target say different things; rounding is clean."""

    case: str
    finding: str | None
    torch: str
    device: str
    target: str
    judgements: tuple[MachineJudgement, ...]


def disagreements(session: Session, environments: Mapping[int, Mapping[str, object]]) -> Iterator[Disagreement]:
    """The cases that machines judge differently, of those that were judged more than once; the latest first.

    Screens are left out, and what was judged under other vetoes, plants, passes or backends is not compared. One
    statement reads the whole index of cases; the others name their rows.
    """
    several = (
        select(RunRow.case_id)
        .group_by(RunRow.case_id)
        .having(func.count() > 1)
        .order_by(func.max(RunRow.id).desc())
        .limit(_MOST_CASES)
    )
    cases = list(session.scalars(several))
    settings = dict(session.execute(select(CampaignRow.id, CampaignRow.settings)).all()) if cases else {}
    columns = (RunRow.campaign_id, RunRow.environment_id, RunRow.finding_id, RunRow.verdict, RunRow.is_bug)
    said: dict[tuple[int, Alike, str], dict[str, MachineJudgement]] = defaultdict(dict)
    findings: dict[int, int] = {}
    for start in range(0, len(cases), _CHUNK):
        chosen = (RunRow.case_id.in_(cases[start : start + _CHUNK]), RunRow.screened.is_(False))
        for case, campaign, key, finding, verdict, is_bug in session.execute(
            select(RunRow.case_id, *columns).where(*chosen).order_by(RunRow.id)
        ):
            environment = environments[key]
            if not environment.get("machine") or (verdict in _NO_JUDGEMENT and not is_bug):
                continue
            if finding is not None:
                findings[case] = finding
            under = repr(list_changes(settings.get(campaign or 0)))
            judgement = MachineJudgement(identify_machine(environment), processor(environment) or "unknown", verdict)
            said[case, conditions(environment), under][judgement.machine] = judgement
    differ = {
        key: tuple(by.values())
        for key, by in said.items()
        if len({"clean" if each.verdict in HARMLESS else each.verdict for each in by.values()}) > 1
    }
    wanted = CaseRow.id.in_([case for case, *_ in differ])
    hashes = dict(session.execute(select(CaseRow.id, CaseRow.sha256).where(wanted)).all())
    for (case, alike, _), judgements in differ.items():
        name = public_id(findings[case]) if case in findings else None
        yield Disagreement(hashes[case], name, *alike, judgements=judgements)


HOUR, DAY = timedelta(hours=1), timedelta(days=1)
# Cases that a machine has judged before its speed is compared.
_LEAST_CASES = 10
State = Literal["runs", "silent", "ended"]
_Judged: TypeAlias = tuple[int, float]  # the cases that a machine judged of one kind, and the seconds that they took


@dataclass(frozen=True)
class FleetCampaign:
    """A campaign that wrote to the corpus in the last day.

    ``state`` is "silent" for one that neither ended nor said anything for three minutes. ``cases`` are those that it
    judged in all, ``per_minute`` those a minute and worker in the last hour in which it lived. ``machine`` is that of
    its own process.
    """

    id: int
    state: State
    ended: str | None
    torch: str
    device: str
    target: str
    machine: str
    workers: int
    started: datetime
    last_heard: datetime
    cases: int
    per_minute: float
    new_findings: int


@dataclass(frozen=True)
class Speed:
    """Speed of one worker of a machine: cases a minute of judging, None for a kind with too few of them."""

    screened: float | None
    full: float | None


@dataclass(frozen=True)
class FleetMachine:
    """A machine that judged in the last hour under one torch, device and target; ``cases`` are those of that hour.

    ``median`` is that of all machines under the same. ``behind`` says in which kinds of cases it judges less than half
    as many as they do.
    """

    machine: str
    processor: str
    torch: str
    device: str
    target: str
    cases: int
    speed: Speed
    median: Speed
    of: int

    @property
    def behind(self) -> list[tuple[str, float, float]]:
        """The kinds of cases, "screened" or "full", in which it falls behind, with its speed and the median."""
        screens, full = (self.speed.screened, self.median.screened), (self.speed.full, self.median.full)
        return [
            (kind, own, usual)
            for kind, (own, usual) in {"screened": screens, "full": full}.items()
            if own is not None and usual is not None and own < usual / 2
        ]


@dataclass(frozen=True)
class Fleet:
    """All of it, at a moment."""

    at: datetime
    campaigns: Sequence[FleetCampaign]
    machines: Sequence[FleetMachine]
    disagreements: Sequence[Disagreement]
    new_in_hour: int
    new_in_day: int


def survey(session: Session, at: datetime) -> Fleet:
    """Read what there is to say at a moment."""
    environments = dict(session.execute(select(EnvironmentRow.id, EnvironmentRow.details)).all())
    opened = list(session.scalars(select(FindingRow.first_seen).where(FindingRow.first_seen > at - DAY)))
    campaigns: list[FleetCampaign] = []
    judged: dict[Place, dict[bool, _Judged]] = defaultdict(lambda: {True: (0, 0.0), False: (0, 0.0)})
    processors: dict[str, str] = {}
    for row in session.scalars(select(CampaignRow).where(CampaignRow.last_heard > at - DAY).order_by(CampaignRow.id)):
        number = 0
        for key, screened, cases, seconds in _since(session, row.id, at - HOUR):
            machine = identify_machine(environments[key])
            kinds = judged[conditions(environments[key]), machine]
            kinds[screened] = (kinds[screened][0] + cases, kinds[screened][1] + seconds)
            processors[machine] = processor(environments[key]) or "unknown"
            number += cases
        campaigns.append(_campaign(row, environments[row.environment_id], number, at))
    return Fleet(
        at,
        campaigns,
        _compare(judged, processors),
        list(disagreements(session, environments)),
        sum(moment > at - HOUR for moment in opened),
        len(opened),
    )


def _since(session: Session, campaign: int, moment: datetime) -> Iterator[tuple[int, bool, int, float]]:
    """The environments in which a campaign judged since then, with the numbers of screened and of other cases."""
    own = RunRow.campaign_id == campaign
    low, last = (session.scalar(select(end(RunRow.id)).where(own)) for end in (func.min, func.max))
    if low is None or last is None:
        return
    high = last + 1
    while low < high:  # the first of its rows that is not older, by the time of the next one after each middle
        middle = (low + high) // 2
        after = select(RunRow.created).where(own, RunRow.id >= middle).order_by(RunRow.id).limit(1)
        created = session.scalar(after)
        if created is not None and created < moment:
            low = middle + 1
        else:
            high = middle
    kinds = (RunRow.environment_id, RunRow.screened)
    counted = select(*kinds, func.count(), func.sum(RunRow.seconds)).where(own, RunRow.id >= low).group_by(*kinds)
    for environment, screened, cases, seconds in session.execute(counted):
        yield environment, screened, cases, seconds or 0.0


def _campaign(row: CampaignRow, environment: Mapping[str, object], cases: int, at: datetime) -> FleetCampaign:
    state: State = "ended" if row.ended is not None else "silent" if row.last_heard < at - SILENT else "runs"
    counted: defaultdict[str, int] = defaultdict(int)  # a campaign that was just started has no counters yet
    counted |= {name: number for name, number in row.counters.items() if isinstance(number, int)}
    workers = row.counters.get("workers", row.settings.get("workers"))
    workers = workers if isinstance(workers, int) else 1
    minutes = (row.last_heard - max(row.started, at - HOUR)).total_seconds() / 60.0
    return FleetCampaign(
        row.id,
        state,
        row.ended,
        *conditions(environment),
        machine=identify_machine(environment),
        workers=workers,
        started=row.started,
        last_heard=row.last_heard,
        cases=counted["cases"],
        per_minute=cases / minutes / max(1, workers) if minutes > 0.0 else 0.0,
        new_findings=counted["new_findings"],
    )


def _compare(judged: Mapping[Place, Mapping[bool, _Judged]], processors: Mapping[str, str]) -> list[FleetMachine]:
    """The machines with their speeds, beside those under the same torch, device and target."""

    def per_minute(cases: int, seconds: float) -> float | None:
        return 60.0 * cases / seconds if cases >= _LEAST_CASES and seconds > 0.0 else None

    speeds = {place: Speed(per_minute(*kinds[True]), per_minute(*kinds[False])) for place, kinds in judged.items()}
    alike: dict[Alike, list[Speed]] = defaultdict(list)
    for (shared, _), speed in speeds.items():
        alike[shared].append(speed)
    return [
        FleetMachine(
            machine,
            processors[machine],
            *shared,
            cases=sum(cases for cases, _ in judged[shared, machine].values()),
            speed=speed,
            median=Speed(_median(s.screened for s in alike[shared]), _median(s.full for s in alike[shared])),
            of=len(alike[shared]),
        )
        for (shared, machine), speed in sorted(speeds.items(), key=lambda item: item[0])
    ]


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
