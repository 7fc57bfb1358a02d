"""The search for a smaller case: its budget, the answers so far, and the best program."""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

import torch

from fuzzcompile.compiler.operators.graph_capture import capture_functional, capture_graphs
from fuzzcompile.model.contract import COMPILE, ReportJson
from fuzzcompile.model.signatures import agree, drop_fingerprint, find_error, is_unproved, raise_alike
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.programs.ir.case_source import CaseText, count_model_lines, write_program
from fuzzcompile.programs.ir.evaluation import Evaluation, evaluate, without_sizes
from fuzzcompile.programs.ir.program import Program
from fuzzcompile.programs.ir.tracing import Untranslatable, translate_graph
from fuzzcompile.programs.shrink.outcome import ProbeResult, Recipe, SearchTally
from fuzzcompile.run.case import Case

# Secondary findings kept of one reduction: most of them are one bug in many sizes.
_MOST_OTHERS = 8


class Prober(Protocol):
    """Compiles candidates, in this process or in a worker, and tells how they fail."""

    def probe(self, candidate: CaseText, *, screen: bool) -> ProbeResult:
        """Compile a candidate once; with ``screen`` without code generation."""


@dataclass
class SearchBudget:
    """Bounds of a search: compiles and screens together, and a deadline (a value of ``time.monotonic()``)."""

    compiles: int = 200
    deadline: float | None = None

    def spent(self, used: int) -> bool:
        """Return whether ``used`` compiles and screens, or the time, reach a bound."""
        return used >= self.compiles or (self.deadline is not None and time.monotonic() >= self.deadline)


class OutOfBudget(Exception):
    """Ends the search: its best program so far is the result."""


@dataclass(frozen=True)
class SearchProgress:
    """The state of the search after a compiled candidate; ``operators`` is None if they are not counted."""

    reducer: str
    operators: int | None
    lines: int
    compiles: int
    screens: int
    improved: bool


@dataclass
class CandidateTests:
    """Probes candidates, each once, within the budget.

    For a bug that comes and goes, ``repeats`` is how many compiles may miss it before a candidate is given up. Texts
    without one of ``words`` are not probed: they do not show it.
    """

    prober: Prober
    budget: SearchBudget
    tally: SearchTally = field(default_factory=SearchTally)
    repeats: int = 1
    words: tuple[str, ...] = ()
    on_progress: Callable[[SearchProgress], None] | None = None
    reducer: str = ""
    _now: tuple[int | None, int] = (None, 0)

    def ask(self, text: CaseText, *, screen: bool, operators: int | None = None) -> bool:
        """Return whether a candidate shows the bug; from the tally if it was probed before, else within the budget."""
        key = f"{text.digest}{' screened' if screen else ''}"
        if key in self.tally.answers:
            return self.tally.answers[key]
        if not all(word in text.source for word in self.words):
            return False
        answer, tally = self._shows(text, screen=screen), self.tally
        tally.answers[key] = answer
        if answer:
            self._now = (operators, count_model_lines(text.source))
        if self.on_progress is not None:
            self.on_progress(SearchProgress(self.reducer, *self._now, tally.compiles, tally.screens, answer))
        return answer

    def times(self, text: CaseText, most: int) -> int:
        """In how many of ``most`` further full compiles a text shows the bug, whatever the budget."""
        shown = 0
        for _ in range(most):
            probed = self.prober.probe(text, screen=False)
            self.tally.add(probed)
            shown += probed.matches
        return shown

    def probe(self, text: CaseText, *, screen: bool) -> ProbeResult:
        """Probe a text once; OutOfBudget if the budget is spent."""
        if self.budget.spent(self.tally.tests):
            raise OutOfBudget
        probed = self.prober.probe(text, screen=screen)
        self.tally.add(probed)
        return probed

    def _shows(self, text: CaseText, *, screen: bool) -> bool:
        for _ in range(self.repeats):
            probed = self.probe(text, screen=screen)
            if probed.matches:
                return True
            if probed.is_bug and not text.values and len(self.tally.others) < _MOST_OTHERS:
                self.tally.others.setdefault(text.digest, text.source)
        return False


@dataclass
class ProgramSearch:
    """The best program so far, and the test for candidates.

    ``refuses``: the bug is that eager raises and compiled does not, so candidates must raise the same error in eager;
    otherwise none. ``path`` holds the best programs in the order in which they were found. ``comes_and_goes`` says
    in how many compiles of how many the bug shows, if only in some.
    """

    best: Program
    questions: CandidateTests
    screen: bool = False
    refuses: bool = False
    path: list[Program] = field(default_factory=list)
    finished: bool = False
    interrupted: bool = False
    comes_and_goes: tuple[int, int] | None = None
    _evaluation: tuple[Program, Evaluation] | None = None

    @property
    def evaluation(self) -> Evaluation:
        """The best program's eager run."""
        if self._evaluation is None or self._evaluation[0] is not self.best:
            self._evaluation = (self.best, evaluate(self.best))
        return self._evaluation[1]

    def attempt(self, candidate: Program | None) -> bool:
        """Make the candidate, if there is one, the best program if it shows the bug; whether it did."""
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
        return self.questions.ask(write_program(candidate), screen=screened, operators=candidate.size[0])


def bisect_last(good: int, bad: int, holds: Callable[[int], bool]) -> int:
    """The last position from ``good`` on that ``holds``, found by bisection; ``good`` does, ``bad`` does not."""
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good


# How graphs are captured: by dynamo with static sizes, by dynamo with sizes read off the inputs, or by AOTAutograd,
# which leaves no function transforms and higher-order operators.
Capture = Literal["static", "dynamic", "aten"]


class MinimizerTools(Prober, Protocol):
    """The steps that need torch and the compiler, done in this process or in a worker that may crash."""

    def programs(self, source: str, capture: Capture) -> Sequence[Program]:
        """The graphs of a case as programs, the likeliest to show the bug first; empty if none can be translated."""

    def judge(self, source: str) -> ReportJson:
        """The full report on a source, in its JSON form."""

    def write(self, source: str, report: ReportJson) -> str | None:
        """The reproducer of a case that several processes run, written where they are; None if none can be."""

    def become_thorough(self) -> None:
        """Refine the verdicts of all further probes as triage does."""

    def loosen(self) -> None:
        """Let further probes hold a candidate by the kind of its verdict, whatever they suspect."""


@dataclass(frozen=True)
class MinimizeJob:
    """A source (a case file unless it is a script), its report, and the recipe of a generated case.

    ``screens``: the bug may show without code generation. ``resizes``: it may be compiled for dynamic sizes. ``keeps``:
    what must stay the same, "culprit" or "verdict". ``nproc``: the processes that run it together, None for one.
    ``for_issue``: what an issue shows is made too, which takes some more processes, as long as there is time until
    ``ends``, a value of ``time.monotonic()``. The reproducer is run with ``plants``, by default those of this process.
    """

    source: str
    report: ReportJson
    recipe: Recipe | None = None
    is_case: bool = True
    screens: bool = False
    resizes: bool = False
    keeps: str = "culprit"
    nproc: int | None = None
    for_issue: bool = False
    ends: float = math.inf
    plants: tuple[Path, ...] | None = None


def same_bug(wanted: ReportJson, reached: ReportJson, keeps: str = "culprit") -> bool:
    """Return whether two reports describe the same bug.

    They do if their signatures agree (:func:`~fuzzcompile.model.signatures.agree`), or if one proved culprit raises
    alike in both. If a culprit has low confidence, the kind of verdict and the stage decide, unless the causes are two
    for sure; if ``keeps`` is "verdict", the kind of verdict alone. A large case may name no culprit because its time
    was up: then the kind of verdict and the error that was raised decide, and the smaller case says more.
    """
    if not reached.get("is_bug"):
        return False
    if keeps == "culprit":
        signatures = wanted.get("signature") or "", reached.get("signature") or ""
        if agree(*signatures) or raise_alike(wanted, reached):
            return True
        if agree(*map(drop_fingerprint, signatures)):
            return False  # the same place, for another cause
    if Verdict(wanted["verdict"]).kind != Verdict(reached["verdict"]).kind:
        return False
    # The errors that the reports are about, without what hangs on sizes; None for another kind of bug.
    errors = [None if error is None else without_sizes(error) for error in map(find_error, (wanted, reached))]
    unnamed = not wanted.get("culprit") and (is_unproved(wanted.get("signature") or "") or errors[0] is not None)
    if keeps == "verdict" or (unnamed and errors[0] == errors[1]):
        return True
    guessed = "low" in (wanted.get("confidence"), reached.get("confidence"))
    stages = [(report.get("culprit") or {}).get("stage") for report in (wanted, reached)]
    return guessed and (stages[0] == stages[1] or None in stages)


# Captured graphs as programs, and programs as files.

_MOST_GRAPHS = 6


def capture_graph_programs(case: Case, device: torch.device, capture: Capture = "static") -> list[Program]:
    """The graphs of a case as programs, the largest first; those that cannot be written as torch code are left out."""
    dynamic = capture == "dynamic"
    graphs = capture_functional(case, device) if capture == "aten" else capture_graphs(case, device, dynamic=dynamic)
    if dynamic:  # as dynamo makes sizes dynamic that change between calls
        case = replace(case, settings=replace(case.settings, dynamic=True))
    freezes = bool(dict(case.settings.options).get("freezing")) or bool(case.settings.inductor.get("freezing"))
    programs: list[Program] = []
    for graph in graphs:
        with contextlib.suppress(Untranslatable):
            program = translate_graph(graph.module, graph.inputs, graph.parameters, _list_settings(case, graph.grad))
            if program.output_refs():
                program = replace(program, as_module=freezes and any(value.parameter for value in program.inputs))
                programs.append(program if graph.grad else program.without_gradients())
    return sorted(programs, key=lambda program: -len(program.statements))[:_MOST_GRAPHS]


def _list_settings(case: Case, grad: bool) -> dict[str, object]:
    settings = case.settings
    named = not case.backward and (grad or case.grad == "inference_mode")
    asked = {
        "BACKWARD": case.backward or None,
        "GRAD": ("enabled" if grad else case.grad) if named else None,
        "OPTIONS": dict(settings.options) or None,
        "CONFIG": {name: dict(entries) for name, entries in settings.config_patches.items()} or None,
        "MODE": settings.mode or None,
        "PATH": settings.path if settings.path != COMPILE else None,
        "DYNAMIC": settings.dynamic,
        "FULLGRAPH": settings.fullgraph or None,
    }
    return {name: value for name, value in asked.items() if value is not None}


@contextlib.contextmanager
def write_out(candidate: CaseText) -> Iterator[Path]:
    """The candidate as a file, with its recorded values beside it."""
    with tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder:
        path = Path(folder) / "repro.py"
        path.write_text(candidate.source, encoding="utf-8")
        if candidate.values:
            torch.save(dict(candidate.values), path.with_name("values.pt"))
        yield path
