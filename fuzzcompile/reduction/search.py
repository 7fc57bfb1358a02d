"""The search for a smaller case: its budget, the answers so far, and the best program."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from fuzzcompile.reduction.evaluating import Evaluation, evaluate
from fuzzcompile.reduction.outcome import Probed, Tally
from fuzzcompile.reduction.program import Program
from fuzzcompile.reduction.writing import Written, model_lines, written

# Secondary findings kept of one reduction: most of them are one bug in many sizes.
_MOST_OTHERS = 8


class Prober(Protocol):
    """Compiles candidates, in this process or in a worker, and tells how they fail."""

    def probe(self, candidate: Written, *, screen: bool) -> Probed:
        """Compile a candidate once; with ``screen`` without code generation."""


@dataclass
class Budget:
    """Bounds of a search: compiles and screens together, and a deadline (a value of ``time.monotonic()``)."""

    compiles: int = 200
    deadline: float | None = None

    def spent(self, used: int) -> bool:
        """Return whether ``used`` compiles and screens, or the time, reach a bound."""
        return used >= self.compiles or (self.deadline is not None and time.monotonic() >= self.deadline)

    def beyond(self, used: int, compiles: int, seconds: float) -> Budget:
        """A budget with so many compiles and seconds from now on, for the last steps of a search."""
        return Budget(used + compiles, None if self.deadline is None else time.monotonic() + seconds)


class OutOfBudget(Exception):
    """Ends the search: its best program so far is the result."""


@dataclass(frozen=True)
class Progress:
    """The state of the search after a compiled candidate; ``operators`` is None if they are not counted."""

    reducer: str
    operators: int | None
    lines: int
    compiles: int
    screens: int
    improved: bool


@dataclass
class Questions:
    """Probes candidates, each once, within the budget.

    For a bug that comes and goes, ``repeats`` is how many compiles may miss it before a candidate is given up.
    """

    prober: Prober
    budget: Budget
    tally: Tally = field(default_factory=Tally)
    repeats: int = 1
    on_progress: Callable[[Progress], None] | None = None
    reducer: str = ""
    _now: tuple[int | None, int] = (None, 0)

    def ask(self, text: Written, *, screen: bool, operators: int | None = None) -> bool:
        """Return whether a candidate shows the bug; from the tally if it was probed before.

        Raises:
            OutOfBudget: the budget is spent.
        """
        key = f"{text.digest}{' screened' if screen else ''}"
        if key in self.tally.answers:
            return self.tally.answers[key]
        answer = self._probe(text, screen=screen)
        self.tally.answers[key] = answer
        if answer:
            self._now = (operators, model_lines(text.source))
        if self.on_progress is not None:
            tally = self.tally
            self.on_progress(Progress(self.reducer, *self._now, tally.compiles, tally.screens, answer))
        return answer

    def times(self, text: Written, most: int) -> int:
        """In how many of ``most`` further full compiles a text shows the bug, whatever the budget."""
        shown = 0
        for _ in range(most):
            probed = self.prober.probe(text, screen=False)
            self.tally.add(probed)
            shown += probed.matches
        return shown

    def _probe(self, text: Written, *, screen: bool) -> bool:
        for _ in range(self.repeats):
            if self.budget.spent(self.tally.tests):
                raise OutOfBudget
            probed = self.prober.probe(text, screen=screen)
            self.tally.add(probed)
            if probed.matches:
                return True
            if probed.is_bug and not text.values and len(self.tally.others) < _MOST_OTHERS:
                self.tally.others.setdefault(text.digest, text.source)
        return False


@dataclass
class Search:
    """The best program so far, and the test for candidates.

    ``refuses``: the bug is that eager raises and compiled does not, so candidates must raise the same error in eager;
    otherwise none. ``path`` holds the best programs in the order in which they were found.
    """

    best: Program
    questions: Questions
    screen: bool = False
    refuses: bool = False
    path: list[Program] = field(default_factory=list)
    _evaluation: tuple[Program, Evaluation] | None = None

    @property
    def evaluation(self) -> Evaluation:
        """The best program's eager run."""
        if self._evaluation is None or self._evaluation[0] is not self.best:
            self._evaluation = (self.best, evaluate(self.best))
        return self._evaluation[1]

    def attempt(self, candidate: Program | None) -> bool:
        """Make the candidate, if there is one, the best program if it shows the bug; whether it did.

        Raises:
            OutOfBudget: the budget is spent.
        """
        if candidate is None:
            return False
        candidate = candidate.without_dead_code()
        if not candidate.statements or candidate == self.best:
            return False
        evaluation = evaluate(candidate)
        if evaluation.refusal != (self.evaluation.refusal if self.refuses else None) or not self.holds(candidate):
            return False
        self.best, self._evaluation = candidate, (candidate, evaluation)
        self.path.append(candidate)
        return True

    def holds(self, candidate: Program, *, screen: bool | None = None) -> bool:
        """Return whether a candidate shows the bug."""
        screened = self.screen if screen is None else screen
        return self.questions.ask(written(candidate), screen=screened, operators=candidate.size[0])


def bisected(good: int, bad: int, holds: Callable[[int], bool]) -> int:
    """The last position from ``good`` on that ``holds``, found by bisection; ``good`` does, ``bad`` does not."""
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good
