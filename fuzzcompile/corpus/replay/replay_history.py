"""What a finding's replays say together: since which torch it fails, and in which it is fixed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from packaging.version import InvalidVersion, Version

from fuzzcompile.corpus.models import Replay
from fuzzcompile.corpus.records import Finding

# What a reproducer that was run again may show.


class ReplayStatus(StrEnum):
    """The result of one run of a reproducer, or of several; the values are the words of the JSON contract."""

    FAILING = "failing"  # it shows the bug that it was made for
    FIXED = "fixed"  # it runs, and shows no bug
    DIFFERENT = "fails differently"  # the compiled program fails, and not in the way for which the reproducer was made
    ERRORED = "errored"  # it gives no answer: eager fails, an import fails, the machine has no compiler
    FLAKY = "flaky"  # its runs disagree
    NOT_AFFECTED = "not affected"  # it passes on a torch that is older than all those where it fails
    NOT_RUN = "not run"  # it needs a device that is not there
    NOT_REPLAYABLE = "not replayable"  # there is no script, or one that does not say whether the bug shows


# Versions of torch: their order, and what they are called.


def order(torch: str) -> Version:
    """Sorts versions of torch; one that is no version (PEP 440) comes before all others."""
    try:
        return Version(torch)
    except InvalidVersion:
        return Version("0.dev0")


def public(torch: str) -> str:
    """The version without the name of its build: 2.13.0 for 2.13.0+cpu."""
    return torch.partition("+")[0]


@dataclass(frozen=True)
class History:
    """The answers of all versions that were tried, each by its public number (``2.13.0``), the oldest first.

    ``torch`` is the status on each by its latest replay. The bug fails since ``affected_since`` (the oldest on which it
    does), and passes again in ``fixed_in``; with ``earlier_not_tried`` no older version gave an answer, so that it may
    fail on those too.
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
    passing = [version for version in versions if latest[version].status == ReplayStatus.FIXED]
    statuses = {version: latest[version].status for version in versions}
    newest = versions[-1] if versions else None
    if not failing:
        return History(statuses, newest=newest)
    first, last = order(failing[0]), order(failing[-1])
    before = [version for version in passing if order(version) < first]
    return History(
        statuses | dict.fromkeys(before, str(ReplayStatus.NOT_AFFECTED)),
        affected_since=failing[0],
        fixed_in=next((version for version in passing if order(version) > last), None),
        newest=newest,
        earlier_not_tried=not before,
    )


def is_affected(replay: Replay) -> bool:
    """Return whether the bug showed in any run."""
    return replay.status == ReplayStatus.FAILING or ReplayStatus.FAILING in replay.runs


# Whether a bug that was fixed is back.


def is_regression(finding: Finding, replay: Replay, earlier: Sequence[Replay]) -> bool:
    """Return whether ``replay`` shows a bug that was fixed by then; ``earlier`` are the other replays, oldest first.

    It was if a person marked it so, or if the latest replay on the same torch passed, or, where there is none, that on
    the nearest older one: but only if the bug is older than that torch, as a bug that is new in a version was never
    fixed before it. A mark says nothing of versions before one that is known to have the fix.
    """
    if not is_failing(replay):
        return False
    now, versions = order(public(replay.torch)), [order(public(past.torch)) for past in earlier]
    dated = list(zip(versions, earlier, strict=True))
    if finding.status == "fixed" and not any(past.status == ReplayStatus.FIXED and at > now for at, past in dated):
        return True
    answers = (ReplayStatus.FAILING, ReplayStatus.FIXED, ReplayStatus.DIFFERENT, ReplayStatus.FLAKY)
    before = [(at, past) for at, past in dated if at <= now and past.status in answers]
    if not before:
        return False
    nearest = max(at for at, _ in before)
    latest = [past for at, past in before if at == nearest][-1]
    seen = [*finding.torch_versions, *(past.torch for past in earlier if is_affected(past))]
    was_seen = nearest == now or any(order(public(torch)) <= nearest for torch in seen)
    return latest.status == ReplayStatus.FIXED and was_seen


def is_failing(replay: Replay) -> bool:
    """Return whether the compiled program failed, in whatever way, in any run."""
    return bool({ReplayStatus.FAILING, ReplayStatus.DIFFERENT} & {replay.status, *replay.runs})
