"""The line of the user's program that is under way."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

# Files between a call in the program and what sees it.
_BETWEEN = (
    "torch/overrides.py",
    "torch/_tensor.py",
    "torch/_ops.py",
    "torch/utils/",
    "torch/_jit_internal.py",
    "torch/_compile.py",
    "torch/_dynamo/",
    "torch/_decomp/",
    "torch/_refs/",
    "torch/_prims",
)
_OURS = __name__.partition(".")[0]
# Modules of ours that stand between a call and the program say so themselves.
__watches_calls__ = True


def program_lines() -> Iterator[str]:
    """``file.py:line`` of the callers under way, innermost first, as dynamo gives them: modules of torch included.

    Ends where our own code drives the program. A module of ours whose frames stand between the program and what asks
    for its line has a global ``__watches_calls__``.
    """
    frame = sys._getframe(1)
    while frame is not None:
        path, module = Path(frame.f_code.co_filename).as_posix(), frame.f_globals
        if not module.get("__watches_calls__") and not any(part in path for part in _BETWEEN):
            if str(module.get("__name__")).partition(".")[0] == _OURS:
                return
            yield f"{Path(path).name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
