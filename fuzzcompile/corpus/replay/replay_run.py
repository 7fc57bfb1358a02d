"""Replay of a corpus's findings over versions of torch, stored as it goes, and what it found out about each."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from fuzzcompile.corpus.models import Replay
from fuzzcompile.corpus.replay import environments
from fuzzcompile.corpus.replay.environments import NoDisk, Torch, check, find_torch, obtain
from fuzzcompile.corpus.replay.replay_engine import Result, Settings, Subject, replay_on
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
from fuzzcompile.model.errors import EnvironmentUnfit


@dataclass
class Record:
    """One finding: its results by version; ``earlier`` are its replays before this one, the oldest first."""

    subject: Subject
    earlier: Sequence[Replay] = ()
    results: dict[str, Result] = field(default_factory=dict)
    note: str | None = None

    @property
    def name(self) -> str:
        """The finding's public id."""
        return self.subject.finding.public_id

    @property
    def replays(self) -> dict[str, Replay]:
        """The replays by version, in the order in which they were made."""
        return {version: result.replay for version, result in self.results.items()}

    @property
    def history(self) -> History:
        """Since when, and until when; what was not run says nothing."""
        return history([replay for replay in self.replays.values() if replay.status != ReplayStatus.NOT_RUN])

    @property
    def regressions(self) -> list[str]:
        """The versions on which it was fixed and fails again."""
        back = []
        for version, replay in self.replays.items():
            rest = [*self.earlier, *(other for name, other in self.replays.items() if name != version)]
            if is_regression(self.subject.finding, replay, rest):
                back.append(version)
        return back

    def status(self, version: str) -> str | None:
        """The status on a version; None where it was not tried, as after an interrupt."""
        if self.subject.not_replayable is not None:
            return str(ReplayStatus.NOT_REPLAYABLE)
        tried = self.replays.get(version)
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
        known, statuses = self.history, {version: self.status(version) for version in versions}
        return {
            "finding": self.name,
            "signature": self.subject.finding.signature,
            "severity": self.subject.severity,
            "verdict": self.subject.expected.verdict,
            "torch": {version: status for version, status in statuses.items() if status is not None},
            "affected_since": known.affected_since,
            "earlier": "not tried" if known.earlier_not_tried else None,
            "fixed_in": known.fixed_in,
            "regression": bool(self.regressions),
            "runs": {version: list(replay.runs) for version, replay in self.replays.items()},
            "why": {version: result.why for version, result in self.results.items()},
            "notes": self.notes,
        }

    def gaps(self, releases: Sequence[str]) -> list[list[str]]:
        """The releases between those on which the finding came, and between those on which it went."""
        answers = {name: is_affected(replay) for name, replay in self.replays.items() if _answers(replay)}
        versions = sorted(answers, key=order)
        failing = [version for version in versions if answers[version]]
        ends = [(a, b) for a, b in pairwise(versions) if failing and (b == failing[0] or a == failing[-1])]
        return [[release for release in releases if order(a) < order(release) < order(b)] for a, b in ends]

    def untried(self, releases: Sequence[str], unusable: set[str]) -> list[list[str]]:
        """Of each gap the releases that may still be tried; none if it is settled."""
        skipped = unusable | self.results.keys()
        return list(filter(None, ([each for each in gap if each not in skipped] for gap in self.gaps(releases))))


def _answers(replay: Replay) -> bool:
    return replay.status == ReplayStatus.FIXED or is_affected(replay)


class ReplayRun:
    """Runs findings on torches, one after the other; ``records`` holds what is known of each so far, the worst first.

    ``builds`` gives the versions that were tried with their builds and commits, ``lacking`` the torches that could not
    be had. A result is stored before ``on_result`` gets it, with its number and how many there will be on that torch;
    ``say`` hears of all else that happens.
    """

    def __init__(
        self,
        store: Store,
        subjects: Sequence[Subject],
        settings: Settings,
        on_result: Callable[[Result, int, int], None],
        say: Callable[[str], None],
    ) -> None:
        self.records = [Record(subject, store.replays(subject.finding.id)) for subject in subjects]
        self.builds: dict[str, tuple[str, str | None]] = {}
        self.interrupted = False
        self.lacking: list[str] = []
        self._store, self._settings, self._on_result, self._say = store, settings, on_result, say

    @property
    def versions(self) -> list[str]:
        """The versions that were tried, the oldest first."""
        return sorted(self.builds, key=order)

    @property
    def counts(self) -> Counter[str]:
        """How many results there are of each status, over findings and versions."""
        statuses = (record.status(version) for record in self.records for version in self.versions or [""])
        return Counter(status for status in statuses if status is not None)

    @property
    def replays(self) -> list[Replay]:
        """All replays that were made."""
        return [replay for record in self.records for replay in record.replays.values()]

    def choose_status(self, *, strict: bool) -> int:
        """The exit status: 1 for a regression, or with ``strict`` any failure; 3 if something could not be had or run.

        130 if it was interrupted.
        """
        if self.interrupted:
            return 130
        if any(record.regressions for record in self.records) or (strict and any(map(is_failing, self.replays))):
            return 1
        ran = any(replay.status not in (ReplayStatus.NOT_RUN, ReplayStatus.ERRORED) for replay in self.replays)
        return EnvironmentUnfit.exit_status if self.lacking or not ran else 0

    def run(self, asked: Sequence[str]) -> None:
        """Run all findings on the torches of ``--torch``, the oldest first, or (none given) on the one at hand."""
        for text in asked:
            check(text)
        torches: dict[str, Torch] = {}
        for text in dict.fromkeys(asked):
            try:
                torch = obtain(text, self._say)
            except EnvironmentUnfit as error:
                self._say(str(error))
                self.lacking.append(text)
                continue
            known = torches.setdefault(torch.name, torch)
            if known is not torch:
                self._say(f"{text} is left out: it has torch {torch.version}, and {known.version} is tried.")
        for torch in sorted(
            torches.values() if asked else [find_torch(Path(sys.executable))], key=lambda each: order(each.version)
        ):
            self._run(torch, self.records)

    def list_open_releases(self) -> list[str]:
        """The releases that `bisect` may have to try.

        Raises:
            EnvironmentUnfit: pip lists no releases.
        """
        gaps = (gap for record in self.records for gap in record.untried(self._releases, set()))
        return sorted({release for gap in gaps for release in gap}, key=order)

    def bisect(self) -> None:
        """Narrow down, between the versions tried, which release brought each bug and which fixed it."""
        try:
            self._bisect()
        except NoDisk as error:
            self._say(f"The bisection stops: {error}")
        for record in self.records:
            left = [release for gap in record.gaps(self._releases) for release in gap]
            record.note = f"nothing is known of {', '.join(left)}, which lie between" if left else None

    def _bisect(self) -> None:
        """Try the middle of each gap, first what most findings want, so that they share its environment."""
        unusable = set[str]()
        while True:
            wanted: dict[str, list[Record]] = defaultdict(list)
            for record in self.records:
                for gap in record.untried(self._releases, unusable):
                    wanted[gap[len(gap) // 2]].append(record)
            if not wanted:
                return
            release = max(wanted, key=lambda name: (len(wanted[name]), order(name)))
            try:
                torch = obtain(release, self._say)
            except NoDisk:
                raise
            except EnvironmentUnfit as error:
                self._say(str(error))
                unusable.add(release)
                continue
            if torch.name != release:  # an index that says otherwise than what it holds
                unusable.add(release)
            self._run(torch, wanted[release])

    def _run(self, torch: Torch, records: Sequence[Record]) -> None:
        self.builds[torch.name] = (torch.version, torch.git)
        runnable = {record.name: record for record in records if record.subject.not_replayable is None}
        subjects = [record.subject for record in runnable.values()]
        with closing(replay_on(torch, subjects, self._settings)) as results:
            for number, result in enumerate(results, 1):
                self._keep(runnable[result.subject.finding.public_id], torch.name, result)
                self._on_result(result, number, len(runnable))

    def _keep(self, record: Record, version: str, result: Result) -> None:
        record.results[version] = result
        if result.replay.status != ReplayStatus.NOT_RUN:
            self._store.add_replay(result.subject.finding.id, result.replay)

    @cached_property
    def _releases(self) -> list[str]:
        """The releases among pip's versions, without builds and pre-releases, the oldest first."""
        known = environments.versions()
        return list(dict.fromkeys(version.public for version in known if not version.is_prerelease))
