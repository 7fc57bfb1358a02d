"""The warnings of a run, in a form that does not change from run to run."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import PurePath

import torch

# Folders of the compiler, whose warnings about itself are left out.
_COMPILER = ("torch/_dynamo/", "torch/_inductor/", "torch/_functorch/")


@contextlib.contextmanager
def recorded() -> Iterator[list[warnings.WarningMessage]]:
    """Collect the warnings of a block instead of showing them, including those given only once per process."""
    always = torch.is_warn_always_enabled()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.set_warn_always(True)
        try:
            yield caught
        finally:
            torch.set_warn_always(always)


def texts(caught: Sequence[warnings.WarningMessage]) -> tuple[str, ...]:
    """Category and text of each warning, once, in order, without the compiler's own and notices of deprecation."""
    shown = (f"{w.category.__name__}: {_normalised(str(w.message))}" for w in caught if not _is_chatter(w))
    return tuple(dict.fromkeys(shown))


def _is_chatter(warning: warnings.WarningMessage) -> bool:
    if issubclass(warning.category, DeprecationWarning | PendingDeprecationWarning | FutureWarning):
        return True
    return any(folder in PurePath(warning.filename).as_posix() for folder in _COMPILER)


def _normalised(text: str) -> str:
    """The text on one line, without addresses and positions in torch's sources."""
    text = re.sub(r"\(Triggered internally at [^)]*\)", "", text)
    text = re.sub(r"0x[0-9a-fA-F]+", "ADDR", text)
    return " ".join(text.split())[:300]
