"""What a replay found out about each finding, over all versions that were tried."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fuzzcompile.corpus.records import Replay
from fuzzcompile.corpus.replay.engine import Result
from fuzzcompile.corpus.replay.history import History, history
from fuzzcompile.corpus.replay.regression import is_failing, is_regression
from fuzzcompile.corpus.replay.status import Status
from fuzzcompile.corpus.replay.subjects import Subject
from fuzzcompile.corpus.replay.versions import order
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
        return history([replay for replay in self.by_version.values() if replay.status != Status.NOT_RUN])

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
            return str(Status.NOT_REPLAYABLE)
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
        """Whether any script ran to an answer."""
        return any(replay.status not in (Status.NOT_RUN, Status.ERRORED) for replay in self._replays)

    @property
    def any_failure(self) -> bool:
        """Whether any compiled program failed."""
        return any(map(is_failing, self._replays))

    @property
    def any_regression(self) -> bool:
        """Whether any bug that was fixed is back."""
        return any(record.regressions for record in self.all)

    @property
    def _replays(self) -> list[Replay]:
        return [replay for record in self.all for replay in record.by_version.values()]
