"""Minimise any case: its recipe first, then its captured graph, then its text if no graph shows the bug."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.programs.casefiles.case_file import count_processes
from fuzzcompile.programs.edits.changes import generate_changes, generate_substitutes
from fuzzcompile.programs.ir.case_source import CaseText, count_model_lines, write_program, write_source
from fuzzcompile.programs.ir.case_text import extract_case, program_key
from fuzzcompile.programs.ir.program import Program
from fuzzcompile.programs.scripts.issue_script import ReproducerResult, show, show_written, try_reproducer
from fuzzcompile.programs.shrink import reducers as reduce
from fuzzcompile.programs.shrink.case_reducer import in_one_process, in_two_processes, reduce_text, without_setting
from fuzzcompile.programs.shrink.outcome import DrawnSource, MinimizeResult, SearchTally
from fuzzcompile.programs.shrink.search import (
    CandidateTests,
    Capture,
    MinimizeJob,
    MinimizerTools,
    OutOfBudget,
    ProgramSearch,
    SearchBudget,
    SearchProgress,
    bisect_last,
    same_bug,
)

# The reducers of a captured program, in the order in which they run.

Reducer = Callable[[ProgramSearch], None]
# Names appear in progress lines. Reducers that make every later candidate cheaper come first.
CUTTING: tuple[tuple[str, Reducer], ...] = (
    ("settings", reduce.plain_settings),
    ("parameters", reduce.plain_parameters),
    ("outputs", reduce.drop_outputs),
    ("values", reduce.random_values),
    ("tail", reduce.cut_tail),
    ("head", reduce.cut_head),
    ("values", reduce.random_values),
    ("outputs", reduce.drop_outputs),
    ("modules", reduce.bypass_modules),
    ("first statements", reduce.give_first_statements),
    ("values", reduce.random_values),
    ("statements", reduce.bypass_statements),
    ("heads", reduce.compute_heads),
    ("values", reduce.random_values),
)
POLISHING: tuple[tuple[str, Reducer], ...] = (
    ("contexts", reduce.drop_blocks),
    ("precision", reduce.single_precision),
    ("evaluation mode", reduce.evaluation_mode),
    ("arguments", reduce.drop_arguments),
    ("strides", reduce.plain_strides),
    ("values", reduce.plain_values),
    ("sizes", reduce.shrink_sizes),
    ("strides", reduce.plain_strides),
    ("constants", reduce.round_constants),
    ("equal inputs", reduce.merge_equal),
    ("rows", reduce.show_rows),
    ("values", reduce.plain_values),
    ("parameters", reduce.plain_parameters),
    ("settings", reduce.plain_settings),
)
# After the budget is spent, tests and seconds for values that fit in a script and for the last full compile.
_LAST_TESTS, _LAST_SECONDS = 16, 45.0
# Compiles of each candidate for a bug that comes and goes.
REPEATS = 4


class LostBug(Exception):
    """None of the captured programs shows the bug."""


def reduce_programs(
    candidates: Sequence[Program], questions: CandidateTests, *, screens: bool, refuses: bool = False
) -> ProgramSearch:
    """Reduce the first of the captured programs, the likeliest first, that shows the bug.

    The best program of the search is confirmed by a full compile. An interrupt ends the search; its best program is
    then the smallest so far that fits in a script, unconfirmed. With ``screens`` the bug may show without code
    generation, which is then tried first; with ``refuses`` it is that compiled accepts what eager refuses. LostBug if
    none of the programs shows the bug.
    """
    search = _start_search(candidates, questions, screens=screens, refuses=refuses)
    kept = search.best
    try:
        for reducers in (CUTTING, POLISHING):
            start, steps = search.best, len(search.path)
            _run(search, reducers)
            if search.screen and not search.holds(search.best, screen=False) and not _count_reproductions(search):
                # Generated code does not show it: back to the last confirmed program, on with full compiles.
                _step_back(search, start, steps)
                _run(search, reducers)
            kept = search.best
        search.finished = True
    except OutOfBudget:
        search.best = _finish_early(search, kept)
    except KeyboardInterrupt:
        search.best = next((program for program in reversed(search.path) if not program.is_recorded), search.best)
        search.interrupted = True
    return search


def _run(search: ProgramSearch, reducers: Sequence[tuple[str, Reducer]]) -> None:
    for name, reducer in reducers:
        search.questions.reducer = name
        reducer(search)


def _count_reproductions(search: ProgramSearch) -> int:
    """After a full compile without the bug: how many further compiles of the best program show it.

    If some do, every later candidate is compiled up to ``REPEATS`` times.
    """
    text = write_program(search.best)
    shown = search.questions.times(text, REPEATS)
    if shown:
        search.comes_and_goes = shown, REPEATS + 1
        search.questions.repeats = REPEATS
        search.questions.tally.answers[text.digest] = True
    return shown


def _step_back(search: ProgramSearch, start: Program, steps: int) -> None:
    """Go back to the last program since ``start`` that a full compile confirms, and screen no longer."""
    search.screen = False
    taken = [start, *search.path[steps:]]
    if not search.holds(start):
        raise LostBug("the bug shows where the graph is interpreted, and not in generated code")
    good = bisect_last(0, len(taken), lambda step: search.holds(taken[step]))
    search.best = taken[good]
    del search.path[steps + good :]


def _finish_early(search: ProgramSearch, kept: Program) -> Program:
    """The best program of a search that was cut short, with plain values and confirmed; ``kept`` if that fails."""
    questions = search.questions
    ends = None if questions.budget.deadline is None else time.monotonic() + _LAST_SECONDS
    questions.budget = SearchBudget(questions.tally.tests + _LAST_TESTS, ends)
    questions.reducer = "values"
    try:
        reduce.plain_values(search)
        if not search.screen or search.holds(search.best, screen=False):
            return search.best
        search.best, search.screen = kept, False
        reduce.plain_values(search)
    except OutOfBudget:
        return search.best if not search.screen else kept
    return search.best


def _start_search(
    candidates: Sequence[Program], questions: CandidateTests, *, screens: bool, refuses: bool
) -> ProgramSearch:
    questions.reducer = "graph"
    for program in candidates:
        search = ProgramSearch(program, questions, refuses=refuses)
        try:
            search.screen = screens and search.holds(program, screen=True)
            if search.screen or search.holds(program, screen=False):
                return search
        except OutOfBudget as error:
            raise LostBug("there was no budget to show the bug in a captured graph") from error
    raise LostBug("no graph that dynamo captures shows the bug when it runs alone")


# Programs one change away that are compiled at most.
_MOST_NEIGHBOURS = 14


def find_passing_neighbour(program: Program, passes: Callable[[Program], bool]) -> str | None:
    """The source of the first program one change away that ``passes``, as many lines long; None if none does."""
    own = len(write_source(program).splitlines())
    changed = [*generate_changes(program), *generate_substitutes(program)]
    written = ((change.program, write_source(change.program)) for change in changed)
    near = ((candidate, source) for candidate, source in written if len(source.splitlines()) == own)
    return next((source for candidate, source in islice(near, _MOST_NEIGHBOURS) if passes(candidate)), None)


def find_neighbour(program: Program, questions: CandidateTests, *, screen: bool) -> str | None:
    """The source of a program one change away in one line that passes; None if none of those that are tried does.

    With ``screen``, candidates are probed without code generation first, and in full only if that passes. An interrupt
    or a spent budget ends the search.
    """

    def passes(candidate: Program) -> bool:
        probes = (questions.probe(write_program(candidate), screen=s) for s in ((True, False) if screen else (False,)))
        return all(probed.verdict in (Verdict.EQUAL, Verdict.ROUNDING) for probed in probes)

    try:
        return find_passing_neighbour(program, passes)
    except (KeyboardInterrupt, OutOfBudget):
        return None


# Candidates with recipes that failed in another way, of one reduction.
_MOST_OTHERS = 4
# Share of the budget for the recipe; the rest is for the graph.
_RECIPE_SHARE = 0.5


def minimize(
    job: MinimizeJob,
    tools: MinimizerTools,
    budget: SearchBudget,
    *,
    tally: SearchTally | None = None,
    on_progress: Callable[[SearchProgress], None] | None = None,
) -> MinimizeResult:
    """Reduce a case to a smaller one with the signature that ``tools`` are locked to.

    The budget bounds the search; building and confirming the reproducer come on top. With the ``tally`` of an earlier
    search it goes on where that stopped. A KeyboardInterrupt from ``on_progress``, which is called after each candidate
    that was compiled, ends the search like a spent budget; any other exception propagates.
    """
    questions = CandidateTests(tools, budget, tally or SearchTally(), on_progress=on_progress)
    found = MinimizeResult(job.source, job.report, tally=questions.tally, original=job.source)
    _Minimiser(job, tools, questions, found).run()
    return found


@dataclass
class _Minimiser:
    """Makes ``found`` smaller step by step; ``program`` is its program, if it was written from one."""

    job: MinimizeJob
    tools: MinimizerTools
    questions: CandidateTests
    found: MinimizeResult
    program: Program | None = None
    screened: bool = False
    drawn: dict[str, DrawnSource] = field(default_factory=dict)
    captured: dict[Capture, list[Program]] = field(default_factory=dict)

    def run(self) -> None:
        start = time.monotonic()
        if self.questions.tally.thorough:
            self.tools.become_thorough()
        if self.questions.tally.loose:
            self._loosen()
        try:
            if self.job.nproc is not None:
                self.questions.reducer = "case"
                self._is_shown_by_probes(self.found.source)
            if not (self._leave_path() or self._lower_processes()):
                self._reduce_recipe()
            if not self._reduce_graph():
                self._reduce_text()
            if self._leave_processes() and not self._reduce_graph():
                self._reduce_text()
        except OutOfBudget:
            self.found.finished = False
        except KeyboardInterrupt:
            self.found.finished, self.found.interrupted = False, True
        self._conclude()
        self.found.seconds = time.monotonic() - start

    def _leave_path(self) -> bool:
        """Compile the case just in time if that shows the bug too; a package takes many times as long to test.

        Its recipe, which draws the package, is left with it: graph and text are reduced.
        """
        plain = without_setting(self.found.source, "PATH") if self.job.is_case else None
        if plain is None:
            return False
        self.questions.reducer = "path"
        return self.questions.ask(CaseText(plain, {}), screen=False) and self._take(plain, "text")

    def _lower_processes(self) -> bool:
        """Run the case in two processes if that shows the bug too. Its recipe, which draws them all, is left."""
        if self.job.nproc is None or not self.job.is_case:
            return False
        self.questions.reducer = "processes"
        fewer = in_two_processes(self.found.source)
        return any(self.questions.ask(CaseText(text, {}), screen=False) and self._take(text, "text") for text in fewer)

    def _leave_processes(self) -> bool:
        """Run the case in one process if that shows the bug too: what is left of it waits for no other."""
        if self.job.nproc is None or not self.job.is_case:
            return False
        self.questions.reducer = "processes"
        alone = in_one_process(extract_case(self.found.source))
        if not (self.questions.ask(CaseText(alone, {}), screen=False) and self._take(alone, "text")):
            return False
        self.job = replace(self.job, nproc=None)
        self.captured.clear()  # graphs of several processes are no programs
        return True

    def _reduce_recipe(self) -> None:
        recipe, questions, best = self.job.recipe, self.questions, list[DrawnSource]()
        if recipe is None:
            return
        questions.reducer = "recipe"
        most = max(1, int(_RECIPE_SHARE * (questions.budget.compiles - questions.tally.tests)))
        for screen in (True, False) if self.job.screens else (False,):

            def ask(case: DrawnSource, screen: bool = screen) -> bool:
                text = CaseText(case.source, {})
                self.drawn[text.digest] = case
                return questions.ask(text, screen=screen)

            try:
                ends = questions.budget.deadline
                if ends is not None and self.job.nproc is not None:  # the text comes next, statement by statement
                    ends = time.monotonic() + _RECIPE_SHARE * (ends - time.monotonic())
                smallest = recipe.shrink(ask, max_tests=most, deadline=ends, on_test=best.append)
            except (OutOfBudget, KeyboardInterrupt) as ending:
                self.found.interrupted = isinstance(ending, KeyboardInterrupt)
                if best:
                    self._take(best[-1].source, "recipe")
                raise
            if smallest is not None:
                self._take(smallest.source, "recipe")
                return

    def _reduce_graph(self) -> bool:
        """Reduce a captured graph and take it if it is smaller than the case; whether a graph shows the bug."""
        reduced = self._reduce()
        if reduced is None:
            return False
        self.found.finished &= reduced.finished
        self.screened, self.found.interrupted = reduced.screen, reduced.interrupted
        if reduced.comes_and_goes is not None:
            self._note_times(*reduced.comes_and_goes)
        if reduced.best.is_recorded:
            self.found.note = "the bug needs more recorded values than fit in a script: the case is kept as it was"
        elif not self._is_smaller(source := write_source(reduced.best), reduced.best):
            self.program = reduced.best
        elif not self._take(source, "graph", program=reduced.best):
            self._step_back_on(reduced.path)
        return True

    def _note_times(self, shown: int, of: int) -> None:
        self.found.note = f"the bug comes and goes: it showed in {shown} of {of} compiles"

    def _step_back_on(self, path: Sequence[Program]) -> None:
        """Take the last program of ``path`` that triage confirms, by bisection.

        A probe compares suspects, triage proves a culprit: a candidate may keep the locked one as a bystander.
        """
        sources = [(write_source(program), program) for program in path if not program.is_recorded]
        taken = [(source, program) for source, program in sources if self._is_smaller(source, program)]
        bisect_last(-1, len(taken) - 1, lambda step: self._take(taken[step][0], "graph", program=taken[step][1]))

    def _reduce(self) -> ProgramSearch | None:
        captures: tuple[Capture, ...] = ("static", "dynamic", "aten") if self.job.resizes else ("static", "aten")
        for attempt in ("plain", "thorough", "repeated"):
            for capture in captures:
                if reduced := self._reduce_capture(capture, note=attempt != "repeated"):
                    return reduced
            if not any(self.captured.values()):
                return None
            if attempt == "plain":
                self.questions.tally.thorough = True
                self.tools.become_thorough()
            else:
                self.questions.repeats = REPEATS
            self.questions.tally.answers.clear()
            if attempt == "thorough":
                self.questions.reducer = "repetition"
                shown = self.questions.times(CaseText(self.found.source, {}), REPEATS)
                if not 0 < shown < REPEATS:
                    self.questions.repeats = 1
                    break
                self._note_times(shown, REPEATS)
        return None

    def _reduce_capture(self, capture: Capture, *, note: bool) -> ProgramSearch | None:
        if capture not in self.captured:
            self.captured[capture] = list(self.tools.programs(self.found.source, capture))
            self.questions.tally.screens += capture == "aten"  # a functional capture takes a compile
        programs, refuses = self.captured[capture], self.found.report["verdict"] == Verdict.ACCEPTS_INVALID
        try:
            return reduce_programs(programs, self.questions, screens=self.job.screens, refuses=refuses)
        except LostBug as lost:
            if note and programs:
                self.found.note = str(lost)
        return None

    def _reduce_text(self) -> None:
        self.questions.reducer = "text"
        text = extract_case(self.found.source) if self.job.is_case else self.found.source
        path = [text]

        def holds(candidate: str) -> bool:
            if self.job.nproc is not None and self.job.is_case and count_processes(candidate) is None:
                return False
            answer = self.questions.ask(CaseText(candidate, {}), screen=False)
            path.extend([candidate] * answer)
            return answer

        try:
            if not self._is_shown_by_probes(text):
                self.found.note = "a probe of the case does not show the bug again: it is kept as it is"
                return
            reduce_text(text, holds)
        except KeyboardInterrupt:
            self.found.interrupted = True
            raise
        finally:
            smaller = [
                step for step in path if (count_model_lines(step), len(step)) < (count_model_lines(text), len(text))
            ]
            if smaller and not self._take(smaller[-1], "text"):
                bisect_last(-1, len(smaller) - 1, lambda step: self._take(smaller[step], "text"))

    def _is_shown_by_probes(self, text: str) -> bool:
        """Ask of a text itself, and where it is not shown by the kind of verdict alone, then with refined verdicts."""
        questions, tally = self.questions, self.questions.tally
        if questions.ask(CaseText(text, {}), screen=False):
            return True
        if not tally.loose:
            tally.loose = True
            self._loosen()
            tally.answers.clear()
            if questions.ask(CaseText(text, {}), screen=False):
                return True
        if tally.thorough:
            return False
        tally.thorough = True
        self.tools.become_thorough()
        tally.answers.clear()
        return questions.ask(CaseText(text, {}), screen=False)

    def _loosen(self) -> None:
        """Hold candidates by their verdict, and by naming what is at fault; the judge has the last word."""
        self.tools.loosen()
        named = str((self.job.report.get("culprit") or {}).get("family") or "").split("+")
        self.questions.words = tuple(word for word in named if word in self.job.source)

    def _write(self) -> str | None:
        """The reproducer of the best source; None if none can be written."""
        if self.job.nproc is None:
            return try_reproducer(self.found.source, self.found.report)
        return self.tools.write(self.found.source, self.found.report)

    def _take(self, source: str, how: str, *, program: Program | None = None) -> bool:
        """Make a smaller source the best one if triage confirms the bug in it; whether it did.

        After an interrupt the source is taken without triage: a probe has shown the bug in it.
        """
        found = self.found
        if source == found.source:
            self.program = program
            return True
        report: ReportJson = {**self.job.report, "evidence": {"outputs": []}}
        if not found.interrupted:
            report = self._judge_twice(source)
            if not same_bug(self.job.report, report, self.job.keeps):
                self._refuse(source, how, report)
                return False
        found.source, found.report, found.how, self.program = source, report, how, program
        return True

    def _judge_twice(self, source: str) -> ReportJson:
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
            self.found.note = f"the reduction by {how} lost the bug: triage says {report['verdict']}, twice"
        elif report["verdict"] == Verdict.NONDETERMINISTIC:
            self.found.note = f"the result of the reduction by {how} comes and goes from compile to compile"
        else:
            other = report.get("signature") or report["verdict"]
            self.found.note = f"the reduction by {how} led to another bug ({other})"
            self.questions.tally.others.setdefault(CaseText(source, {}).digest, source)

    def _is_smaller(self, source: str, program: Program) -> bool:
        """Return whether a program, written as ``source``, is smaller than the text of its graphs."""
        try:
            before = extract_case(self.found.source)
        except SyntaxError:
            return True
        if source.split() == before.split():
            return False
        captured = self.captured.get("static", [])
        same_work = len(captured) == 1 and program.size >= captured[0].size
        return not (same_work and count_model_lines(source) >= count_model_lines(before))

    def _confirm(self, written: str | None) -> ReproducerResult:
        """Run the reproducer of several processes, if there is one."""
        if written is None:
            return ReproducerResult(self.found.source, False, "no script of its processes can be written")
        return show_written(written, self.found.report, for_issue=self.job.for_issue, plants=self.job.plants)

    def _conclude(self) -> None:
        found, job = self.found, self.job
        graphs = (self.captured.get(capture, []) for capture in ("static", "aten"))
        found.operators_before = next((n for programs in graphs if (n := sum(p.size[0] for p in programs))), None)
        written = self._write() if job.is_case and (job.nproc is not None or found.how == "text") else None
        if found.how == "text" and job.is_case and written is None:
            found.source, found.report, found.how = job.source, job.report, "as found"
            found.note = "the reduced text cannot be run as a script"
        program = self.program if found.how == "graph" else None
        found.operators = found.operators_before if program is None else program.size[0]
        if program is not None and found.finished:
            self.questions.reducer = "neighbour"
            found.neighbour = find_neighbour(program, self.questions, screen=self.screened)
        if found.how in ("as found", "text") and not job.is_case:
            shown = ReproducerResult(found.source, False, "a script is kept as a script")
        elif found.interrupted:
            reproducer = written or self._write() or found.source
            shown = ReproducerResult(reproducer, False, "the search was interrupted")
        elif job.nproc is not None:
            shown = self._confirm(written or self._write())
        else:
            shown = show(
                found.source, found.report, found.neighbour, for_issue=job.for_issue, ends=job.ends, plants=job.plants
            )
        found.reproducer, found.confirmed, found.confirmation = shown.reproducer, shown.confirmed, shown.said
        found.shown, found.note = shown.plain, shown.note or found.note
        found.changed = found.source != job.source and found.how != "as found"
        found.program_key = program_key(found.source)
        others = [self.drawn[digest] for digest in found.tally.others if digest in self.drawn]
        found.others = tuple(others[:_MOST_OTHERS])
