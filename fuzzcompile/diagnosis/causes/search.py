"""Search for the cause of a bug: the nearest program that the compiler treats rightly.

A change that only keeps a rewrite from matching says nothing about why it is wrong where it does match. Programs on
which the culprit still works, rightly, therefore come first; then those that its check refuses; then the rest.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.diagnosis.probe import SignatureLock, probe_case
from fuzzcompile.diagnosis.triage_report import TriageReport
from fuzzcompile.model.contract import CauseJson, OutputJson, ReportJson
from fuzzcompile.model.culprit_contract import CulpritJson, read_details
from fuzzcompile.model.errors import describe_error
from fuzzcompile.model.signatures import SHARING, drop_fingerprint, find_symptom, has_fingerprints, parse_fingerprint
from fuzzcompile.model.stages import DECOMPOSITION, GRAPH_STAGES
from fuzzcompile.model.thresholds import NEARER_TO_NEIGHBOUR
from fuzzcompile.model.verdicts import NO_CAUSE, Verdict
from fuzzcompile.programs.capture.case_loader import load
from fuzzcompile.programs.edits.changes import Change, generate_changes
from fuzzcompile.programs.ir.case_source import MOST_LITERALS, write_program, write_source
from fuzzcompile.programs.ir.case_text import program_key
from fuzzcompile.programs.ir.evaluation import evaluate
from fuzzcompile.programs.ir.program import Input, Program, Ref, Statement, use_plain_names
from fuzzcompile.programs.shrink.reducers import give_value
from fuzzcompile.programs.shrink.search import capture_graph_programs, write_out
from fuzzcompile.run import metrics
from fuzzcompile.run.case import Case
from fuzzcompile.run.pool.worker import say
from fuzzcompile.run.ranks import is_led
from fuzzcompile.run.tensors import is_inexact

# A window on a captured graph: the statements around a culprit's site as a program of their own.

# A graph of at most so many operators is looked at as a whole where no window of it shows the bug.
_SMALL = 30


def generate_windows(
    programs: Sequence[Program], lines: Collection[int], last: int | None, ordinal: int
) -> Iterator[Program]:
    """Parts of captured graphs that may show a bug, the likeliest first.

    The culprit worked on the user's ``lines``; its site is match ``ordinal`` (from 1) of line ``last``, if known.
    """
    parts = [_list_parts(program, lines, last, ordinal) for program in programs]
    likely = [window for found in parts for window in found[:2]]
    whole = [use_plain_names(program) for program in programs if program.size[0] <= _SMALL]
    rest = [window for found in parts for window in found[2:]]
    for program in (*likely, *whole, *rest):
        simple = _with_plain_inputs(program)
        yield simple
        if simple != program:
            yield program


def shrink_window(program: Program) -> Iterator[Program]:
    """The window without a statement at one of its ends, the last ones first."""
    outputs, shorter = program.output_refs(), list[Program]()
    for statement in reversed(program.statements):
        used = set(statement.refs())
        if [statement.name] == outputs and _is_plain(statement) and len(used) == 1:
            shorter.append(replace(program, outputs=Ref(used.pop())).without_dead_code())
    yield from (part for part in shorter if part.statements)
    values = evaluate(program).values
    given = {input_.name for input_ in program.inputs}
    for statement in program.statements:
        first = given.issuperset(statement.refs()) and statement.name not in outputs and _is_plain(statement)
        if first and isinstance(values.get(statement.name), torch.Tensor):
            kept = {each.name for each in program.statements} - {statement.name}
            part = _with_plain_inputs(_cut(program, kept, values))
            yield from [part] if part.statements else []


def _with_plain_inputs(program: Program) -> Program:
    """Random numbers in place of recorded ones; short lists of whole numbers are written out."""

    def simplify(input_: Input) -> Input:
        if input_.fill != "recorded" or input_.values is None:
            return input_
        if is_inexact(input_.dtype):
            return replace(input_, fill="randn", values=None)
        return replace(input_, fill="literal") if 0 < input_.values.numel() <= MOST_LITERALS else input_

    return program.map_inputs(simplify)


def _is_plain(statement: Statement) -> bool:
    return statement.form not in ("enter", "exit", "setitem") and not statement.writes


def _list_parts(program: Program, lines: Collection[int], last: int | None, ordinal: int) -> list[Program]:
    """The windows of one program: what ends in the match, in all matches of the lines, in each of the others."""
    ends = _find_ends(program, lines, last, ordinal)
    if not ends:
        return []
    values = evaluate(program).values
    chosen = [ends[:1], ends, *([end] for end in ends[1:])] if len(ends) > 1 else [ends]
    cut = [_cut(program, _find_reaching(program, lines, names), values, outputs=names) for names in chosen]
    return [use_plain_names(window) for window in cut if window.statements]


def _find_ends(program: Program, lines: Collection[int], last: int | None, ordinal: int) -> list[str]:
    """Names of the results that windows may end in: those of the culprit's line that no statement of a line uses."""
    at = [s for s in program.statements if s.line == last] or [s for s in program.statements if s.line in lines]
    inner = {name for statement in at for name in statement.refs()}
    found = [statement.name for statement in at if statement.name not in inner and _is_plain(statement)]
    first = found[ordinal - 1 : ordinal] or found[:1]
    return [*first, *(name for name in found if name not in first)]


def _find_reaching(program: Program, lines: Collection[int], ends: Collection[str]) -> set[str]:
    """The statements of the lines through which the results ``ends`` are reached."""
    wanted, reached = set(ends), set[str]()
    for statement in reversed(program.statements):
        if statement.name in ends or (statement.name in wanted and statement.line in lines):
            reached.add(statement.name)
            wanted.update(statement.refs())
    return reached


def _cut(program: Program, kept: Collection[str], values: Mapping[str, object], outputs: Sequence[str] = ()) -> Program:
    """These statements as a program whose further inputs are the recorded values of what they use."""
    results = tuple(map(Ref, outputs))
    tree = program.outputs if not results else results if len(results) > 1 else results[0]
    window = replace(program, outputs=tree, as_module=False)
    for statement in reversed(program.statements):
        value, block = values.get(statement.name), statement.form in ("enter", "exit")
        # What makes several tensors at once belongs to the window, and so do the contexts around it.
        if statement.name not in kept and not block and not isinstance(value, tuple | list):
            window = give_value(window, statement.name, value) or window
    place = {statement.name: number for number, statement in enumerate(program.statements)}
    grads = _find_requiring_grad(program)

    def mark(input_: Input) -> Input:
        marked = input_.name in grads and input_.dtype.is_floating_point
        return replace(input_, requires_grad=marked) if input_.name in place else input_

    window = replace(window, inputs=tuple(sorted(window.inputs, key=lambda given: place.get(given.name, -1))))
    return window.map_inputs(mark).without_dead_code()


def _find_requiring_grad(program: Program) -> set[str]:
    if not (program.settings.get("BACKWARD") or program.settings.get("GRAD") == "enabled"):
        return set()
    names = {input_.name for input_ in program.inputs if input_.requires_grad}
    for statement in program.statements:
        if names.intersection(statement.refs()):
            names.add(statement.name)
    return names


# Screens at most: for windows on the graph, for making the one that shows the bug smaller, and for programs one change
# away from it, or two.
_WINDOWS, _SMALLER, _NEIGHBOURS, _PAIRS = 6, 8, 14, 6
# Programs that are looked at after the first that is right, for one that says more.
_FURTHER = 6


@dataclass(frozen=True)
class ScreenResult:
    """What a program showed, compiled without code generation: the bug, or nothing wrong at all (``right``).

    The culprit ``fires`` on it or does not; the ``outputs`` are empty if the compiled program raised.
    """

    shows: bool
    right: bool
    fires: bool
    outputs: Sequence[torch.Tensor] = ()


# Compiles a program once, without generating code.
Screen = Callable[[Program], ScreenResult]


@dataclass
class _Budget:
    screen_program: Screen
    deadline: float | None

    def screen(self, programs: Iterable[Program], most: int) -> Iterator[tuple[Program, ScreenResult]]:
        for program in itertools.islice(programs, most):
            if self.deadline is not None and time.monotonic() >= self.deadline:
                return
            yield program, self.screen_program(program)


def find_cause(
    report: ReportJson,
    programs: Sequence[Program],
    screen: Screen,
    *,
    known: Collection[str] = (),
    deadline: float | None = None,
) -> CauseJson | None:
    """The cause of the bug that a report shows; None if no change that was tried mends it.

    ``programs`` are the case's captured graphs with recorded inputs. A program in which the culprit no longer fires is
    right whatever the bug is, and tells nothing. The causes with the fingerprints ``known`` are tried first. Nothing is
    compiled after ``deadline``, a value of ``time.monotonic()``.
    """
    culprit = report.get("culprit")
    if not report.get("is_bug") or culprit is None or not has_fingerprints(culprit.get("stage")):
        return None
    budget = _Budget(screen, deadline)
    candidates = budget.screen(generate_windows(programs, *_find_places(culprit)), _WINDOWS)
    shown = next(((program, seen) for program, seen in candidates if seen.shows), None)
    if shown is None:
        return None
    window, seen = shown if known else _shrink(*shown, budget)
    verdict = Verdict(report["verdict"])
    change = _find_nearest(window, budget, known, copies_first=_is_sharing(report, window))
    if change is None:
        return None
    neighbour = verdict.kind == "values" and _matches_neighbour(window, change.program, seen)
    cause: CauseJson = {
        "fingerprint": find_symptom(verdict, _list_outputs(report), read_details(culprit)) or change.fingerprint,
        "kind": change.kind,
        "before": change.before,
        "after": change.after,
        "still": "fires",
        "computes": "neighbour" if neighbour else None,
    }
    return cause if change.program.is_recorded else {**cause, "neighbour": write_source(change.program)}


def _shrink(best: Program, shown: ScreenResult, budget: _Budget) -> tuple[Program, ScreenResult]:
    """Remove the statements at both ends of the window that the bug does not need."""
    tried: list[Program] = []
    while True:
        fresh = (program for program in shrink_window(best) if program not in tried)
        for program, seen in budget.screen(fresh, _SMALLER - len(tried)):
            tried.append(program)
            if seen.shows:
                best, shown = program, seen
                break
        else:
            return best, shown


def _find_places(culprit: CulpritJson) -> tuple[set[int], int | None, int]:

    def parse_line(text: str) -> int | None:
        number = text.rpartition(":")[2]
        return int(number) if number.isdigit() else None

    named = [str(line["source"]) for line in read_details(culprit).get("matched") or ()]
    where, _, ordinal = (culprit.get("site") or "").partition(" #")
    lines = {number for text in (*named, where) if (number := parse_line(text)) is not None}
    return lines, parse_line(where), int(ordinal) if ordinal.isdigit() else 1


def _list_outputs(report: ReportJson) -> Sequence[OutputJson]:
    return (report.get("evidence") or {}).get("outputs") or ()


def _is_sharing(report: ReportJson, window: Program) -> bool:
    """Return whether memory that is shared otherwise than in eager mode is the cause, whatever avoids it."""
    decomposed = (report.get("culprit") or {}).get("stage") == DECOMPOSITION
    writes = any(statement.writes for statement in window.statements)
    return Verdict(report["verdict"]) is Verdict.ALIASING or (decomposed and writes)


def _find_nearest(window: Program, budget: _Budget, known: Collection[str], *, copies_first: bool) -> Change | None:
    """Find the most informative change among those that mend the bug while the culprit still fires.

    A known change is taken at once. Of two that say as much, the first is kept. Where no change does, a program may be
    wrong for two arguments at once: the first of two is the cause that are right only together.
    """
    changes = generate_changes(window, copies_first=copies_first)
    offered = sorted(changes, key=lambda change: change.fingerprint not in known)
    best, further = None, 0
    for change, (_, seen) in zip(offered, budget.screen((each.program for each in offered), _NEIGHBOURS), strict=False):
        further += best is not None
        if seen.right and seen.fires:
            # A copy separates two operators, which may affect a pass by more than the layout.
            weak = change.hides and change.kind not in ("argument", SHARING if copies_first else None)
            if not weak or change.fingerprint in known:
                return change
            best = best or change
        if further >= _FURTHER:
            break
    if best is not None:
        return best
    screened, pairs = itertools.tee(_pair_arguments(offered))
    looked = zip(budget.screen((both.program for both in screened), _PAIRS), pairs, strict=False)
    return next((both for (_, seen), both in looked if seen.right and seen.fires), None)


def _pair_arguments(changes: Sequence[Change]) -> Iterator[Change]:
    """Two changes of arguments at once, each pair of fingerprints once, under that of its first."""
    arguments, seen = [change for change in changes if change.kind == "argument"], set[frozenset[str]]()
    known = {change.fingerprint for change in arguments}
    for first in arguments if len(known) > 1 else ():
        for second in generate_changes(first.program):
            pair = frozenset((first.fingerprint, second.fingerprint))
            if second.fingerprint in known and len(pair) > 1 and pair not in seen:
                seen.add(pair)
                before, after = f"{first.before}, {second.before}", f"{first.after}, {second.after}"
                yield replace(first, program=second.program, before=before, after=after)


def _matches_neighbour(window: Program, neighbour: Program, shown: ScreenResult) -> bool:
    """Return whether the compiled window returned eager's result on the neighbour, and not that on the window.

    Dtypes differ in how far the two may be apart; what counts is that the neighbour is much nearer.
    """
    given = [result for result in shown.outputs if not result.is_complex()]

    def measure_distance(program: Program) -> float | None:
        values = evaluate(program).values
        results = pytree.tree_leaves([values.get(name) for name in program.output_refs()])  # some calls return several
        numbers = [r for r in results if isinstance(r, torch.Tensor) and not r.is_complex()]
        if not numbers or len(numbers) != len(given):
            return None
        if [r.shape for r in numbers] != [r.shape for r in given]:
            return math.inf
        return max(metrics.largest_distance(*pair) for pair in zip(numbers, given, strict=True))

    far, near = measure_distance(window), measure_distance(neighbour)
    if far is None or near is None:
        return False
    return math.isfinite(near) and near <= NEARER_TO_NEIGHBOUR * far and far > 0.0


# Look for the cause of a bug in the process that judged it.

# Seconds after which no further compile is begun.
_SECONDS = 20.0
_NONE = f"{NO_CAUSE}: the signature names no cause, and may hold several bugs"
# Compiling a candidate of one of these would take this process down.
_LOST = (Verdict.CRASH, Verdict.TIMEOUT)
_RIGHT = (Verdict.EQUAL, Verdict.ROUNDING)


def add_cause(
    report: TriageReport,
    case: Case,
    device: torch.device,
    *,
    vetoes: tuple[str, ...] = (),
    known: Collection[str] = (),
    deadline: float | None = None,
) -> TriageReport:
    """The report with its cause, where one is found, and with the key of its program: both make its signature.

    ``vetoes`` are rewrites that are refused throughout; ``known`` and ``deadline`` are as for :func:`find_cause`.
    """
    if not report.is_bug:
        return report
    report = replace(report, program=program_key(case.source, sizes=False))
    culprit = report.attribution.culprit
    if culprit is None or not culprit.is_named or not has_fingerprints(culprit.stage):
        return report
    if report.verdict in _LOST or report.target is not None or is_led():  # other processes have the case as it is
        return report
    say("looking for what must change for the case to pass")
    started = time.monotonic()
    asked = report.to_json()
    screener = LocalScreener(SignatureLock.of(asked), device, vetoes)
    ends = started + _SECONDS if deadline is None else min(started + _SECONDS, deadline)
    note = _NONE
    try:
        programs = capture_graph_programs(case, device) or capture_graph_programs(case, device, "aten")
        cause = find_cause(asked, programs, screener, known=known, deadline=ends)
    except MemoryError:
        raise
    except Exception as error:  # the search runs parts of any program, which may raise anything; the verdict stands
        cause, note = (None, f"the search for the cause failed, and the signature names none: {describe_error(error)}")
    seconds = report.cost.seconds + time.monotonic() - started
    cost = replace(report.cost, seconds=seconds, cause_screens=screener.count)
    settled = cause is not None or report.symptom is not None or bool(culprit.necessary)
    return replace(report, cause=cause, cost=cost, notes=report.notes if settled else (*report.notes, note))


def known_causes(report: TriageReport, known: Collection[tuple[str, str]]) -> frozenset[str]:
    """The fingerprints of the known bugs, each a signature and the kind of its verdict, that a hit may be.

    Only those of the report's kind count: a bug that was proved to raise is yet to be proved where it gives wrong
    values.
    """
    culprit = report.attribution.culprit
    if culprit is None or not report.attribution.known:
        return frozenset()
    kind = report.verdict.kind
    here = (signature for signature, of in known if of == kind and drop_fingerprint(signature) == culprit.signature)
    return frozenset(cause for signature in here if (cause := parse_fingerprint(signature)) is not None)


@dataclass
class LocalScreener:
    """Compiles candidates in this process, counts them, and compares what they show with ``target``."""

    target: SignatureLock
    device: torch.device
    vetoes: tuple[str, ...] = ()
    count: int = 0

    def __call__(self, program: Program) -> ScreenResult:
        """Compile a program once; one that cannot run at all shows nothing."""
        self.count += 1
        with write_out(write_program(program)) as path:
            try:
                probed = probe_case(
                    load(path, self.device), self.device, vetoes=self.vetoes, screen=True, target=self.target
                )
            except MemoryError:
                raise
            except Exception:  # a part of a program may fail anywhere, in any way
                return ScreenResult(False, False, False)
        # Of wrong values, those are mended that another bug of the same pass leaves with other strides or memory.
        mended = Verdict(self.target.verdict).kind == "values" and probed.is_bug and probed.right_values
        right = probed.verdict in _RIGHT or (mended and probed.verdict in (Verdict.METADATA, Verdict.ALIASING))
        return ScreenResult(self.target.matches(probed), right, self._fires(probed.outcomes), probed.outputs)

    def _fires(self, outcomes: Collection[tuple[str, str, str]]) -> bool:
        if self.target.stage not in GRAPH_STAGES:
            return True  # the operator is there as before
        return any((self.target.stage, family, "fired") in outcomes for family in self.target.families)
