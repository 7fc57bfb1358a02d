"""Coverage of SDPA patterns: those that can fire on a device, and those that a corpus has made fire."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from fuzzcompile.commands.known import asked_of
from fuzzcompile.compiler.sdpa_patterns import Tried, registered, try_all, variants
from fuzzcompile.corpus import StoredCoverage


@dataclass(frozen=True)
class AttentionCoverage:
    """Names of SDPA patterns, in the order in which torch registers them.

    Attributes:
        registered: all that torch registers for the device.
        can_fire: fire when a search function of the patterns is compiled.
        fired: fired for a case of the corpus.
        untried: those whose search function does not compile, with the reason.
    """

    registered: Sequence[str]
    can_fire: Sequence[str]
    fired: Sequence[str]
    untried: dict[str, str]

    @property
    def never(self) -> list[str]:
        """Those that can fire and never did."""
        return [name for name in self.can_fire if name not in self.fired]

    @property
    def silent(self) -> list[str]:
        """Those that do not fire for any search function."""
        return [name for name in self.registered if name not in self.can_fire]

    @property
    def share(self) -> float | None:
        """The share of those that can fire which did; None where none can."""
        return 1 - len(self.never) / len(self.can_fire) if self.can_fire else None

    def to_json(self) -> dict[str, object]:
        """Everything, names included, as plain JSON."""
        return {**vars(self), "never": self.never, "silent": self.silent, "share": self.share}


def attention_coverage(
    device: torch.device,
    seen: Iterable[StoredCoverage],
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    target: str | None = None,
) -> AttentionCoverage:
    """Compile every SDPA pattern's own search function (a minute on a CPU) and compare with what a corpus has seen.

    Args:
        device: where the patterns would run.
        seen: what the corpus has reached.
        on_progress: called after each with how many are done, and how many there are; not for a target.
        target: try the patterns in a process that compiles for this target.

    Raises:
        EnvironmentUnfit: the installed torch keeps no list of its SDPA patterns where fuzzcompile expects it.
    """
    known, attempts = _tried(device, on_progress) if target is None else asked_of(target, _tried, device)
    can_fire = {name for attempt in attempts for name in attempt.fired}
    untried = {attempt.name: attempt.trouble for attempt in attempts if attempt.trouble is not None}
    fired = {row.rewrite for row in seen if row.outcome == "fired"}
    return AttentionCoverage(
        known, [name for name in known if name in can_fire], [name for name in known if name in fired], untried
    )


def _tried(
    device: torch.device, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> tuple[list[str], list[Tried]]:
    """The registered patterns, and what the search function of each made fire."""
    candidates, attempts = variants(device), list[Tried]()
    for attempt in try_all(device, candidates):
        attempts.append(attempt)
        on_progress(len(attempts), len(candidates))
    return registered(device), attempts
