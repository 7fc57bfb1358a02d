"""What a replay found out about each finding, over all versions that were tried."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from packaging.version import Version

from fuzzcompile.corpus.records import Replay
from fuzzcompile.corpus.replay.replay_engine import Result, Subject
from fuzzcompile.corpus.replay.replay_history import (
    History,
    ReplayStatus,
    history,
    is_affected,
    is_failing,
    is_regression,
    order,
)
from fuzzcompile.corpus.store import Store


@dataclass
class Record:
    """One finding: its results by version; ``earlier`` are its replays before this one, the oldest first."""

    subject: Subject
    earlier: Sequence[Replay] = ()
    results: dict[str, Result] = field(default_factory=dict)
    note: str | None = None

    @property
    def history(self) -> History:
        """Since when, and until when; what was not run says nothing."""
        return history([replay for replay in self.by_version.values() if replay.status != ReplayStatus.NOT_RUN])

    @property
    def regressions(self) -> list[str]:
        """The versions on which it was fixed and fails again."""
        replays = self.by_version

        def rest(version: str) -> list[Replay]:
            return [*self.earlier, *(replay for name, replay in replays.items() if name != version)]

        finding = self.subject.finding
        return [name for name, replay in replays.items() if is_regression(finding, replay, rest(name))]

    @property
    def by_version(self) -> dict[str, Replay]:
        """The replays by version, in the order in which they were made."""
        return {version: result.replay for version, result in self.results.items()}

    def status(self, version: str) -> str | None:
        """The status on a version; None where it was not tried, as after an interrupt."""
        if self.subject.not_replayable is not None:
            return str(ReplayStatus.NOT_REPLAYABLE)
        tried = self.by_version.get(version)
        return self.history.torch.get(version, tried.status) if tried is not None else None

    @property
    def notes(self) -> list[str]:
        """What a reader must know beside the statuses."""
        if self.subject.not_replayable is not None:
            return [self.subject.not_replayable]
        known, notes = self.history, [self.note] if self.note else []
        if known.torch and known.affected_since is None:
            notes.append("fails on none of the versions that were tried")
        return notes

    def to_json(self, versions: Sequence[str]) -> dict[str, object]:
        """The object of ``replay --json``."""
        known = self.history
        statuses = {version: self.status(version) for version in versions}
        return {
            "finding": self.subject.finding.public_id,
            "signature": self.subject.finding.signature,
            "severity": self.subject.severity,
            "verdict": self.subject.expected.verdict,
            "torch": {version: status for version, status in statuses.items() if status is not None},
            "affected_since": known.affected_since,
            "earlier": "not tried" if known.earlier_not_tried else None,
            "fixed_in": known.fixed_in,
            "regression": bool(self.regressions),
            "runs": {version: list(replay.runs) for version, replay in self.by_version.items()},
            "why": {version: result.why for version, result in self.results.items()},
            "notes": self.notes,
        }


@dataclass
class Records:
    """All findings of a replay, and the versions tried, which ``builds`` gives with their builds and commits."""

    by_finding: dict[int, Record]
    builds: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    interrupted: bool = False

    @classmethod
    def of(cls, store: Store, subjects: Iterable[Subject]) -> Records:
        """Records without results, in the order of the subjects."""
        return cls({key: Record(subject, store.replays(key)) for subject in subjects for key in [subject.finding.id]})

    @property
    def versions(self) -> list[str]:
        """The versions that were tried, the oldest first."""
        return sorted(self.builds, key=order)

    @property
    def all(self) -> list[Record]:
        """One a finding, the worst first."""
        return list(self.by_finding.values())

    @property
    def counts(self) -> Mapping[str, int]:
        """How many results there are of each status, over findings and versions."""
        counted: dict[str, int] = {}
        for record in self.all:
            for version in self.versions or [""]:
                status = record.status(version)
                if status is not None:
                    counted[status] = counted.get(status, 0) + 1
        return counted

    @property
    def ran(self) -> bool:
        """Return whether any script ran to an answer."""
        return any(replay.status not in (ReplayStatus.NOT_RUN, ReplayStatus.ERRORED) for replay in self._replays)

    @property
    def any_failure(self) -> bool:
        """Return whether any compiled program failed."""
        return any(map(is_failing, self._replays))

    @property
    def any_regression(self) -> bool:
        """Return whether any bug that was fixed is back."""
        return any(record.regressions for record in self.all)

    @property
    def _replays(self) -> list[Replay]:
        return [replay for record in self.all for replay in record.by_version.values()]


# Which release to try next, so that the release that brought a bug and the one that fixed it are known.


def finals(versions: Sequence[Version]) -> list[str]:
    """The releases among pip's versions, without builds and pre-releases, the oldest first."""
    return list(dict.fromkeys(version.public for version in sorted(versions) if not version.is_prerelease))


def ends(record: Record) -> Iterator[tuple[str, str]]:
    """The pairs of versions between which a finding changed: it came between the first, and went between the second."""
    affected = {name: is_affected(replay) for name, replay in record.by_version.items() if _answers(replay)}
    versions = sorted(affected, key=order)
    failing = [version for version in versions if affected[version]]
    if failing:
        yield from (pair for pair in pairwise(versions) if pair[1] == failing[0] or pair[0] == failing[-1])


def candidates(record: Record, releases: Sequence[str], unusable: Collection[str]) -> list[list[str]]:
    """For each pair of `ends` the releases between them that were not tried, the oldest first; none if settled."""
    skipped = {*unusable, *record.results}
    between = [_between(pair, releases) for pair in ends(record)]
    untried = [[release for release in part if release not in skipped] for part in between]
    return [part for part in untried if part]


def unknown(record: Record, releases: Sequence[str]) -> list[str]:
    """The releases of which nothing is known, where the finding came or went in one of them or in the next."""
    return [release for pair in ends(record) for release in _between(pair, releases)]


def next_release(
    records: Sequence[Record], releases: Sequence[str], unusable: Collection[str] = ()
) -> tuple[str, list[int]] | None:
    """The release that most findings want next, and their ids; None once nothing is open.

    Each finding wants the middle of what is open for it. Findings that share an interval want the same release, so that
    they share its environment.
    """
    wanted: dict[str, list[int]] = defaultdict(list)
    for record in records:
        for part in candidates(record, releases, unusable):
            wanted[part[len(part) // 2]].append(record.subject.finding.id)
    if not wanted:
        return None
    release = max(wanted, key=lambda name: (len(wanted[name]), order(name)))
    return release, list(dict.fromkeys(wanted[release]))


def open_releases(records: Sequence[Record], releases: Sequence[str]) -> list[str]:
    """Every release that the search may have to try, the oldest first."""
    names = {name for record in records for part in candidates(record, releases, ()) for name in part}
    return sorted(names, key=order)


def _between(pair: tuple[str, str], releases: Sequence[str]) -> list[str]:
    low, high = map(order, pair)
    return [release for release in releases if low < order(release) < high]


def _answers(replay: Replay) -> bool:
    return replay.status == ReplayStatus.FIXED or is_affected(replay)
