"""The file in which a worker says how far a case has come, for the case that it is lost. Imports no torch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import cast

from fuzzcompile.contract import ReportJson


def mark(path: str | Path | None, text: str = "") -> None:
    """Write the marker whole or not at all: its writer may be killed at any time, or fork and go on twice."""
    if path is not None:
        draft = Path(f"{path}.{os.getpid()}.part")
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)


def left_behind(marker: Path) -> tuple[bool, ReportJson | None]:
    """What a lost worker had already written to its marker file (`JudgeTask.marker`).

    Returns:
        Whether eager had finished, and the report if there was a verdict.
    """
    try:
        text = marker.read_text(encoding="utf-8")
    except FileNotFoundError:
        return False, None
    return True, cast(ReportJson, json.loads(text)) if text else None
