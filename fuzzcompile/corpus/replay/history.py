"""What a finding's replays say together: since which torch it fails, and in which it is fixed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fuzzcompile.corpus.records import Replay
from fuzzcompile.corpus.replay.status import Status
from fuzzcompile.corpus.replay.versions import order, public


@dataclass(frozen=True)
class History:
    """The answers of all versions that were tried, each by its public number (``2.13.0``), the oldest first.

    Attributes:
        torch: the status on each version, by its latest replay.
        affected_since: the oldest version on which it fails; None if it fails on none.
        fixed_in: the first version after the last failing one on which it passes, if any.
        newest: the newest version that was tried.
        earlier_not_tried: no version older than ``affected_since`` gave an answer, so that it may fail on those too.
    """

    torch: dict[str, str]
    affected_since: str | None = None
    fixed_in: str | None = None
    newest: str | None = None
    earlier_not_tried: bool = False


def history(replays: Sequence[Replay]) -> History:
    """The history of one finding from its replays, oldest first, as `Store.replays` gives them.

    Only "failing" counts as affected, also among the runs of a flaky replay, and only "fixed" as passing: what failed
    in another way, or gave no answer, says neither.
    """
    latest = {public(replay.torch): replay for replay in replays}
    versions = sorted(latest, key=order)
    failing = [version for version in versions if is_affected(latest[version])]
    passing = [version for version in versions if latest[version].status == Status.FIXED]
    statuses = {version: latest[version].status for version in versions}
    newest = versions[-1] if versions else None
    if not failing:
        return History(statuses, newest=newest)
    first, last = order(failing[0]), order(failing[-1])
    before = [version for version in passing if order(version) < first]
    return History(
        statuses | dict.fromkeys(before, str(Status.NOT_AFFECTED)),
        affected_since=failing[0],
        fixed_in=next((version for version in passing if order(version) > last), None),
        newest=newest,
        earlier_not_tried=not before,
    )


def is_affected(replay: Replay) -> bool:
    """Whether the bug showed in any run."""
    return replay.status == Status.FAILING or Status.FAILING in replay.runs
