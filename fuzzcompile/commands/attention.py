"""How many of the SDPA patterns that can fire on a device a corpus has made fire."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from fuzzcompile.compiler.sdpa_patterns import registered, try_all, variants
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
) -> AttentionCoverage:
    """Compile every SDPA pattern's own search function (a minute on a CPU) and compare with what a corpus has seen.

    Args:
        device: where the patterns would run.
        seen: what the corpus has reached.
        on_progress: called after each with how many are done, and how many there are.

    Raises:
        EnvironmentUnfit: the installed torch keeps no list of its SDPA patterns where fuzzcompile expects it.
    """
    candidates = variants(device)
    can_fire, untried = set[str](), {}
    for number, attempt in enumerate(try_all(device, candidates), 1):
        can_fire |= attempt.fired
        if attempt.trouble is not None:
            untried[attempt.name] = attempt.trouble
        on_progress(number, len(candidates))
    known = registered(device)
    fired = {row.rewrite for row in seen if row.outcome == "fired"}
    return AttentionCoverage(
        known, [name for name in known if name in can_fire], [name for name in known if name in fired], untried
    )
