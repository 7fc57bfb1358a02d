"""The task that a pool gives a worker to minimize a finding, and its result. Plain data: needs no torch."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Self, TypeVar

from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.judge_task import NamedFunction
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.programs.shrink.outcome import MinimizeResult, Recipe, SearchTally
from fuzzcompile.run.pool.worker import leave

if TYPE_CHECKING:
    from fuzzcompile.programs.ir.program import Program

# The answers of a minimizing worker, kept in case it dies: a candidate that killed it is not tried again.

# So many workers may be lost to one minimization.
_MOST_LOST = 3
_STATE, ASKING = "state", "asking"


_CRASHED = str(Verdict.CRASH)
Answer = TypeVar("Answer")


@dataclass(eq=False)
class CandidateLost(Exception):
    """A step that took its process down, or that was not run (``ran``) because it did so before.

    ``verdict`` names what happened. ``compiling``: eager had finished, so that the compiler is to blame. ``report`` is
    the one that the process left behind, if it had come so far.
    """

    verdict: str
    detail: str
    compiling: bool = False
    report: ReportJson | None = None
    ran: bool = True


@dataclass
class LocalAsker:
    """Compiles in this process, which a crash ends: the answers so far, and the candidates that killed a worker.

    Both are left for another worker (:func:`fuzzcompile.run.pool.worker.leave`) if this one ``keeps`` them.
    """

    keeps: bool = False
    tally: SearchTally = field(default_factory=SearchTally)
    fatal: list[str] = field(default_factory=list)

    @classmethod
    def resume(cls, left: Mapping[str, str]) -> Self:
        """Return the state that a lost worker has left; an empty one if there is none."""
        asked = cls(True, *_read(left))
        asked._keep()
        asked._announce("")
        return asked

    @property
    def is_over(self) -> bool:
        """Return whether so many workers were lost that the search ends with the best program so far."""
        return len(self.fatal) >= _MOST_LOST

    def ask(self, step: Callable[[], Answer], *, name: str, source: str, limited: bool = False) -> Answer:
        """Run a step here, unless it killed a worker before (`Asker.ask`)."""
        with self.guard(name) as survives:
            if not survives:
                raise CandidateLost(_CRASHED, "it took a worker down", ran=False)
            return step()

    def guard_eager(self, program: Program) -> AbstractContextManager[bool]:
        """Return whether this process survives the eager run of a program, as far as is known."""
        from fuzzcompile.programs.ir.case_source import write_program  # with torch, which a program needs too

        return self.guard(f"eager {write_program(program).digest}", kept=False)

    @contextlib.contextmanager
    def guard(self, question: str, *, kept: bool = True) -> Iterator[bool]:
        """Yield whether the block may ask: not if that killed a worker before. ``kept`` leaves the answers so far."""
        if question in self.fatal:
            yield False
            return
        if kept:
            self._keep()
        self._announce(question)
        try:
            yield True
        finally:
            self._announce("")

    def _keep(self) -> None:
        if self.keeps:
            leave(_STATE, json.dumps({"tally": asdict(self.tally), "fatal": self.fatal}))

    def _announce(self, question: str) -> None:
        if self.keeps:
            leave(ASKING, question)


def can_resume(left: Mapping[str, str]) -> bool:
    """Return whether the minimization of a lost worker can go on: it had begun, and few enough were lost."""
    return _STATE in left and len(_read(left)[1]) <= _MOST_LOST


def _read(left: Mapping[str, str]) -> tuple[SearchTally, list[str]]:
    """Return the answers of a lost worker, and the candidates that killed one, its last included.

    That is empty where the worker asked nothing: what an earlier program wrote out of bounds may end it later.
    """
    if _STATE not in left:  # no worker has begun
        return SearchTally(), []
    kept = json.loads(left[_STATE])
    return SearchTally(**kept["tally"]), [*kept["fatal"], left.get(ASKING, "")]


# Seconds that a minimization needs after its search: to judge and confirm the reproducer and to make the script for an
# issue (11 to 14 s of processor time, measured), to judge and confirm it only; and the shortest search worth beginning.
CONCLUDING, CONFIRMING, LEAST_SEARCH = 25.0, 12.0, 10.0


@dataclass(frozen=True)
class MinimizeTask:
    """A finding to minimize."""

    source: str
    report: ReportJson  # on the source; its signature is the one to keep
    recipe: Recipe | None  # of a generated case
    seconds: float  # for the search, not for the confirmation after it
    tests: int = 100  # compiles and screens that the search may use
    vetoes: tuple[str, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict)  # what a lost worker left of the same minimization

    def resume(self, left: Mapping[str, str]) -> MinimizeTask:
        """Return the same minimization, continued from the state of a worker that had taken over ``self.left``."""
        return replace(self, left=left)


MINIMIZE: Callable[[MinimizeTask], MinimizeResult] = NamedFunction("fuzzcompile.diagnosis.worker.minimization:minimize")
"""Minimize a finding on the worker's device; the result has the same signature."""
