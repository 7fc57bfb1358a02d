"""Every call of a script, as it makes them: where a later one parts from eager mode, and whether its graph is stale."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fuzzcompile.compiler.compile_changes import CompileChange
from fuzzcompile.compiler.graph_caches import GRAPH_CACHES, GraphCache, keep_graphs
from fuzzcompile.compiler.session import Compilation, CompileSession, open_user_settings
from fuzzcompile.compiler.watch.ledger import Ledger
from fuzzcompile.compiler.watch.recorder import Recorder
from fuzzcompile.diagnosis.decision import Decision
from fuzzcompile.diagnosis.engine import JudgedTrial, Spending
from fuzzcompile.diagnosis.refusals import find_difference
from fuzzcompile.diagnosis.stale_calls import Attempt, explain_cached_graph, explain_stale_call
from fuzzcompile.diagnosis.triage_report import TriageReport
from fuzzcompile.diagnosis.trials.case_runs import Trial
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.model.evidence import ALSO_COMPILED, JUDGED
from fuzzcompile.model.verdicts import FORMS
from fuzzcompile.programs.capture.case_loader import NOT_REACHED, ScriptRun
from fuzzcompile.programs.capture.interception import (
    CallReached,
    CompiledCallable,
    RecordedCall,
    make_captured_case,
    record_call,
    roots_of_call,
)
from fuzzcompile.programs.capture.script_process import ring
from fuzzcompile.programs.capture.state import Ambient, PresentState
from fuzzcompile.programs.casefiles.case_file import CaseFile
from fuzzcompile.run.case import Arguments, Case
from fuzzcompile.run.case_program import build
from fuzzcompile.run.observation import Observation
from fuzzcompile.run.ranks import collect_answers, meet_at, on_all_ranks
from fuzzcompile.run.runs import fingerprint_streams, observe
from fuzzcompile.run.seats import find_free_port
from fuzzcompile.run.transforms import leave_function_modes

# Calls of one script that are looked at.
_MOST_CALLS = 64


@dataclass(frozen=True)
class ScriptCalls:
    """What a look at a script's calls gave: how many were ``looked`` at, and whether these were all (``whole``).

    ``parts`` is the number of the first call that parts from eager mode, if one does, and ``report`` the answer on it
    where its graph is stale. ``unexplained`` is the answer where it shows a bug behind the calls before it, and none
    when it is compiled alone. In several processes ``parting`` are all calls that part in one of them, unexplained.
    ``firsts`` are the first calls of the compiled callables, by number.
    """

    looked: int
    whole: bool
    parts: int | None = None
    report: TriageReport | None = None
    unexplained: TriageReport | None = None
    parting: tuple[int, ...] = ()
    firsts: tuple[tuple[int, str], ...] = ()


def look_at_calls(file: CaseFile, device: torch.device, deadline: float, ignored: Sequence[int] = ()) -> ScriptCalls:
    """Run a script once more, each call compiled beside eager mode, up to the first that parts from it.

    The calls of one callable share its graphs, as in the script. ``ignored`` are calls that part by rounding.
    """
    look = _Look(file, device, deadline, caches=GRAPH_CACHES, ignored=frozenset(ignored))
    look.execute()
    if look.parted is None or look.stale is None:
        return ScriptCalls(look.looked, look.whole, look.parted, firsts=tuple(look.firsts.values()))

    def attempt(changes: Sequence[CompileChange], caches: Sequence[GraphCache] = ()) -> Attempt:
        again = _Look(file, device, deadline, tuple(changes), tuple(caches), until=look.parted)
        again.execute()
        return Attempt(again.right, again.ledger, again.parted)

    answer = look.stale
    stale = explain_cached_graph(attempt, answer.decision, look.hit) or explain_stale_call(attempt, answer.decision)
    if stale is None:
        detail = "; ".join(filter(None, (answer.decision.detail, _NOT_ALONE)))
        doubted = replace(answer, decision=replace(answer.decision, confidence="low", detail=detail))
        return ScriptCalls(look.looked, look.whole, look.parted, unexplained=doubted.report())
    report = answer.with_stale_call(stale).report(stale.attribution)
    return ScriptCalls(look.looked, look.whole, look.parted, report)


def look_on_all_ranks(case: Case, device: torch.device, file: CaseFile, seconds: float) -> ScriptCalls:
    """Run a script once more in all processes of the case, each call in eager mode and compiled.

    Calls to which one of them has not come, as the time is over or it waits for another, were not looked at. Nothing
    may follow with the case: the processes have formed other groups.

    Raises:
        RankLost: one of them is gone.
    """
    port = find_free_port()
    with on_all_ranks(f"{__name__}:{look_together.__name__}", case, file, port, seconds):
        own = look_together(case, device, file, port, seconds)
    seen = [own, *collect_answers()]
    looked = min(each.looked for each in seen)
    parting = sorted({number for each in seen for number in each.parting if number <= looked})
    return ScriptCalls(looked, all(each.whole and each.looked == looked for each in seen), parting=tuple(parting))


def look_together(case: Case, device: torch.device, file: CaseFile, port: int, seconds: float) -> ScriptCalls:
    """Run the script of a case once more as one of several processes, which meet at a port, for so many seconds."""
    look = _Look(file, device, time.monotonic() + seconds, caches=GRAPH_CACHES, together=True)
    with meet_at(port):
        look.execute()
    return ScriptCalls(look.looked, look.whole, parting=tuple(look.parting))


_NOT_ALONE = "it shows behind the calls before it, and not in that call compiled alone"


@dataclass
class _Look:
    """One execution of a script in which calls are made eagerly and compiled, each from the state that it is made in.

    Under ``changes`` of the compile, it ends with the call ``until``, and says whether that was ``right``. Where it is
    done in several processes ``together``, all make the same runs, whatever each of them sees.
    """

    file: CaseFile
    device: torch.device
    deadline: float
    changes: tuple[CompileChange, ...] = ()
    caches: tuple[GraphCache, ...] = ()  # of graphs on disk, used where the script leaves them on
    until: int | None = None
    ignored: frozenset[int] = frozenset()
    together: bool = False
    looked: int = 0
    parting: list[int] = field(default_factory=list)
    whole: bool = True
    right: bool = False
    parted: int | None = None
    stale: JudgedTrial | None = None
    firsts: dict[int, tuple[int, str]] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    hit: tuple[GraphCache, ...] = ()  # those that a graph has come out of
    _recorders: dict[object, Recorder] = field(default_factory=dict)
    _compiled: dict[tuple[int, int], Callable[..., Any]] = field(default_factory=dict)
    _last: list[RecordedCall] = field(default_factory=list)
    _looking: bool = False

    def execute(self) -> None:
        """Run the script until its time is over, whether it makes calls or not."""
        self.run = ScriptRun(self.file, self.device, visit=self._visit)
        with contextlib.ExitStack() as stack:
            self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fuzzcompile-")))
            stack.enter_context(ring(self.deadline - time.monotonic(), self._end_in_time))
            self.run.execute()

    def _end_in_time(self) -> None:
        self.whole = False
        if not self._looking:  # else what is raised would be taken for the program's own
            raise CallReached

    def _visit(self, record: CompiledCallable, arguments: Arguments, number: int) -> None:
        if self.until is None and (self.looked >= _MOST_CALLS or time.monotonic() > self.deadline):
            self.whole = False
            raise CallReached
        self.looked += 1
        self.firsts.setdefault(record.number, (number, str(record)))
        self._looking = True
        ambient = Ambient.current()
        with self.run.interception.suspend(), leave_function_modes():
            present = PresentState(roots_of_call(record.target, arguments))
            try:
                self._last = [record_call(record.target, arguments, self._last)]
                ends = self._look_at(record, number, ambient)
            finally:
                present.put_back()
                ambient.random.restore()
                self._looking = False
        if ends or not self.whole:
            raise CallReached

    def _look_at(self, record: CompiledCallable, number: int, ambient: Ambient) -> bool:
        """Make a call eagerly and compiled; return whether the script need not go on."""
        case = make_captured_case(
            self._last,
            ambient,
            record.settings,
            name=self.file.path.stem,
            path=self.file.path,
            source=self.file.source,
            backward=self.run.differentiates(self._last, ambient),
            notes=[f"{JUDGED}call {number} of the {self.file.kind}, {record}"],
        )
        before = fingerprint_streams()
        eager = self._observe(case, case.make()[0])
        compiled = self._observe_compiled(record, case)
        self.right = _agree(eager, compiled)
        if number == self.until:
            self.ledger = self._recorders[_find_code(record.target)].ledger
            return True
        if self.right or self.until is not None or number in self.ignored:
            return False
        if eager.ends != before and eager.ends != compiled.ends:
            return False  # other random numbers
        if self.together:
            self.parting.append(number)
            return False
        if eager.failure is None and not _agree(eager, self._observe(case, case.make()[0])):
            return False  # it does not do the same twice in eager mode
        self.parted = number
        torch._dynamo.reset()
        fresh = self._observe_compiled(record, case, fresh=True)
        if _agree(eager, fresh):
            self.stale = self._judge(case, compiled)
        return True

    def _judge(self, case: Case, compiled: Observation) -> JudgedTrial | None:
        """The answer on the compiled call, judged beside runs that are made now, while the script stands at it."""
        experiments = Experiments(case, self.device)
        experiments.run_eager()
        judgement = experiments.judge(compiled)
        if not judgement.verdict.is_bug:
            return None
        trial = Trial(experiments.how, compiled, judgement, Ledger(), compiled.seconds)
        decision = Decision(judgement.verdict, judgement.confidence, judgement.detail)
        answer = JudgedTrial(experiments, trial, Spending(self.deadline), (), decision)
        answer.report()  # makes the runs that a report reads, once and for all
        return answer

    def _observe(self, case: Case, target: Callable[..., Any], recorder: Recorder | None = None) -> Observation:
        program = build(case, self.device)
        describe = None if recorder is None else CompileSession(case.settings, Compilation(), recorder).describe_failure
        return observe(case, program, target, describe_failure=describe)

    def _observe_compiled(self, record: CompiledCallable, case: Case, *, fresh: bool = False) -> Observation:
        key, code = (record.number, id(record.target)), _find_code(record.target)
        recorder = self._recorders.setdefault(code, Recorder(snapshots=False, capturing=False))
        how = Compilation(() if fresh else self.changes, record=False)
        used = () if fresh else tuple(cache for cache in self.caches if cache.is_on)
        with contextlib.ExitStack() as stack:
            stack.enter_context(open_user_settings())
            list_hit = stack.enter_context(keep_graphs(self._folder, used))
            stack.callback(lambda: self._note_hits(list_hit()))
            for change in how.changes:
                stack.enter_context(change.apply(recorder))
            settings = replace(record.settings, fullgraph=False) if fresh else record.settings
            session = CompileSession(settings, how, recorder)
            if fresh:
                return self._observe(case, session.compile(record.target), recorder)
            if key not in self._compiled:
                self._compiled[key] = session.compile(record.target)
            return self._observe(case, self._compiled[key], recorder)

    def _note_hits(self, hit: Sequence[GraphCache]) -> None:
        self.hit = tuple(dict.fromkeys((*self.hit, *hit)))


def _agree(eager: Observation, other: Observation) -> bool:
    """Return whether two runs of a call are alike in all that a report tells, layouts too; one that raises never is."""
    return find_difference(eager, other, (*FORMS, "integer", "alias")) is None and eager.failure is None


def _find_code(target: Callable[..., Any]) -> object:
    """What dynamo keeps the graphs of a callable with: two closures of one function share them."""
    called = getattr(type(target), "forward", None) if isinstance(target, torch.nn.Module) else target
    return getattr(called, "__code__", None) or id(target)


def answer_with_later_calls(first: TriageReport, looked: ScriptCalls) -> TriageReport:
    """The answer on a script: that on its first call, with what a look at the later ones gave."""
    if looked.report is not None:
        return looked.report
    if looked.looked < 2:
        said = "later calls of the script were not looked at, as the time was over: --call 2 judges the next"
        return first if looked.whole else replace(first, notes=(*first.notes, said))
    rest = "" if looked.whole and looked.parts is None else "; further calls were not looked at"
    if looked.parts is not None:
        rest = (
            f"; call {looked.parts} differs from eager mode, too, and is not judged: --call {looked.parts} does{rest}"
        )
    said = f"looked at {looked.looked} calls of the script, the first in full and the others beside eager mode{rest}"
    notes = list(first.notes)
    firsts = {callable_: number for number, callable_ in reversed(looked.firsts)}  # many may be of one line
    if others := [f"{callable_} by --call {number}" for callable_, number in reversed(firsts.items()) if number > 1]:
        notes = [note for note in notes if not note.startswith(ALSO_COMPILED) and not _is_reached(note, others)]
        said += f"; to judge another in full: {', '.join(others[:8])}"
    return replace(first, notes=(*notes, said))


def _is_reached(note: str, others: Sequence[str]) -> bool:
    """Return whether a note is on places that the first call had not reached, to all of which a later one has come."""
    places = note.removeprefix(NOT_REACHED).partition(";")[0].split(", ")
    return note.startswith(NOT_REACHED) and all(any(f"({place}" in other for other in others) for place in places)
