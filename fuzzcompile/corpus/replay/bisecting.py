"""Which release to try next, so that the release that brought a bug and the one that fixed it are known.

The search keeps no state: what is open follows from the results so far. A release that gives no answer for a finding
is a result too, and the search goes around it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

from packaging.version import Version

from fuzzcompile.corpus.records import Replay
from fuzzcompile.corpus.replay.history import is_affected
from fuzzcompile.corpus.replay.record import Record
from fuzzcompile.corpus.replay.status import Status
from fuzzcompile.corpus.replay.versions import order


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

    Each finding wants the middle of what is open for it. Since those who share an interval want the same release,
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
    return replay.status == Status.FIXED or is_affected(replay)
