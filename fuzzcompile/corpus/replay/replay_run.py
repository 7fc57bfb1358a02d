"""Replay of a corpus's findings over versions of torch, stored as it goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cached_property

from fuzzcompile.corpus.replay import environments
from fuzzcompile.corpus.replay.environments import (
    CPU_GB,
    DEFAULT_GB,
    NoDisk,
    Torch,
    check,
    free_bytes,
    is_made,
    obtain,
    torch_at_hand,
)
from fuzzcompile.corpus.replay.replay_engine import Result, Settings, replay_on
from fuzzcompile.corpus.replay.replay_history import ReplayStatus, order
from fuzzcompile.corpus.replay.replay_record import Records, finals, next_release, open_releases, unknown
from fuzzcompile.corpus.replay.replay_text import line
from fuzzcompile.corpus.store import Store
from fuzzcompile.model.errors import EnvironmentUnfit

Say = Callable[[str], None]


class ReplayRun:
    """Runs selected findings on torches, one after the other; ``records`` holds what is known so far.

    A result is stored before ``on_result`` gets it and ``say`` hears of it, as of all else that happens. ``lacking``
    lists the torches that could not be had.
    """

    def __init__(
        self, store: Store, records: Records, settings: Settings, on_result: Callable[[Result], None], say: Say
    ) -> None:
        self.records = records
        self.lacking: list[str] = []
        self._store = store
        self._settings = settings
        self._on_result = on_result
        self._say = say

    def run(self, asked: Sequence[str]) -> None:
        """Run all findings on the torches of ``--torch``, the oldest first, or (none given) on the one at hand.

        Raises:
            UsageError: one of ``asked`` is neither a version nor a path.
            EnvironmentUnfit: none was given, and the one at hand cannot be imported.
        """
        for text in asked:
            check(text)
        torches = self._obtain_torches(asked) if asked else [torch_at_hand()]
        for torch in sorted(torches, key=lambda torch: order(torch.version)):
            self._run(torch)

    def list_open_releases(self) -> list[str]:
        """The releases that `bisect` may have to try.

        Raises:
            EnvironmentUnfit: pip lists no releases.
        """
        return open_releases(self.records.all, self._releases)

    def bisect(self) -> None:
        """Narrow down, between the versions tried, which release brought each bug and which fixed it."""
        try:
            self._bisect()
        except NoDisk as error:
            self._say(f"The bisection stops: {error}")
        for record in self.records.all:
            left = unknown(record, self._releases)
            record.note = f"nothing is known of {', '.join(left)}, which lie between" if left else None

    def _bisect(self) -> None:
        unusable = set[str]()
        while (step := next_release(self.records.all, self._releases, unusable)) is not None:
            release, findings = step
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
            self._run(torch, findings)

    def _obtain_torches(self, asked: Sequence[str]) -> list[Torch]:
        torches: dict[str, Torch] = {}
        for text in dict.fromkeys(asked):
            try:
                torch = obtain(text, self._say)
            except EnvironmentUnfit as error:
                self._say(str(error))
                self.lacking.append(text)
                continue
            if torch.name in torches:
                self._say(
                    f"{text} is left out: it has torch {torch.version}, and {torches[torch.name].version} is tried."
                )
            torches.setdefault(torch.name, torch)
        return list(torches.values())

    def _run(self, torch: Torch, findings: Sequence[int] | None = None) -> None:
        self.records.builds[torch.name] = (torch.version, torch.git)
        chosen = [self.records.by_finding[key] for key in findings or self.records.by_finding]
        runnable = [record.subject for record in chosen if record.subject.not_replayable is None]
        with closing(replay_on(torch, runnable, self._settings)) as results:
            for number, result in enumerate(results, 1):
                self._keep(torch.name, result)
                self._say(line(result, number, len(runnable)))

    def _keep(self, version: str, result: Result) -> None:
        key = result.subject.finding.id
        self.records.by_finding[key].results[version] = result
        if result.replay.status != ReplayStatus.NOT_RUN:
            self._store.add_replay(key, result.replay)
        self._on_result(result)

    @cached_property
    def _releases(self) -> list[str]:
        return finals(environments.versions())


def describe_cost(releases: Sequence[str]) -> str:
    """Return what environments for these releases take at most, in words."""
    missing = sum(not is_made(order(release)) for release in releases)
    return (
        f"up to {len(releases)} releases ({releases[0]} to {releases[-1]}), for which up to {missing} environments "
        f"of {CPU_GB} to {DEFAULT_GB} GB each are made; {free_bytes() / 10**9:.0f} GB are free"
    )
