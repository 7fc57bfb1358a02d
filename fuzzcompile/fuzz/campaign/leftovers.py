"""Unfinished work of earlier campaigns, and findings of other machines that wait for confirmation."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, cast

from fuzzcompile.corpus.models import CampaignRow
from fuzzcompile.corpus.records import Finding, FindingSummary
from fuzzcompile.corpus.store import Store
from fuzzcompile.fuzz.campaign.case_sources import DrawnCase
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.programs.casefiles.case_file import defines_make


@dataclass(frozen=True)
class LeftCase:
    """A case that was cut off while it was judged; ``index`` is its place in the stream, None outside of the stream.

    ``verdict`` is the verdict before the proof began; None if there was no verdict yet.
    """

    case: DrawnCase
    index: int | None
    screen: bool = False
    verdict: str | None = None

    @property
    def shows_bug(self) -> bool:
        """True if the case had shown a bug before its proof was cut off."""
        return self.verdict is not None and Verdict(self.verdict).is_bug

    def to_json(self) -> dict[str, object]:
        """Return plain data as the corpus keeps it."""
        place = {"index": self.index, "screen": self.screen, "verdict": self.verdict}
        return {**place, **asdict(self.case), "choices": self.case.choices.hex()}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> LeftCase:
        """Return the case from the data of `to_json`."""
        case = _restore({**kept, "choices": bytes.fromhex(kept["choices"])})
        return cls(case, kept["index"], kept["screen"], kept["verdict"])


def _restore(kept: Mapping[str, Any]) -> DrawnCase:
    """Return a case from its fields as the corpus keeps them, with lists for tuples."""
    values: dict[str, Any] = {each.name: kept[each.name] for each in fields(DrawnCase)}
    values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return DrawnCase(**values)


@dataclass(frozen=True)
class Leftovers:
    """Work that a campaign leaves to the next one: cases, and signatures of findings that wait to be minimized.

    ``given_up`` are the signatures of findings that no campaign tries again: minimizing them cost a worker or raised.
    """

    cases: list[LeftCase] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """Return plain data as the corpus keeps it, among the counters of the campaign."""
        return {**vars(self), "cases": [case.to_json() for case in self.cases]}


def list_left_cases(store: Store, stream: str, campaign: int) -> list[LeftCase]:
    """Return cases that ended campaigns of this stream left over, and that no campaign has judged since.

    ``campaign`` is the calling one, whose own heartbeats contain the cases that it has begun.
    """
    living = store.living() | {campaign}
    kept = [
        LeftCase.from_json(entry)
        for earlier in store.campaigns()
        if earlier.settings.get("stream") == stream and earlier.id not in living
        for entry in _read_leftovers(earlier).get("cases", ())
    ]
    placed = any(left.index is not None for left in kept)
    judged = store.recorded_indices(stream) if placed else set()  # a million places take a second to read
    waiting = {
        left.case.sha256: left
        for left in kept
        if (left.index not in judged if left.index is not None else not store.has_source(left.case.sha256))
    }
    return list(waiting.values())


def list_left_findings(store: Store, settings: Mapping[str, object]) -> set[str | None]:
    """Return the findings that earlier campaigns left to be minimized.

    Only campaigns with the same vetoes, plants, passes and backend in their ``settings`` count.
    """
    living = store.living()
    alike = [
        _read_leftovers(campaign)
        for campaign in store.campaigns()
        if campaign.id not in living
        and all(campaign.settings.get(name) == settings.get(name) for name in ("vetoes", "plants", "custom"))
    ]
    left, given_up = (
        {store.finding_of(signature) for entry in alike for signature in entry.get(name, ())}
        for name in ("findings", "given_up")
    )
    return left - given_up


def list_pending(store: Store, environment: Mapping[str, object]) -> list[FindingSummary]:
    """Return the findings that wait for a reproducer and may be run (`fuzzcompile.corpus.queries`), worst first."""
    return [finding for finding in list_unreduced(store, environment) if finding.trusted]


def list_unreduced(store: Store, environment: Mapping[str, object]) -> list[FindingSummary]:
    """Return open findings without a reproducer that this torch showed on this device or target, worst first."""
    torch = environment["torch"]
    device = environment.get("target") or str(environment.get("device")).partition(":")[0]
    return [
        finding
        for finding in store.summaries("open")
        if finding.reproducer_lines is None and torch in finding.torch_versions and device in finding.devices
    ]


def load_case(store: Store, finding: Finding) -> DrawnCase:
    """Return the case of a finding, with its recipe where the corpus has it."""
    kept = store.case(finding.source_sha256)
    if kept is None:
        return DrawnCase(finding.source, "user")
    return _restore({**vars(kept), "source": finding.source, "choices": kept.choices or b""})


def _read_leftovers(campaign: CampaignRow) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], campaign.counters.get("left_over") or {})


# Findings that were seen on one machine only are judged again on a second one.

ORIGIN = "confirmation"
# Seconds between two queries for waiting findings: other machines find and confirm some meanwhile.
_LOOK_EVERY = 300.0
# One of so many cases that a campaign judges is a confirmation.
_SHARE = 50


@dataclass(frozen=True)
class PendingConfirmation:
    """A program to judge on a machine that has not tried it; ``finding`` is the public id of the finding it shows."""

    finding: str
    case: DrawnCase
    not_on: frozenset[str]


class ConfirmationQueue:
    """Hands out the confirmations that wait in a corpus, at a small share of the cases.

    ``reach`` returns the environments in which the campaign's cases are judged now, one for each machine.
    """

    def __init__(
        self,
        store: Store,
        reach: Callable[[], Sequence[Mapping[str, object]]],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._reach, self._now = store, reach, now
        self._waiting: deque[FindingSummary] = deque()
        self._begun: set[str] = set()
        self._looked: float | None = None

    def next(self, judged: int) -> PendingConfirmation | None:
        """Return the next confirmation if one is due after so many cases of the campaign's own."""
        if judged < len(self._begun) * _SHARE:
            return None
        if self._looked is None or (not self._waiting and self._now() - self._looked > _LOOK_EVERY):
            self._looked = self._now()
            found = [f for f in self._store.summaries("open") if self._shows_news(f) and f.signature not in self._begun]
            random.shuffle(found)  # a hundred machines would otherwise all begin with the same one
            self._waiting.extend(found)
        while self._waiting:
            finding = self._store.finding(self._waiting.popleft().id)
            self._begun.add(finding.signature)
            # Another campaign may have confirmed it meanwhile, or an import may have added an untrusted program.
            if self._shows_news(finding):
                return make_confirmation(self._store, finding, self._reach())
        return None

    def _shows_news(self, finding: FindingSummary) -> bool:
        return finding.trusted and any(map(finding.machines.waits_for, self._reach()))


def make_confirmation(
    store: Store, finding: Finding, reach: Sequence[Mapping[str, object]] = ()
) -> PendingConfirmation:
    """Return the best confirmed reproducer of a finding as a case, or its original case where no reproducer is one.

    Machines that have tried it in an environment like one of ``reach`` are excluded.
    """
    best = store.best_reproducer(finding.id)
    if best is not None and best.confirmed and defines_make(best.source):
        case = DrawnCase(best.source, ORIGIN)
    else:
        case = load_case(store, finding)
    return PendingConfirmation(finding.public_id, case, finding.machines.tried(reach))
