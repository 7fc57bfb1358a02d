"""On how many machines a finding was seen, and on which its program was judged without showing it.

A machine is told from others by its environment's ``machine``; corpora of earlier versions do not say it, and then all
that is unknown counts as one machine, and as none beside a known one: never more than was seen.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias
from uuid import uuid4

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session, aliased

from fuzzcompile.corpus.models import CampaignRow, CaseRow, FindingRow, ReproducerRow, RunRow
from fuzzcompile.model.verdicts import HARMLESS

Environment: TypeAlias = Mapping[str, object]
# What two machines must share for their verdicts to be compared: torch, the kind of device, and the target.
Alike: TypeAlias = tuple[str, str, str]
Place: TypeAlias = tuple[Alike, str]
SecondMachine = Literal["confirmed", "pending", "not reproduced"]
# Those that say nothing of the program there: a machine that was busy or unfit for once may be asked again.
_SAYS_NOTHING = ("unjudged", "timeout", "crash")


@dataclass(frozen=True)
class Machines:
    """Machines on which a finding was seen, and those on which its program was judged.

    Machines are compared with those that share torch, device and target: a place is all of these. What a campaign found
    with another compiler (its vetoes, plants or passes) says nothing, nor does what a corpus that is not trusted tells
    of further machines. ``shown`` are the places that showed it, ``judged`` those where its case or its best reproducer
    was judged in full; ``clean`` are machines that found it right where another one shows it, and they do not.
    ``under`` are the torches, devices and targets under which it was seen. ``processors`` are the types of CPU that
    showed it, or of GPU where one ran, ``clean_processors`` those that found it right and never showed it.
    """

    shown: frozenset[Place] = frozenset()
    judged: frozenset[Place] = frozenset()
    clean: frozenset[str] = frozenset()
    under: frozenset[Alike] = frozenset()
    processors: tuple[str, ...] = ()
    clean_processors: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """On how many machines it was seen, under the torch, device and target where they are most."""
        return max([1, *Counter(alike for alike, _ in self.shown).values()])

    @property
    def second_machine(self) -> SecondMachine:
        """Return the verdict of another machine than the first."""
        if self.count > 1:
            return "confirmed"
        return "not reproduced" if self.clean else "pending"

    @property
    def one_type_only(self) -> bool:
        """Return whether processors of another type found its program right, and only one type showed it."""
        return len(self.processors) == 1 and bool(self.clean_processors)

    def tried(self, environments: Iterable[Environment]) -> frozenset[str]:
        """The machines whose judgement is known under what these share: another one there would tell nothing new."""
        under = set(map(conditions, environments))
        return frozenset(machine for alike, machine in self.shown | self.judged if alike in under)

    def waits_for(self, environment: Environment) -> bool:
        """Return whether judging its program in an environment would tell whether a second machine shows it."""
        alike, place = conditions(environment), find_place(environment)
        alone = self.count == 1 and any(under == alike for under, _ in self.shown)
        return alone and place is not None and place not in self.shown | self.judged


def conditions(environment: Environment) -> Alike:
    """The torch, the kind of device and the target of an environment; no target is an empty one."""
    device = str(environment.get("device") or "").partition(":")[0]
    return str(environment.get("torch")), device, str(environment.get("target") or "")


def list_changes(settings: Mapping[str, object] | None) -> tuple[object, ...]:
    """List a campaign's changes of the compiler: vetoes, plants, and the user's own passes and backend."""
    return tuple((settings or {}).get(name) or None for name in ("vetoes", "plants", "custom"))


def processor(environment: Environment) -> str | None:
    """The type of the processor that ran: the GPU's name, or the CPU's model."""
    name = environment.get("device_name") or environment.get("cpu")
    return None if name is None else str(name)


def identify_machine(environment: Environment) -> str:
    """The machine's eight digits, ``unknown`` in corpora of earlier versions."""
    return str(environment.get("machine") or "unknown")


def find_place(environment: Environment) -> Place | None:
    """The machine, beside what must be the same elsewhere; None for one that is not known."""
    machine = environment.get("machine")
    return (conditions(environment), str(machine)) if machine else None


def list_machines(seen: Iterable[Environment], judged: Iterable[tuple[Environment, str]]) -> Machines:
    """List the environments of a finding's hits, and the verdicts on its program in other environments."""
    hits, tries = list(seen), list(judged)
    alike = frozenset(conditions(environment) for environment in hits)
    right = [each for each, verdict in tries if verdict in HARMLESS and conditions(each) in alike]
    shown, types = _places(hits), _processors(hits)
    return Machines(
        shown,
        _places(each for each, verdict in tries if verdict not in _SAYS_NOTHING),
        frozenset(machine for _, machine in _places(right) - shown),
        alike,
        types,
        tuple(name for name in _processors(right) if name not in types),
    )


# With more findings than this, a list of their ids is slower than reading of all.
_MOST_NAMED = 500
_CLAIM = "claimed:"


def make_claim() -> str:
    """The token of a run that a corpus which is not trusted tells of a case that is trusted here."""
    return f"{_CLAIM}{uuid4().hex}"


@dataclass
class Seen:
    """The features of the cases that showed a finding, and the environments in which they did.

    ``own`` and ``claimed`` are the environments of the hits that count, each with the first of the runs; ``claimed`` is
    what a corpus that is not trusted tells.
    """

    features: list[list[str]] = field(default_factory=list)
    environments: dict[int, None] = field(default_factory=dict)
    own: dict[int, int] = field(default_factory=dict)
    claimed: dict[int, int] = field(default_factory=dict)

    def counted(self) -> list[int]:
        """The environments that count, in the order of their runs; claims make up for one machine at most."""
        own, claimed = (sorted(runs, key=lambda key: runs[key]) for runs in (self.own, self.claimed))
        return own or claimed[:1]


def seen_by_finding(session: Session, wanted: Sequence[int] | None = None) -> defaultdict[int, Seen]:
    """The runs that hit each finding, or each of those wanted, the first first."""
    seen: defaultdict[int, Seen] = defaultdict(Seen)
    settings = session.execute(select(CampaignRow.id, CampaignRow.settings))
    changed = {key for key, each in settings if any(list_changes(each))}  # that judged with another compiler
    every = wanted is None or len(wanted) > _MOST_NAMED
    chosen = RunRow.finding_id.is_not(None) if every else RunRow.finding_id.in_(wanted or ())
    of_run = (RunRow.finding_id, RunRow.id, RunRow.environment_id, RunRow.campaign_id, RunRow.token)
    query = select(*of_run, CaseRow.features, CaseRow.imported).join(CaseRow, RunRow.case_id == CaseRow.id)
    for key, run, environment, campaign, token, features, imported in session.execute(
        query.where(chosen).order_by(RunRow.id)
    ):
        if key is None:  # for the type checker: the query leaves these out
            continue
        seen[key].features.append(features)
        seen[key].environments[environment] = None
        if campaign not in changed:
            is_claim = imported or (token is not None and token.startswith(_CLAIM))
            (seen[key].claimed if is_claim else seen[key].own).setdefault(environment, run)
    return seen


def machines_by_finding(
    session: Session,
    chosen: Sequence[ColumnElement[bool]],
    seen: Mapping[int, Seen],
    details: Mapping[int, Environment],
) -> defaultdict[int, Machines]:
    """Map each finding that fulfils the conditions (none: all) to the machines on which it was seen and judged."""
    judged = _judged(session, chosen)
    confirmed = select(ReproducerRow.finding_id, ReproducerRow.environment_id).where(
        ReproducerRow.confirmed, ReproducerRow.environment_id.is_not(None), ReproducerRow.imported.is_(False)
    )
    if chosen:
        confirmed = confirmed.join(FindingRow, ReproducerRow.finding_id == FindingRow.id).where(*chosen)
    reproduced: defaultdict[int, list[int]] = defaultdict(list)
    for finding, environment in session.execute(confirmed):
        if environment is not None:  # for the type checker: the query leaves these out
            reproduced[finding].append(environment)
    found: defaultdict[int, Machines] = defaultdict(Machines)
    for key in seen.keys() | reproduced.keys():
        counted = seen[key].counted() if key in seen else []
        hits = [details[each] for each in (*counted, *reproduced[key])]
        found[key] = list_machines(hits, [(details[each], verdict) for each, verdict in judged[key]])
    return found


def _judged(session: Session, chosen: Sequence[ColumnElement[bool]]) -> defaultdict[int, list[tuple[int, str]]]:
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
    by_finding: defaultdict[int, list[tuple[int, str]]] = defaultdict(list)
    for query in queries:
        rows = query.outerjoin(CampaignRow, RunRow.campaign_id == CampaignRow.id).add_columns(CampaignRow.settings)
        for finding, environment, verdict, settings in session.execute(
            rows.where(elsewhere, RunRow.screened.is_(False), *chosen)
        ):
            if not any(list_changes(settings)):
                by_finding[finding].append((environment, verdict))
    return by_finding


def _places(environments: Iterable[Environment]) -> frozenset[Place]:
    return frozenset(place for each in environments if (place := find_place(each)) is not None)


def _processors(environments: Iterable[Environment]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for each in environments if (name := processor(each)) is not None))
