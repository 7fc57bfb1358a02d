"""On how many machines a finding was seen, and on which its program was judged without showing it.

A machine is told from others by its environment's ``machine``; corpora of earlier versions do not say it, and then all
that is unknown counts as one machine, and as none beside a known one: never more than was seen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session, aliased

from fuzzcompile.corpus.models import CampaignRow, CaseRow, EnvironmentRow, FindingRow, ReproducerRow, RunRow

Environment: TypeAlias = Mapping[str, object]
# What two machines must share for their verdicts to be compared: torch, the kind of device, and the target.
Alike: TypeAlias = tuple[str, str, str]
SecondMachine = Literal["confirmed", "pending", "not reproduced"]
# Verdicts that say that the program is right where it was judged. Others say nothing: it could not be judged, say.
CLEAN = ("equal", "rounding")


@dataclass(frozen=True)
class Machines:
    """Where a finding was seen, and where its program was judged.

    Attributes:
        seen: the machines that showed it, as far as they are known.
        judged: those that judged its case or its best reproducer in full, whatever came of it.
        clean: those of them that found it right and never showed it, under the same torch, device and target.
        under: the torches, devices and targets under which it was seen.
        processors: the types of CPU that showed it, or of GPU where one ran.
        clean_processors: the types that found it right and never showed it.
    """

    seen: frozenset[str] = frozenset()
    judged: frozenset[str] = frozenset()
    clean: frozenset[str] = frozenset()
    under: frozenset[Alike] = frozenset()
    processors: tuple[str, ...] = ()
    clean_processors: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """On how many machines it was seen."""
        return max(1, len(self.seen))

    @property
    def second_machine(self) -> SecondMachine:
        """What another machine than the first made of it."""
        if self.count > 1:
            return "confirmed"
        return "not reproduced" if self.clean else "pending"

    @property
    def one_type_only(self) -> bool:
        """Whether processors of another type found its program right, and only one type showed it."""
        return len(self.processors) == 1 and bool(self.clean_processors)

    @property
    def tried(self) -> frozenset[str]:
        """The machines whose judgement is known: another one of its program would tell nothing new."""
        return self.seen | self.judged

    def waits_for(self, environment: Environment) -> bool:
        """Whether judging its program in an environment would tell whether a second machine shows it."""
        another = bool(self.seen) and self.count == 1 and environment.get("machine") not in self.tried
        return another and bool(environment.get("machine")) and conditions(environment) in self.under


def conditions(environment: Environment) -> Alike:
    """The torch, the kind of device and the target of an environment; no target is an empty one."""
    device = str(environment.get("device") or "").partition(":")[0]
    return str(environment.get("torch")), device, str(environment.get("target") or "")


def changes_of(settings: Mapping[str, object] | None) -> tuple[object, ...]:
    """How a campaign changed the compiler: vetoes, plants, and the user's own passes and backend; each empty if not."""
    return tuple((settings or {}).get(name) or None for name in ("vetoes", "plants", "custom"))


def processor(environment: Environment) -> str | None:
    """The type of the processor that ran: the GPU's name, or the CPU's model."""
    name = environment.get("device_name") or environment.get("cpu")
    return None if name is None else str(name)


def machine_of(environment: Environment) -> str:
    """The machine's eight digits, ``unknown`` in corpora of earlier versions."""
    return str(environment.get("machine") or "unknown")


def machines_of(seen: Iterable[Environment], judged: Iterable[tuple[Environment, str]]) -> Machines:
    """Where a finding was seen, by the environments of its hits, and how its program was judged in which others."""
    hits, tries = list(seen), list(judged)
    alike = frozenset(conditions(environment) for environment in hits)
    right = [each for each, verdict in tries if verdict in CLEAN and conditions(each) in alike]
    shown, types = _machines(hits), _processors(hits)
    return Machines(
        shown,
        _machines(each for each, _ in tries),
        _machines(right) - shown,
        alike,
        types,
        tuple(name for name in _processors(right) if name not in types),
    )


def machines_by_finding(
    session: Session, chosen: Sequence[ColumnElement[bool]], hits: Mapping[int, Sequence[Environment]]
) -> defaultdict[int, Machines]:
    """Where each finding was seen and judged.

    Args:
        session: a transaction.
        chosen: what the findings fulfil; nothing for all of them.
        hits: the environments of each finding's runs.
    """
    details = dict(session.execute(select(EnvironmentRow.id, EnvironmentRow.details)).all())
    reproduced, judged = _reproduced(session, chosen), _judged(session, chosen)
    found: defaultdict[int, Machines] = defaultdict(Machines)
    for key in hits.keys() | reproduced.keys():
        seen = [*hits.get(key, ()), *(details[each] for each in reproduced.get(key, ()))]
        found[key] = machines_of(seen, [(details[each], verdict) for each, verdict in judged.get(key, ())])
    return found


def _reproduced(session: Session, chosen: Sequence[ColumnElement[bool]]) -> dict[int, list[int]]:
    """The environments in which reproducers of findings were confirmed, by the finding's id."""
    query = select(ReproducerRow.finding_id, ReproducerRow.environment_id).where(
        ReproducerRow.confirmed, ReproducerRow.environment_id.is_not(None)
    )
    if chosen:
        query = query.join(FindingRow, ReproducerRow.finding_id == FindingRow.id).where(*chosen)
    grouped: dict[int, list[int]] = defaultdict(list)
    for finding, environment in session.execute(query):
        if environment is not None:  # for the type checker: the query leaves these out
            grouped[finding].append(environment)
    return grouped


def _judged(session: Session, chosen: Sequence[ColumnElement[bool]]) -> dict[int, list[tuple[int, str]]]:
    """The environments in which the program of a finding was judged in full and did not show it, with the verdicts.

    A finding's program is its case, and its best reproducer where that was judged as a case. What a campaign judged
    with another compiler (its vetoes, plants, passes or backend) says nothing.
    """
    program = aliased(CaseRow)
    queries = (
        select(FindingRow.id, RunRow.environment_id, RunRow.verdict).join(RunRow, RunRow.case_id == FindingRow.case_id),
        select(FindingRow.id, RunRow.environment_id, RunRow.verdict)
        .join(ReproducerRow, FindingRow.best_reproducer_id == ReproducerRow.id)
        .join(program, program.sha256 == ReproducerRow.sha256)
        .join(RunRow, RunRow.case_id == program.id),
    )
    elsewhere = RunRow.finding_id.is_distinct_from(FindingRow.id)
    by_finding: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for query in queries:
        rows = query.outerjoin(CampaignRow, RunRow.campaign_id == CampaignRow.id).add_columns(CampaignRow.settings)
        for finding, environment, verdict, settings in session.execute(
            rows.where(elsewhere, RunRow.screened.is_(False), *chosen)
        ):
            if not any(changes_of(settings)):
                by_finding[finding].append((environment, verdict))
    return by_finding


def _machines(environments: Iterable[Environment]) -> frozenset[str]:
    return frozenset(str(each["machine"]) for each in environments if each.get("machine"))


def _processors(environments: Iterable[Environment]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for each in environments if (name := processor(each)) is not None))
