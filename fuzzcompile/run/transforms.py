"""Function transforms and levels of forward mode that a program entered and did not leave: it raised, for one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from fuzzcompile.run.tangents import is_level_entered


@contextlib.contextmanager
def leave_transforms() -> Iterator[None]:
    """Leave what is entered in the block and not left: vmap and grad of a graph, a level of tangents.

    Else the next program raises that levels do not nest.
    """
    functorch: Any = getattr(torch._C, "_functorch", None)
    stack: Callable[[], Sequence[object] | None] = getattr(functorch, "get_interpreter_stack", list)
    before, entered = len(stack() or ()), _refuses_level()
    try:
        yield
    finally:
        while len(stack() or ()) > before:
            functorch.pop_dynamic_layer_stack()
        if not entered and is_level_entered():
            forward_ad.exit_dual_level()  # type: ignore[no-untyped-call]
        if not entered and _refuses_level():
            torch._C._exit_dual_level(level=0)


def _refuses_level() -> bool:
    """Return whether a level is entered; a graph of dynamo's enters it past `forward_ad`, which does not know of it."""
    try:
        level = torch._C._enter_dual_level()
    except RuntimeError:  # levels do not nest
        return True
    torch._C._exit_dual_level(level=level)
    return False
