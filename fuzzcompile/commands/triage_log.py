"""The log of a triage of several files, a line for each event (`fuzzcompile.reporting.event_log`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from fuzzcompile.commands.triage import Answer, overall_status
from fuzzcompile.reporting.event_log import EventLog


class TriageLog:
    """The log of one triage; without a path, nothing is written."""

    def __init__(self, path: Path | None, files: Sequence[Path]) -> None:
        """Open the log.

        Raises:
            UsageError: it cannot be written.
        """
        self._log = EventLog(path)
        self._files = files
        self._answers: list[Answer] = []

    def judged(self, answer: Answer) -> None:
        """Log that a file was judged, or could not be."""
        self._answers.append(answer)
        report = answer.report or {}
        said = {key: report.get(key) for key in ("verdict", "is_bug", "severity", "confidence", "signature")}
        rest = {"known": answer.known, "error": answer.error, "seconds": round(answer.seconds, 3)}
        self._write("case_judged", case=str(answer.path), **said, **rest)

    def __enter__(self) -> Self:
        self._write("triage_started", cases=[str(path) for path in self._files])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ended = (
            "finished" if kind is None else "interrupted" if kind in (KeyboardInterrupt, GeneratorExit) else "failed"
        )
        judged = {"judged": len(self._answers), "cases": len(self._files)}
        with self._log:
            self._write("triage_finished", ended=ended, exit_status=overall_status(self._answers), **judged)

    def _write(self, event: str, **fields: object) -> None:
        self._log.write(event, fields)
