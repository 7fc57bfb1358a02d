"""Processes that tests start and interrupt."""

from __future__ import annotations

import signal


def heed_interrupts() -> None:
    """What a shell starts in the background ignores SIGINT, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
