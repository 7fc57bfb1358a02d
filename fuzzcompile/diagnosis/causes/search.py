"""Search for the cause of a bug: the nearest program that the compiler treats rightly.

A change that only keeps a rewrite from matching says nothing about why it is wrong where it does match. Programs on
which the culprit still works, rightly, therefore come first; then those that its check refuses; then the rest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Protocol

import torch

from fuzzcompile.diagnosis.probe import SignatureLock, probe_case
from fuzzcompile.diagnosis.triage_report import TriageReport
from fuzzcompile.model.contract import CauseJson, ReportJson
from fuzzcompile.model.culprit_contract import read_details
from fuzzcompile.model.signatures import drop_fingerprint, has_fingerprints, parse_fingerprint
from fuzzcompile.model.stages import GRAPH_STAGES
from fuzzcompile.model.thresholds import NEARER_TO_NEIGHBOUR
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.programs.capture.case_loader import load
from fuzzcompile.programs.edits.changes import Change, generate_changes
from fuzzcompile.programs.ir.case_source import MOST_LITERALS, write_program, write_source
from fuzzcompile.programs.ir.case_text import program_key
from fuzzcompile.programs.ir.evaluation import evaluate
from fuzzcompile.programs.ir.program import Input, Program, Ref, Statement, use_plain_names
from fuzzcompile.programs.shrink.reducers import give_value
from fuzzcompile.programs.shrink.search import capture_graph_programs, write_out
from fuzzcompile.run.case import Case
from fuzzcompile.run.pool.worker import say

# A window on a captured graph: the statements around a culprit's site as a program of their own.

# A graph of at most so many operators is looked at as a whole where no window of it shows the bug.
_SMALL = 30


def generate_windows(
    programs: Sequence[Program], lines: Collection[int], last: int | None, ordinal: int
) -> Iterator[Program]:
    """Parts of the programs that may show a bug, the likeliest first.

    Args:
        programs: captured graphs with recorded inputs.
        lines: the user's lines that the culprit worked on.
        last: the line of its site; None if that is not known.
        ordinal: which of the matches of that line it is, counted from 1.
    """
    parts = [_parts(program, lines, last, ordinal) for program in programs]
    likely = [window for found in parts for window in found[:2]]
    whole = [use_plain_names(program) for program in programs if program.size[0] <= _SMALL]
    rest = [window for found in parts for window in found[2:]]
    for program in (*likely, *whole, *rest):
        simple = with_plain_inputs(program)
        yield simple
        if simple != program:
            yield program


def shrink_window(program: Program) -> Iterator[Program]:
    """The window without a statement at one of its ends, the last ones first."""
    return (part for part in _shorter(program) if part.statements)


def _shorter(program: Program) -> Iterator[Program]:
    outputs = program.output_refs()
    for statement in reversed(program.statements):
        used = statement.refs()
        if statement.name in outputs and len(outputs) == 1 and _is_plain(statement) and len(set(used)) == 1:
            yield replace(program, outputs=Ref(used[0])).without_dead_code()
    values = evaluate(program).values
    given = {input_.name for input_ in program.inputs}
    for statement in program.statements:
        value = values.get(statement.name)
        first = given.issuperset(statement.refs()) and statement.name not in outputs
        if first and _is_plain(statement) and isinstance(value, torch.Tensor):
            yield with_plain_inputs(_cut(program, [s for s in program.statements if s is not statement], values))


def with_plain_inputs(program: Program) -> Program:
    """The program with random numbers in place of recorded ones; short lists of whole numbers are written out."""
    return program.map_inputs(_plain_input)


def _plain_input(input_: Input) -> Input:
    if input_.fill != "recorded" or input_.values is None:
        return input_
    if input_.dtype.is_floating_point or input_.dtype.is_complex:
        return replace(input_, fill="randn", values=None)
    return replace(input_, fill="literal") if 0 < input_.values.numel() <= MOST_LITERALS else input_


def _is_plain(statement: Statement) -> bool:
    return statement.form not in ("enter", "exit", "setitem") and not statement.writes


def _parts(program: Program, lines: Collection[int], last: int | None, ordinal: int) -> list[Program]:
    """The windows of one program: what ends in the match, in all matches of the lines, in each of the others."""
    ends = _ends(program, lines, last, ordinal)
    if not ends:
        return []
    values = evaluate(program).values
    chosen = [ends[:1], ends, *([end] for end in ends[1:])] if len(ends) > 1 else [ends]
    cut = [_cut(program, _find_reaching(program, lines, names), values, outputs=names) for names in chosen]
    return [use_plain_names(window) for window in cut if window.statements]


def _ends(program: Program, lines: Collection[int], last: int | None, ordinal: int) -> list[str]:
    """Names of the results that windows may end in: those of the culprit's line that no statement of a line uses."""
    at = [s for s in program.statements if s.line == last] or [s for s in program.statements if s.line in lines]
    inner = {name for statement in at for name in statement.refs()}
    found = [statement.name for statement in at if statement.name not in inner and _is_plain(statement)]
    first = found[ordinal - 1 : ordinal] or found[:1]
    return [*first, *(name for name in found if name not in first)]


def _find_reaching(program: Program, lines: Collection[int], ends: Collection[str]) -> list[Statement]:
    """The statements of the lines through which the results ``ends`` are reached, and contexts around them."""
    made = {statement.name: statement for statement in program.statements}
    wanted, waiting = set[str](), [*ends]
    while waiting:
        statement = made.get(waiting.pop())
        if (
            statement is not None
            and statement.name not in wanted
            and (statement.line in lines or statement.name in ends)
        ):
            wanted.add(statement.name)
            waiting.extend(statement.refs())
    return [s for s in program.statements if s.name in wanted or s.form in ("enter", "exit")]


def _cut(
    program: Program, statements: Sequence[Statement], values: Mapping[str, object], outputs: Sequence[str] = ()
) -> Program:
    """The statements as a program, whose further inputs are the recorded values of what they use."""
    kept, grads = {statement.name for statement in statements}, _find_requiring_grad(program)
    results = tuple(Ref(name) for name in outputs)
    tree = program.outputs if not results else results if len(results) > 1 else results[0]
    window = replace(program, outputs=tree, as_module=False)
    for name in (statement.name for statement in program.statements if statement.name not in kept):
        value = values.get(name)
        if not isinstance(value, tuple | list):  # several tensors at once: what makes them belongs to the window
            window = give_value(window, name, value) or window
    inputs = {input_.name for input_ in program.inputs}

    def mark(input_: Input) -> Input:
        wanted = input_.name in grads and input_.dtype.is_floating_point
        return input_ if input_.name in inputs else replace(input_, requires_grad=wanted)

    return window.map_inputs(mark).without_dead_code()


def _find_requiring_grad(program: Program) -> set[str]:
    """Names of the values that gradients flow through."""
    if not (program.settings.get("BACKWARD") or program.settings.get("GRAD") == "enabled"):
        return set()
    names = {input_.name for input_ in program.inputs if input_.requires_grad}
    for statement in program.statements:
        if names.intersection(statement.refs()):
            names.add(statement.name)
    return names


# Screens at most: for windows on the graph, for making the one that shows the bug smaller, and for programs one change
# away from it.
_WINDOWS, _SMALLER, _NEIGHBOURS = 6, 8, 14
# Programs that are looked at after the first that is right, for one that says more.
_FURTHER = 6


class CulpritActivity(IntEnum):
    """A culprit's behaviour on a program, the most informative first."""

    FIRES = 0
    REFUSED = 1
    ABSENT = 2


@dataclass(frozen=True)
class ScreenResult:
    """The result of compiling a program without code generation.

    Attributes:
        shows: it has the bug that is looked into.
        right: nothing is wrong with it.
        still: what the culprit did.
        outputs: what the compiled program returned; empty if it raised.
    """

    shows: bool
    right: bool
    still: CulpritActivity
    outputs: Sequence[torch.Tensor] = ()


class Screener(Protocol):
    """Compiles programs without code generation."""

    def screen(self, program: Program) -> ScreenResult:
        """Compile a program once."""


@dataclass
class _Budget:
    looker: Screener
    deadline: float | None

    def looks(self, programs: Iterable[Program], most: int) -> Iterable[tuple[Program, ScreenResult]]:
        """The first programs, each with what it shows, as long as there is time."""
        for _, program in zip(range(most), programs, strict=False):
            if self.deadline is not None and time.monotonic() >= self.deadline:
                return
            yield program, self.looker.screen(program)


def find_cause(
    report: ReportJson,
    programs: Sequence[Program],
    looker: Screener,
    *,
    known: Collection[str] = (),
    deadline: float | None = None,
) -> CauseJson | None:
    """The cause of the bug that a report shows; None if no change that was tried mends it.

    Args:
        report: names the culprit and its site.
        programs: the case's captured graphs, with recorded inputs.
        looker: compiles candidates.
        known: fingerprints of causes to try first; one under which the culprit still matches is taken.
        deadline: value of ``time.monotonic()`` after which nothing more is compiled.
    """
    culprit = report.get("culprit")
    if not report.get("is_bug") or culprit is None or not has_fingerprints(culprit.get("stage")):
        return None
    budget = _Budget(looker, deadline)
    shows = _window(report, programs, budget, shrink=not known)
    if shows is None:
        return None
    window, shown = shows
    verdict = Verdict(report["verdict"])
    plain = verdict is Verdict.METADATA and _strides_alone(report)
    change, still = _nearest(window, budget, known, verdict, settles="layout" if plain else None)
    if change is None:
        return None
    computes = verdict.kind == "values" and _matches_neighbour(window, change.program, shown)
    return _describe_cause(change, still, computes="neighbour" if computes else None)


def _window(
    report: ReportJson, programs: Sequence[Program], budget: _Budget, *, shrink: bool
) -> tuple[Program, ScreenResult] | None:
    """The smallest part of the captured graphs that shows the bug, and what it showed; None if none does."""
    candidates = budget.looks(generate_windows(programs, *_places(report)), _WINDOWS)
    shown = next(((program, look) for program, look in candidates if look.shows), None)
    return _shrink_window(*shown, budget) if shown is not None and shrink else shown


def _shrink_window(best: Program, shown: ScreenResult, budget: _Budget) -> tuple[Program, ScreenResult]:
    """Remove the statements at both ends of the window that the bug does not need."""
    tried: list[Program] = []
    while len(tried) < _SMALLER:
        fresh = (program for program in shrink_window(best) if program not in tried)
        for program, look in budget.looks(fresh, _SMALLER - len(tried)):
            tried.append(program)
            if look.shows:
                best, shown = program, look
                break
        else:
            break
    return best, shown


def _places(report: ReportJson) -> tuple[set[int], int | None, int]:
    """The lines that the culprit worked on, that of its site, and the number of its match there."""
    culprit = report.get("culprit") or {}
    named = [str(line["source"]) for line in read_details(culprit).get("matched") or ()]
    where, _, ordinal = (culprit.get("site") or "").partition(" #")
    lines = {number for text in (*named, where) if (number := _line(text)) is not None}
    return lines, _line(where), int(ordinal) if ordinal.isdigit() else 1


def _line(text: str) -> int | None:
    number = text.rpartition(":")[2]
    return int(number) if number.isdigit() else None


def _strides_alone(report: ReportJson) -> bool:
    """Return whether only strides are wrong: a search on a known wrong layout finds nothing but the plain layout."""
    outputs = (report.get("evidence") or {}).get("outputs") or ()
    wrong = {output.get("finding") for output in outputs} - {None, "same", "close", "wild"}
    return wrong == {"stride"}


def _nearest(
    window: Program, budget: _Budget, known: Collection[str], verdict: Verdict, *, settles: str | None = None
) -> tuple[Change | None, CulpritActivity]:
    """Find the most informative change among those that mend the bug.

    A known change is taken at once if the culprit still matches, or if it is of the kind that ``settles`` the matter.
    """
    offered = sorted(generate_changes(window), key=lambda change: change.fingerprint not in known)
    looks = budget.looks((change.program for change in offered), _NEIGHBOURS)
    best: tuple[Change | None, CulpritActivity] = (None, CulpritActivity.ABSENT)
    further = 0
    for change, (_, look) in zip(offered, looks, strict=False):
        further += best[0] is not None
        if look.right and _is_informative(change, look.still, verdict) and _says_more(change, look.still, best):
            best = change, look.still
            known_again = change.fingerprint in known and (
                look.still is not CulpritActivity.ABSENT or change.kind == settles
            )
            if known_again or (look.still is CulpritActivity.FIRES and not _is_weak(change)):
                break
        if further >= _FURTHER:
            break
    return best


def _says_more(change: Change, still: CulpritActivity, best: tuple[Change | None, CulpritActivity]) -> bool:
    """Return whether a change says more than the best so far; of two that say as much, the first is kept."""
    return best[0] is None or (still, _is_weak(change)) < (best[1], _is_weak(best[0]))


def _is_weak(change: Change) -> bool:
    """Return whether a copy separates two operators, which may affect a pass by more than the layout."""
    return change.hides and change.kind != "argument"


def _is_informative(change: Change, still: CulpritActivity, verdict: Verdict) -> bool:
    """Return whether a change that mends the bug says something about it.

    An operator that is put into the middle of what a pattern matches always hides it; only of a wrong layout is the
    plain layout the nearest that is right all the same.
    """
    if not change.hides or still is not CulpritActivity.ABSENT:
        return True
    return change.kind == "layout" and verdict is Verdict.METADATA


def _describe_cause(change: Change, still: CulpritActivity, *, computes: str | None) -> CauseJson:
    cause: CauseJson = {
        "fingerprint": change.fingerprint,
        "kind": change.kind,
        "before": change.before,
        "after": change.after,
        "still": still.name.lower(),
        "computes": computes,
    }
    return cause if change.program.is_recorded else {**cause, "neighbour": write_source(change.program)}


def _matches_neighbour(window: Program, neighbour: Program, shown: ScreenResult) -> bool:
    """Return whether the compiled window returned eager's result on the neighbour, and not that on the window.

    Dtypes differ in how far the two may be apart; what counts is that the neighbour is much nearer.
    """
    own, changed = _run_in_eager(window), _run_in_eager(neighbour)
    if not own or not len(own) == len(changed) == len(shown.outputs):
        return False
    far, near = (_distance(results, shown.outputs) for results in (own, changed))
    return math.isfinite(near) and near <= NEARER_TO_NEIGHBOUR * far and far > 0.0


def _run_in_eager(program: Program) -> list[torch.Tensor]:
    """Return the tensors that a program returns in eager."""
    values = evaluate(program).values
    results = (values.get(name) for name in program.output_refs())
    return [value.double().cpu() for value in results if isinstance(value, torch.Tensor) and not value.is_complex()]


def _distance(expected: Sequence[torch.Tensor], actual: Sequence[torch.Tensor]) -> float:
    """The largest difference of two lists of tensors; infinite where their shapes differ."""
    if any(left.shape != right.shape for left, right in zip(expected, actual, strict=True)):
        return math.inf
    pairs = zip(expected, actual, strict=True)
    apart = [(left - right.detach().cpu().double()).abs().max().item() for left, right in pairs if left.numel()]
    return math.inf if any(map(math.isnan, apart)) else max(apart, default=0.0)


# Look for the cause of a bug in the process that judged it.

# Seconds after which no further compile is begun.
_SECONDS = 20.0
_NONE = "no program that is right was found one change away: the signature names no cause, and may hold several bugs"
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

    Args:
        report: the report on the case.
        case: the case.
        device: where it ran.
        vetoes: rewrites that are refused throughout.
        known: fingerprints of causes to try first.
        deadline: value of ``time.monotonic()`` after which no compile is begun.
    """
    if not report.is_bug:
        return report
    report = replace(report, program=program_key(case.source))
    culprit = report.attribution.culprit
    if culprit is None or not culprit.is_named or not has_fingerprints(culprit.stage):
        return report
    if report.verdict in _LOST or report.target is not None:
        return report
    say("looking for what must change for the case to pass")
    started = time.monotonic()
    asked = report.to_json()
    screens = LocalScreener(SignatureLock.of(asked), device, vetoes)
    ends = started + _SECONDS if deadline is None else min(started + _SECONDS, deadline)
    note = _NONE
    try:
        programs = capture_graph_programs(case, device) or capture_graph_programs(case, device, "aten")
        cause = find_cause(asked, programs, screens, known=known, deadline=ends)
    except MemoryError:
        raise
    except Exception as error:  # the search runs parts of any program, which may raise anything; the verdict stands
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        cause, note = None, f"the search for the cause failed, and the signature names none: {said}"
    seconds = report.cost.seconds + time.monotonic() - started
    cost = replace(report.cost, seconds=seconds, cause_screens=screens.count)
    return replace(report, cause=cause, cost=cost, notes=report.notes if cause else (*report.notes, note))


def known_causes(report: TriageReport, known: Collection[tuple[str, str]]) -> frozenset[str]:
    """The fingerprints of known bugs that a hit may be.

    Args:
        report: the hit.
        known: signatures of known bugs, each with the kind of its verdict. Only those of the report's kind count: a bug
            that was proved to raise is yet to be proved where it gives wrong values.
    """
    culprit = report.attribution.culprit
    if culprit is None or not report.attribution.known:
        return frozenset()
    kind = report.verdict.kind
    here = (signature for signature, of in known if of == kind and drop_fingerprint(signature) == culprit.signature)
    return frozenset(cause for signature in here if (cause := parse_fingerprint(signature)) is not None)


@dataclass
class LocalScreener:
    """Compiles candidates in this process, without code generation, and compares what they show with ``target``.

    ``count`` says how many.
    """

    target: SignatureLock
    device: torch.device
    vetoes: tuple[str, ...] = ()
    count: int = 0

    def screen(self, program: Program) -> ScreenResult:
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
                return ScreenResult(False, False, CulpritActivity.ABSENT)
        # Of wrong values, those are mended that another bug of the same pass leaves with other strides or memory.
        mended = Verdict(self.target.verdict).kind == "values" and probed.is_bug and probed.right_values
        right = probed.verdict in _RIGHT or (mended and probed.verdict in (Verdict.METADATA, Verdict.ALIASING))
        return ScreenResult(self.target.matches(probed), right, self._still(probed.outcomes), probed.outputs)

    def _still(self, outcomes: Collection[tuple[str, str, str]]) -> CulpritActivity:
        if self.target.stage not in GRAPH_STAGES:
            return CulpritActivity.FIRES  # the operator is there as before
        own = {how for stage, family, how in outcomes if stage == self.target.stage and family in self.target.families}
        if "fired" in own:
            return CulpritActivity.FIRES
        return CulpritActivity.REFUSED if "refused" in own else CulpritActivity.ABSENT
