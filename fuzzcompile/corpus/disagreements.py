"""Cases of which machines say different things: a fault of a machine, or a bug that shows on some of them only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from fuzzcompile.corpus.machines import CLEAN, Alike, changes_of, conditions, machine_of, processor
from fuzzcompile.corpus.models import CampaignRow, CaseRow, RunRow
from fuzzcompile.corpus.records import public_id

# The cases judged more than once that are looked at, the latest first.
_MOST_CASES = 5000
# So many ids stand in one statement.
_CHUNK = 500
# Verdicts that are no judgement on the compiler: a time-out seen once, say, is `is_bug` false.
_NO_JUDGEMENT = ("unjudged", "crash", "timeout")


@dataclass(frozen=True)
class Judgement:
    """What a machine says of a case."""

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
    judgements: tuple[Judgement, ...]


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
    said: dict[tuple[int, Alike, str], dict[str, Judgement]] = defaultdict(dict)
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
            under = repr(changes_of(settings.get(campaign or 0)))
            judgement = Judgement(machine_of(environment), processor(environment) or "unknown", verdict)
            said[case, conditions(environment), under][judgement.machine] = judgement
    hashes = _hashes(session, [case for (case, _, _), by in said.items() if _differ(by.values())])
    for (case, alike, _), by in said.items():
        if _differ(by.values()):
            finding = findings.get(case)
            name = None if finding is None else public_id(finding)
            yield Disagreement(hashes[case], name, *alike, judgements=tuple(by.values()))


def _differ(judgements: Iterable[Judgement]) -> bool:
    return len({"clean" if said.verdict in CLEAN else said.verdict for said in judgements}) > 1


def _hashes(session: Session, cases: Sequence[int]) -> dict[int, str]:
    return dict(session.execute(select(CaseRow.id, CaseRow.sha256).where(CaseRow.id.in_(cases))).all())
