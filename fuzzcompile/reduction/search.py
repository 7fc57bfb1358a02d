"""The search for a smaller case: what was tried, what holds, and what the search may still cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fuzzcompile.reduction.evaluating import Evaluation, evaluate
from fuzzcompile.reduction.program import Program
from fuzzcompile.reduction.writing import Written, model_lines, written

# By-catch of one reduction that is worth keeping: most of it is one bug in many sizes.
_MOST_OTHERS = 8


@dataclass(frozen=True)
class Probed:
    """What a quick look at a candidate said.

    ``matches``: it fails in the way that the search is locked to. ``is_bug``: it fails in some way. ``verdict`` is its
    name. ``compiles`` and ``screens`` are what the look took.
    """

    matches: bool
    is_bug: bool
    verdict: str
    compiles: int = 1
    screens: int = 0


class Prober(Protocol):
    """Compiles candidates somewhere (in this process, in a worker) and says how they fail."""

    def probe(self, candidate: Written, *, screen: bool) -> Probed:
        """A quick look at a candidate; with ``screen`` without generating code."""


@dataclass
class Budget:
    """What a search may cost: compiles and screens together, and a value of ``time.monotonic()``."""

    compiles: int = 200
    deadline: float | None = None

    def spent(self, used: int) -> bool:
        """Whether nothing more may be tried."""
        return used >= self.compiles or (self.deadline is not None and time.monotonic() >= self.deadline)

    def beyond(self, used: int, compiles: int, seconds: float) -> Budget:
        """What is needed to end in good order, whatever was spent."""
        return Budget(used + compiles, None if self.deadline is None else time.monotonic() + seconds)


class OutOfBudget(Exception):
    """The search ends with the best that it has."""


@dataclass(frozen=True)
class Progress:
    """Handed out after each candidate that was compiled. ``operators`` is None where they are not counted."""

    reducer: str
    operators: int | None
    lines: int
    compiles: int
    screens: int
    improved: bool


@dataclass
class Tally:
    """What a search has cost, and what it met: answers by digest, sources that fail in other ways.

    ``thorough`` says that the answers were given by probing as triage judges.
    """

    compiles: int = 0
    screens: int = 0
    thorough: bool = False
    answers: dict[str, bool] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)

    @property
    def tests(self) -> int:
        """Compiles and screens together."""
        return self.compiles + self.screens


@dataclass
class Questions:
    """Asks a prober about candidates, each once, within the budget.

    With ``repeats`` above 1 a candidate is compiled up to so often until it shows a bug that comes and goes.
    """

    prober: Prober
    budget: Budget
    tally: Tally = field(default_factory=Tally)
    repeats: int = 1
    on_progress: Callable[[Progress], None] | None = None
    reducer: str = ""
    _now: tuple[int | None, int] = (None, 0)

    def ask(self, text: Written, *, screen: bool, operators: int | None = None) -> bool:
        """Whether a candidate fails in the way that is looked for.

        Raises:
            OutOfBudget: it would cost what is not there any more.
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
        """In how many of ``most`` further full compiles a text shows the bug: a budget does not end this."""
        shown = 0
        for _ in range(most):
            probed = self.prober.probe(text, screen=False)
            self.tally.compiles += probed.compiles
            self.tally.screens += probed.screens
            shown += probed.matches
        return shown

    def _probe(self, text: Written, *, screen: bool) -> bool:
        for _ in range(self.repeats):
            if self.budget.spent(self.tally.tests):
                raise OutOfBudget
            probed = self.prober.probe(text, screen=screen)
            self.tally.compiles += probed.compiles
            self.tally.screens += probed.screens
            if probed.matches:
                return True
            if probed.is_bug and not text.values and len(self.tally.others) < _MOST_OTHERS:
                self.tally.others.setdefault(text.digest, text.source)
        return False


@dataclass
class Search:
    """The best program so far, and the means to try another one.

    ``refuses`` says that the bug is that eager raises and compiled does not: candidates must raise in eager.
    ``path`` are the programs that were the best one after the other.
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

    def attempt(self, candidate: Program) -> bool:
        """Take the candidate for the best if it fails in the same way; whether it did.

        Raises:
            OutOfBudget: it would cost what is not there any more.
        """
        candidate = candidate.without_dead_code()
        if not candidate.statements or candidate == self.best:
            return False
        evaluation = evaluate(candidate)
        if (evaluation.failed is not None) != self.refuses or not self.holds(candidate):
            return False
        self.best, self._evaluation = candidate, (candidate, evaluation)
        self.path.append(candidate)
        return True

    def holds(self, candidate: Program, *, screen: bool | None = None) -> bool:
        """Whether a candidate fails in the way that is looked for."""
        screened = self.screen if screen is None else screen
        return self.questions.ask(written(candidate), screen=screened, operators=candidate.size[0])


def settings_without(program: Program, *names: str) -> Mapping[str, object]:
    """The program's settings but for those."""
    return {name: value for name, value in program.settings.items() if name not in names}
