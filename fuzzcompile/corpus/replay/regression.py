"""Whether a bug that was fixed is back."""

from __future__ import annotations

from collections.abc import Sequence

from packaging.version import Version

from fuzzcompile.corpus.records import Finding, Replay
from fuzzcompile.corpus.replay.history import is_affected
from fuzzcompile.corpus.replay.status import Status
from fuzzcompile.corpus.replay.versions import order, public


def is_regression(finding: Finding, replay: Replay, earlier: Sequence[Replay]) -> bool:
    """Whether ``replay`` shows a bug that was fixed by then.

    It was if a person marked it so, or if the latest replay on the same torch passed, or, where there is none, that on
    the nearest older one: but only if the bug is older than that torch, as a bug that is new in a version was never
    fixed before it. A mark says nothing of versions before one that is known to have the fix.

    Args:
        finding: what was replayed.
        replay: the new result.
        earlier: the finding's other replays, oldest first.
    """
    if not is_failing(replay):
        return False
    now = _order(replay)
    if finding.status == "fixed" and not any(past.status == Status.FIXED and _order(past) > now for past in earlier):
        return True
    before = [past for past in earlier if _order(past) <= now and _answers(past)]
    if not before:
        return False
    nearest = max(map(_order, before))
    latest = [past for past in before if _order(past) == nearest][-1]
    return latest.status == Status.FIXED and (nearest == now or _was_seen_by(nearest, finding, earlier))


def is_failing(replay: Replay) -> bool:
    """Whether the compiled program failed, in whatever way, in any run."""
    return bool({Status.FAILING, Status.DIFFERENT} & {replay.status, *replay.runs})


def _order(replay: Replay) -> Version:
    return order(public(replay.torch))


def _answers(replay: Replay) -> bool:
    return replay.status in (Status.FAILING, Status.FIXED, Status.DIFFERENT, Status.FLAKY)


def _was_seen_by(version: Version, finding: Finding, earlier: Sequence[Replay]) -> bool:
    """Whether the bug was seen on a torch no newer than ``version``."""
    seen = [*finding.torch_versions, *(past.torch for past in earlier if is_affected(past))]
    return any(order(public(torch)) <= version for torch in seen)
