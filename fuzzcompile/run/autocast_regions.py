"""The regions of `torch.autocast` around a call, which surround each run of it again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class AutocastRegions:
    """The regions entered, as the arguments of `torch.autocast`; none by default."""

    regions: tuple[tuple[str, torch.dtype, bool, bool], ...] = ()

    @classmethod
    def current(cls) -> AutocastRegions:
        """Those of now."""
        cached = torch.is_autocast_cache_enabled()
        entered = [name for name in DEVICES if torch.is_autocast_enabled(name)]
        return cls(tuple((name, torch.get_autocast_dtype(name), True, cached) for name in entered))

    @contextlib.contextmanager
    def enter(self) -> Iterator[None]:
        """Enter the regions for the block."""
        with contextlib.ExitStack() as stack:
            for region in self.regions:
                stack.enter_context(torch.autocast(*region))
            yield
