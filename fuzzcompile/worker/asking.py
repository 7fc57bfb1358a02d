"""The answers of a minimizing worker, kept in case it dies: a candidate that killed it is not tried again."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Self

from fuzzcompile.execution.worker import leave
from fuzzcompile.reduction.outcome import Tally
from fuzzcompile.signatures import source_hash

# So many workers may be lost to one minimization.
_MOST_LOST = 3
_STATE, ASKING = "state", "asking"


@dataclass
class Asked:
    """The answers so far, and the candidates that killed a worker (``fatal``).

    Both are left for another worker (:func:`fuzzcompile.execution.worker.leave`) if this one ``keeps`` them.
    """

    keeps: bool = False
    tally: Tally = field(default_factory=Tally)
    fatal: list[str] = field(default_factory=list)

    @classmethod
    def resumed(cls, left: Mapping[str, str]) -> Self:
        """Return the state that a lost worker has left; an empty one if there is none."""
        asked = cls(True, *_read(left))
        asked._keep()
        asked._say("")
        return asked

    @property
    def is_over(self) -> bool:
        """Return whether so many workers were lost that the search ends with the best program so far."""
        return len(self.fatal) >= _MOST_LOST

    @contextlib.contextmanager
    def about(self, question: str, *, kept: bool = True) -> Iterator[bool]:
        """Yield whether the block may ask: not if that killed a worker before. ``kept`` leaves the answers so far."""
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
        """Return whether this process survives the eager run of a source, as far as is known."""
        return self.about(f"eager {source_hash(source)}", kept=False)

    def _keep(self) -> None:
        if self.keeps:
            leave(_STATE, json.dumps({"tally": asdict(self.tally), "fatal": self.fatal}))

    def _say(self, question: str) -> None:
        if self.keeps:
            leave(ASKING, question)


def can_resume(left: Mapping[str, str]) -> bool:
    """Return whether the minimization of a lost worker can go on: it had begun, and few enough were lost."""
    return _STATE in left and len(_read(left)[1]) <= _MOST_LOST


def _read(left: Mapping[str, str]) -> tuple[Tally, list[str]]:
    """Return the answers of a lost worker, and the candidates that killed one, its last included.

    That is empty where the worker asked nothing: what an earlier program wrote out of bounds may end it later.
    """
    if _STATE not in left:  # no worker has begun
        return Tally(), []
    kept = json.loads(left[_STATE])
    return Tally(**kept["tally"]), [*kept["fatal"], left.get(ASKING, "")]
