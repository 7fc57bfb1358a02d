"""What a worker asks while it minimizes, kept for its loss: a question that took it down is not asked again."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from fuzzcompile.reduction.outcome import Tally
from fuzzcompile.signatures import source_hash
from fuzzcompile.worker.marker import mark

# So many workers may be lost to one minimization.
_MOST_LOST = 3
_LONGEST = 200  # characters of a question


@dataclass
class Asked:
    """The answers so far, and what each lost worker was asking (``fatal``); without a path, nothing is kept.

    What is asked at the moment stands in a file of its own, which takes one system call: eager runs are many and short.
    """

    path: Path | None = None
    tally: Tally = field(default_factory=Tally)
    fatal: list[str] = field(default_factory=list)
    _asking: int | None = None

    @classmethod
    def resumed(cls, path: str | None) -> Self:
        """The state that a lost worker has left at ``path``; an empty one if there is none."""
        if path is None:
            return cls()
        state = cls(Path(path), *_left(Path(path)))
        state._keep()  # before the last question is overwritten
        state._asking = os.open(_question_at(Path(path)), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        return state

    @property
    def is_over(self) -> bool:
        """Whether so many workers were lost that the search ends with the best program so far."""
        return len(self.fatal) >= _MOST_LOST

    @contextlib.contextmanager
    def about(self, question: str, *, kept: bool = True) -> Iterator[bool]:
        """Whether the block may ask: not if that has cost a worker. With ``kept``, the answers so far are written."""
        if question in self.fatal:
            yield False
            return
        if kept:
            self._keep()
        self._say(question)
        try:
            yield True
        finally:
            self._say("")

    def eager(self, source: str) -> AbstractContextManager[bool]:
        """Whether this process survives the eager run of a source, as far as is known."""
        return self.about(f"eager {source_hash(source)}", kept=False)

    def forget(self) -> None:
        """Drop what is kept: nothing is to be resumed."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
            _question_at(self.path).unlink(missing_ok=True)
        if self._asking is not None:
            os.close(self._asking)
            self._asking = None

    def _keep(self) -> None:
        if self.path is not None:
            mark(self.path, json.dumps({"tally": asdict(self.tally), "fatal": self.fatal}))

    def _say(self, question: str) -> None:
        if self._asking is not None:
            os.pwrite(self._asking, question[:_LONGEST].ljust(_LONGEST).encode(), 0)


def can_resume(path: Path) -> bool:
    """Whether a minimization whose worker is lost can go on: it had begun, and not too many workers were lost."""
    return path.exists() and len(_left(path)[1]) <= _MOST_LOST


def _left(path: Path) -> tuple[Tally, list[str]]:
    """What a lost worker knew, and the questions that cost one, its last included.

    That is empty where the worker asked nothing: what an earlier program wrote out of bounds may end it later.
    """
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:  # no worker has begun
        return Tally(), []
    return Tally(**kept["tally"]), [*kept["fatal"], _question_of(path)]


def _question_of(path: Path) -> str:
    try:
        return _question_at(path).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def _question_at(path: Path) -> Path:
    return path.with_suffix(".asking")
