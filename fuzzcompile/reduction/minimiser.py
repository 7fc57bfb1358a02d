"""Minimising any case: recipe first, then the captured graph, and the text where no graph holds the bug."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fuzzcompile.generation import GeneratedCase
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.reduction.jobs import Job, Outcome, Tools, same_bug
from fuzzcompile.reduction.program import Program
from fuzzcompile.reduction.recipe import NotReproducedError, shrink_recipe
from fuzzcompile.reduction.reducers.neighbours import passing_neighbour
from fuzzcompile.reduction.reproducer import build_reproducer, confirm_reproducer
from fuzzcompile.reduction.schedule import LostBug, Reduced, reduce_programs
from fuzzcompile.reduction.scripts.sources import case_part
from fuzzcompile.reduction.search import Budget, OutOfBudget, Progress, Questions, Tally
from fuzzcompile.reduction.statements import reduce_text
from fuzzcompile.reduction.writing import Written, case_source, model_lines, written

# How often a bug that comes and goes is looked for before a candidate is given up.
REPEATS = 4
# Share of the budget that the recipe may take, so that enough is left for the graph.
_RECIPE_SHARE = 0.5


def minimise(
    job: Job,
    tools: Tools,
    budget: Budget,
    *,
    tally: Tally | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Outcome:
    """Make a case small under the signature that ``tools`` are locked to.

    ``tally`` holds the answers of an earlier search: with them the search walks again where it was. What
    ``on_progress`` raises ends the search as a spent budget does if it is a KeyboardInterrupt, and else comes out.
    """
    return _Minimiser(job, tools, Questions(tools, budget, tally or Tally(), on_progress=on_progress)).run()


@dataclass
class _Minimiser:
    job: Job
    tools: Tools
    questions: Questions
    best: str = ""
    report: Mapping[str, Any] = field(default_factory=dict)
    how: str = "as found"
    program: Program | None = None
    case: GeneratedCase | None = None
    finished: bool = True
    note: str = ""
    screened: bool = False
    drawn: dict[str, GeneratedCase] = field(default_factory=dict)

    def run(self) -> Outcome:
        start = time.monotonic()
        self.best, self.report = self.job.source, self.job.report
        before: int | None = None
        if self.questions.tally.thorough:
            self.tools.become_thorough()
        try:
            self._by_recipe()
            programs = list(self.tools.programs(self.best))
            before = sum(program.size[0] for program in programs) or None
            if not self._by_graph(programs):
                self._by_text()
        except (OutOfBudget, KeyboardInterrupt):
            self.finished = False
        return self._outcome(start, before)

    # -- the three ways ---------------------------------------------------------------------------

    def _by_recipe(self) -> None:
        job, questions = self.job, self.questions
        if job.choices is None:
            return
        questions.reducer = "recipe"

        def ask(case: GeneratedCase, *, screen: bool) -> bool:
            text = Written(case.source, {})
            self.drawn[text.digest] = case
            return questions.ask(text, screen=screen)

        most = max(1, int(_RECIPE_SHARE * (questions.budget.compiles - questions.tally.tests)))
        for screen in (True, False) if job.screens else (False,):
            try:
                result = shrink_recipe(
                    job.choices,
                    job.profile,
                    functools.partial(ask, screen=screen),
                    max_tests=most,
                    deadline=questions.budget.deadline,
                )
            except NotReproducedError:
                continue
            self._take(result.best.source, "recipe", case=result.best)
            return

    def _by_graph(self, programs: Sequence[Program]) -> bool:
        """Whether a graph shows the bug. It is what remains, if it is smaller."""
        reduced = self._reduced(programs)
        if reduced is None:
            return False
        self.finished &= reduced.finished
        self.screened = reduced.screened
        if written(reduced.program).values:
            self.note = "the bug needs values that are too many to write down: what shows it is kept as it was"
            return True
        source = case_source(reduced.program)
        if self._is_smaller(source, reduced.program, programs):
            self._take(source, "graph", program=reduced.program)
        else:
            self.program = reduced.program
        return True

    def _reduced(self, programs: Sequence[Program]) -> Reduced | None:
        refuses = self.report["verdict"] == Verdict.ACCEPTS_INVALID
        if not programs:
            return None
        for attempt in ("plain", "thorough", "repeated"):
            try:
                return reduce_programs(programs, self.questions, screens=self.job.screens, refuses=refuses)
            except LostBug as lost:
                if attempt != "repeated":  # that the bug comes and goes says more
                    self.note = str(lost)
            if attempt == "plain":
                self._become_thorough()
            else:
                self.questions.repeats = REPEATS
            self.questions.tally.answers.clear()
            if attempt == "thorough" and not self._comes_and_goes():
                self.questions.repeats = 1
                break
        return None

    def _become_thorough(self) -> None:
        self.questions.tally.thorough = True
        self.tools.become_thorough()

    def _comes_and_goes(self) -> bool:
        """Whether the case itself shows the bug in some runs and not in others."""
        self.questions.reducer = "repetition"
        text = Written(self.best, {})
        shown = [self.questions.prober.probe(text, screen=False).matches for _ in range(REPEATS)]
        self.questions.tally.compiles += len(shown)
        if any(shown) and not all(shown):
            self.note = f"the bug comes and goes: it showed in {sum(shown)} of {len(shown)} compiles"
        return any(shown) and not all(shown)

    def _by_text(self) -> None:
        self.questions.reducer = "text"
        kept = self.best

        def holds(text: str) -> bool:
            nonlocal kept
            answer = self.questions.ask(Written(text, {}), screen=False)
            kept = text if answer else kept
            return answer

        text = case_part(self.best) if self.job.is_case else self.best
        try:
            if not holds(text):
                self.note = "the bug does not show again in a quick look: it is kept as it is"
                return
            reduce_text(text, holds)
        finally:
            if (model_lines(kept), len(kept)) < (model_lines(text), len(text)):
                self._take(kept, "text")

    # -- what is kept -----------------------------------------------------------------------------

    def _take(
        self, source: str, how: str, *, case: GeneratedCase | None = None, program: Program | None = None
    ) -> None:
        """Take a smaller source for the best, if triage says that it is the same bug."""
        if source == self.best:
            self.program = program
            return
        report = self.tools.judge(source)
        cost = report.get("cost") or {}
        self.questions.tally.compiles += int(cost.get("compiles", 0))
        self.questions.tally.screens += int(cost.get("screens", 0))
        if not same_bug(self.job.report, report):
            self.note = (
                f"what the reduction by {how} led to is another bug ({report.get('signature') or report['verdict']})"
            )
            self.questions.tally.others.setdefault(Written(source, {}).digest, source)
            return
        self.best, self.report, self.how, self.case, self.program = source, report, how, case, program

    def _is_smaller(self, source: str, program: Program, programs: Sequence[Program]) -> bool:
        try:
            original = case_part(self.best)
        except SyntaxError:
            return True
        if source.split() == original.split():
            return False
        same_work = len(programs) == 1 and program.size >= programs[0].size
        return not (same_work and model_lines(source) >= model_lines(original))

    def _outcome(self, start: float, before: int | None) -> Outcome:
        neighbour = self._neighbour()
        if self.how == "text" and self.job.is_case and not self._can_be_shown():
            self.best, self.report, self.how = self.job.source, self.job.report, "as found"
            self.note = "what the reduction of the text led to cannot be run as a script"
        if self.how in ("as found", "text") and not self.job.is_case:
            reproducer, confirmed, said = self.best, False, "a script is kept as a script"
        else:
            reproducer = build_reproducer(self.best, self.report, neighbour=neighbour)
            confirmation = confirm_reproducer(reproducer)
            confirmed, said = confirmation.confirmed, confirmation.output
        changed = self.best != self.job.source and self.how != "as found"
        return Outcome(
            self.best,
            self.report,
            reproducer,
            confirmed,
            said,
            neighbour,
            self.how,
            changed,
            self.note,
            self.questions.tally,
            time.monotonic() - start,
            self.finished,
            before,
            self.program.size[0] if self.program is not None and self.how == "graph" else before,
            self.case,
            tuple(self.drawn[digest] for digest in self.questions.tally.others if digest in self.drawn),
        )

    def _can_be_shown(self) -> bool:
        """Whether a reproducer can be built: a text from which statements were taken may fail in ways of its own."""
        try:
            build_reproducer(self.best, self.report)
        except Exception:
            return False
        return True

    def _neighbour(self) -> str | None:
        """One change that makes the program pass, if one of the first few does."""
        program = self.program
        if program is None or self.how != "graph" or not self.finished:
            return None
        self.questions.reducer = "neighbour"

        def passes(candidate: Program) -> bool:
            probed = self.tools.probe(written(candidate), screen=self.screened)
            self.questions.tally.compiles += probed.compiles
            self.questions.tally.screens += probed.screens
            return probed.verdict in (Verdict.EQUAL, Verdict.ROUNDING)

        try:
            return passing_neighbour(program, passes)
        except KeyboardInterrupt:
            return None
