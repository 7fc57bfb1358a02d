"""How many of the SDPA patterns that can fire on a device a corpus has made fire."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from fuzzcompile.compiler.sdpa_patterns import registered, try_all, variants
from fuzzcompile.corpus import StoredCoverage

FAMILY = "_sfdp_pattern_"


@dataclass(frozen=True)
class AttentionCoverage:
    """Names of SDPA patterns: registered, firing when their own search functions are compiled, fired in a corpus.

    ``untried`` are those whose search function could not be compiled at all, with the reason.
    """

    registered: tuple[str, ...]
    can_fire: tuple[str, ...]
    fired: tuple[str, ...]
    untried: dict[str, str]

    @property
    def reached(self) -> tuple[str, ...]:
        """Those that can fire here and did."""
        return tuple(name for name in self.can_fire if name in self.fired)

    @property
    def never(self) -> tuple[str, ...]:
        """Those that can fire here and never did."""
        return tuple(name for name in self.can_fire if name not in self.fired)

    @property
    def silent(self) -> tuple[str, ...]:
        """Those that are registered and do not fire for their own search function."""
        return tuple(name for name in self.registered if name not in self.can_fire)

    @property
    def share(self) -> float | None:
        """Share of those that can fire here which did; None where none can."""
        return len(self.reached) / len(self.can_fire) if self.can_fire else None

    def to_json(self) -> dict[str, Any]:
        """Everything, names included, as plain JSON."""
        lists = {"registered": self.registered, "can_fire": self.can_fire, "fired": self.fired}
        lists |= {"never": self.never, "silent": self.silent}
        return {**{key: list(names) for key, names in lists.items()}, "untried": self.untried, "share": self.share}


def attention_coverage(
    device: torch.device,
    seen: Iterable[StoredCoverage],
    on_progress: Callable[[int, int], None] = lambda done, of: None,
) -> AttentionCoverage:
    """Compile every SDPA pattern's own search function (a minute on a CPU) and compare with what a corpus has seen.

    ``on_progress`` is told how many are done, of how many.

    Raises:
        EnvironmentUnfit: the installed torch has no list of its SDPA patterns where fuzzcompile looks for it.
    """
    found = variants(device)
    can_fire, untried = set[str](), {}
    for number, tried in enumerate(try_all(device, found), 1):
        can_fire |= tried.fired
        if tried.trouble is not None:
            untried[tried.name] = tried.trouble
        on_progress(number, len(found))
    fired = {row.rewrite for row in seen if row.outcome == "fired" and row.rewrite.startswith(FAMILY)}
    order = {name: place for place, name in enumerate(registered(device))}

    def in_order(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(names, key=lambda name: (order.get(name, len(order)), name)))

    return AttentionCoverage(tuple(order), in_order(can_fire), in_order(fired), untried)
