"""Minimise any case: its recipe first, then its captured graph, then its text if no graph shows the bug."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fuzzcompile.contract import ReportJson
from fuzzcompile.generation import GeneratedCase
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.reduction.canonical import program_key
from fuzzcompile.reduction.concluding import Shown, can_be_shown, find_neighbour, show, unconfirmed
from fuzzcompile.reduction.jobs import Capture, Job, Tools, is_smaller, same_bug
from fuzzcompile.reduction.outcome import Outcome, Tally
from fuzzcompile.reduction.program import Program
from fuzzcompile.reduction.recipe import NotReproducedError, RecipeProgress, shrink_recipe
from fuzzcompile.reduction.schedule import REPEATS, LostBug, Reduced, reduce_programs
from fuzzcompile.reduction.scripts.sources import case_part
from fuzzcompile.reduction.search import Budget, OutOfBudget, Progress, Questions, bisected
from fuzzcompile.reduction.statements import reduce_text
from fuzzcompile.reduction.writing import Written, case_source, model_lines

# Share of the budget for the recipe; the rest is for the graph.
_RECIPE_SHARE = 0.5


def minimize(
    job: Job,
    tools: Tools,
    budget: Budget,
    *,
    tally: Tally | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Outcome:
    """Reduce a case to a smaller one with the signature that ``tools`` are locked to.

    Args:
        job: the case and its report.
        tools: probes candidates and judges results.
        budget: bounds the search; building and confirming the reproducer come on top.
        tally: the answers of an earlier search, which then resumes where it stopped.
        on_progress: called after each candidate that was compiled. A KeyboardInterrupt from it ends the search like
            a spent budget; any other exception propagates.
    """
    return _Minimiser(job, tools, Questions(tools, budget, tally or Tally(), on_progress=on_progress)).run()


@dataclass
class _Minimiser:
    job: Job
    tools: Tools
    questions: Questions
    best: str = ""
    report: ReportJson = field(default_factory=ReportJson)
    how: str = "as found"
    program: Program | None = None
    case: GeneratedCase | None = None
    finished: bool = True
    note: str = ""
    screened: bool = False
    interrupted: bool = False
    drawn: dict[str, GeneratedCase] = field(default_factory=dict)
    captured: dict[Capture, list[Program]] = field(default_factory=dict)

    def run(self) -> Outcome:
        start = time.monotonic()
        self.best, self.report = self.job.source, self.job.report
        if self.questions.tally.thorough:
            self.tools.become_thorough()
        try:
            self._by_recipe()
            if not self._by_graph():
                self._by_text()
        except OutOfBudget:
            self.finished = False
        except KeyboardInterrupt:
            self.finished, self.interrupted = False, True
        before = next((n for c in ("static", "aten") if (n := sum(p.size[0] for p in self.captured.get(c, [])))), None)
        return self._outcome(start, before)

    # -- recipe, graph, text ---------------------------------------------------------------------------

    def _by_recipe(self) -> None:
        job, questions = self.job, self.questions
        if job.choices is None:
            return
        questions.reducer = "recipe"

        def ask(case: GeneratedCase, *, screen: bool) -> bool:
            text = Written(case.source, {})
            self.drawn[text.digest] = case
            return questions.ask(text, screen=screen)

        best: list[RecipeProgress] = []
        most = max(1, int(_RECIPE_SHARE * (questions.budget.compiles - questions.tally.tests)))
        for screen in (True, False) if job.screens else (False,):
            try:
                result = shrink_recipe(
                    job.choices,
                    job.profile,
                    functools.partial(ask, screen=screen),
                    max_tests=most,
                    deadline=questions.budget.deadline,
                    on_progress=best.append,
                )
            except NotReproducedError:
                continue
            except (OutOfBudget, KeyboardInterrupt) as ending:
                self.interrupted = isinstance(ending, KeyboardInterrupt)
                if best:
                    self._take(best[-1].best.source, "recipe", case=best[-1].best)
                raise
            self._take(result.best.source, "recipe", case=result.best)
            return

    def _by_graph(self) -> bool:
        """Reduce a captured graph and take it if it is smaller than the case; whether a graph shows the bug."""
        reduced = self._reduced()
        if reduced is None:
            return False
        self.finished &= reduced.finished
        self.screened, self.interrupted = reduced.screened, reduced.interrupted
        if reduced.comes_and_goes is not None:
            shown, of = reduced.comes_and_goes
            self.note = f"the bug comes and goes: it showed in {shown} of {of} compiles"
        if reduced.program.is_recorded:
            self.note = "the bug needs more recorded values than fit in a script: the case is kept as it was"
            return True
        source = case_source(reduced.program)
        if not self._is_smaller(source, reduced.program):
            self.program = reduced.program
        elif not self._take(source, "graph", program=reduced.program):
            self._back_on(reduced.path)
        return True

    def _back_on(self, path: Sequence[Program]) -> None:
        """Take the last program of ``path`` that triage confirms, by bisection.

        A probe compares suspects; triage proves a culprit. Where several suspects are visible, a candidate may keep
        the locked one as a bystander while another has become the culprit.
        """
        sources = [(case_source(program), program) for program in path if not program.is_recorded]
        taken = [(source, program) for source, program in sources if self._is_smaller(source, program)]
        bisected(-1, len(taken) - 1, lambda step: self._take(taken[step][0], "graph", program=taken[step][1]))

    def _reduced(self) -> Reduced | None:
        captures: tuple[Capture, ...] = ("static", "dynamic", "aten") if self.job.resizes else ("static", "aten")
        for attempt in ("plain", "thorough", "repeated"):
            for capture in captures:
                reduced = self._reduced_from(capture, note=attempt != "repeated")
                if reduced is not None:
                    return reduced
            if not any(self.captured.values()):
                return None
            if attempt == "plain":
                self._become_thorough()
            else:
                self.questions.repeats = REPEATS
            self.questions.tally.answers.clear()
            if attempt == "thorough" and not self._comes_and_goes():
                self.questions.repeats = 1
                break
        return None

    def _reduced_from(self, capture: Capture, *, note: bool) -> Reduced | None:
        """The reduced graph of one kind of capture; None if no graph of that kind shows the bug."""
        if capture not in self.captured:
            self.captured[capture] = list(self.tools.programs(self.best, capture))
            self.questions.tally.screens += capture == "aten"  # a functional capture takes a compile
        programs, refuses = self.captured[capture], self.report["verdict"] == Verdict.ACCEPTS_INVALID
        try:
            return reduce_programs(programs, self.questions, screens=self.job.screens, refuses=refuses)
        except LostBug as lost:
            if note and programs:
                self.note = str(lost)
        return None

    def _become_thorough(self) -> None:
        self.questions.tally.thorough = True
        self.tools.become_thorough()

    def _comes_and_goes(self) -> bool:
        """Return whether the case itself shows the bug in some compiles only."""
        self.questions.reducer = "repetition"
        shown = self.questions.times(Written(self.best, {}), REPEATS)
        if 0 < shown < REPEATS:
            self.note = f"the bug comes and goes: it showed in {shown} of {REPEATS} compiles"
        return 0 < shown < REPEATS

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
                self.note = "a probe of the case does not show the bug again: it is kept as it is"
                return
            reduce_text(text, holds)
        except KeyboardInterrupt:
            self.interrupted = True
            raise
        finally:
            if (model_lines(kept), len(kept)) < (model_lines(text), len(text)):
                self._take(kept, "text")

    # -- results -----------------------------------------------------------------------------

    def _take(
        self, source: str, how: str, *, case: GeneratedCase | None = None, program: Program | None = None
    ) -> bool:
        """Make a smaller source the best one if triage confirms the bug in it; whether it did.

        After an interrupt the source is taken without triage: a probe has shown the bug in it.
        """
        if source == self.best:
            self.program = program
            return True
        if self.interrupted:
            report: ReportJson = {**self.job.report, "evidence": {"outputs": []}}
        else:
            report = self._judged(source)
            if not same_bug(self.job.report, report, self.job.keeps):
                self._refuse(source, how, report)
                return False
        self.best, self.report, self.how, self.case, self.program = source, report, how, case, program
        return True

    def _judged(self, source: str) -> ReportJson:
        """The full report on a source, judged a second time if the first report shows no bug."""
        report: ReportJson = {}
        for _ in range(2):
            report = self.tools.judge(source)
            cost = report.get("cost") or {}
            self.questions.tally.compiles += cost.get("compiles", 0)
            self.questions.tally.screens += cost.get("screens", 0)
            if report.get("is_bug") and report["verdict"] != Verdict.NONDETERMINISTIC:
                break
        return report

    def _refuse(self, source: str, how: str, report: ReportJson) -> None:
        if not report.get("is_bug"):
            self.note = f"the reduction by {how} lost the bug: triage says {report['verdict']}, twice"
            return
        if report["verdict"] == Verdict.NONDETERMINISTIC:
            self.note = f"the result of the reduction by {how} comes and goes from compile to compile"
            return
        name = report.get("signature") or report["verdict"]
        self.note = f"the reduction by {how} led to another bug ({name})"
        self.questions.tally.others.setdefault(Written(source, {}).digest, source)

    def _is_smaller(self, source: str, program: Program) -> bool:
        return is_smaller(source, program, self.best, self.captured.get("static", []))

    def _outcome(self, start: float, before: int | None) -> Outcome:
        if self.how == "text" and self.job.is_case and not can_be_shown(self.best, self.report):
            self.best, self.report, self.how = self.job.source, self.job.report, "as found"
            self.note = "the reduced text cannot be run as a script"
        neighbour = self._neighbour()
        shown = self._shown(neighbour)
        self.note = shown.note or self.note
        changed = self.best != self.job.source and self.how != "as found"
        return Outcome(
            self.best,
            self.report,
            shown.reproducer,
            shown.confirmed,
            shown.said,
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
            self.interrupted,
            shown.plain,
            program_key(self.best),
        )

    def _shown(self, neighbour: str | None) -> Shown:
        if self.how in ("as found", "text") and not self.job.is_case:
            return Shown(self.best, False, "a script is kept as a script")
        if self.interrupted:
            return unconfirmed(self.best, self.report)
        return show(self.best, self.report, neighbour, for_issue=self.job.for_issue, ends=self.job.ends)

    def _neighbour(self) -> str | None:
        """The source of a program one change away that passes; None if none of those tried does."""
        if self.program is None or self.how != "graph" or not self.finished:
            return None
        self.questions.reducer = "neighbour"
        tally, budget = self.questions.tally, self.questions.budget
        return find_neighbour(self.program, self.tools, tally, budget, screen=self.screened)
