"""Search for the cause of a bug: the nearest program that the compiler treats rightly.

A change that only keeps a rewrite from matching says nothing about why it is wrong where it does match. Programs on
which the culprit still works, rightly, therefore come first; then those that its check refuses; then the rest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import torch

from fuzzcompile.causes.change import Change
from fuzzcompile.causes.changes import changes
from fuzzcompile.causes.window import smaller, windows
from fuzzcompile.contract import CauseJson, ReportJson
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.reduction.evaluating import evaluate
from fuzzcompile.reduction.program import Program
from fuzzcompile.reduction.writing import case_source
from fuzzcompile.signatures import has_fingerprints

# Screens at most: for windows on the graph, for making the one that shows the bug smaller, and for programs one change
# away from it.
_WINDOWS, _SMALLER, _NEIGHBOURS = 6, 8, 14
# Programs that are looked at after the first that is right, for one that says more.
_FURTHER = 6
# A compiled result is that of a neighbour if it is this much nearer to it than to its own.
_NEARER = 0.02


class Still(IntEnum):
    """A culprit's behaviour on a program, the most informative first."""

    FIRES = 0
    REFUSED = 1
    ABSENT = 2


@dataclass(frozen=True)
class Look:
    """The result of compiling a program without code generation.

    Attributes:
        shows: it has the bug that is looked into.
        right: nothing is wrong with it.
        still: what the culprit did.
        outputs: what the compiled program returned; empty if it raised.
    """

    shows: bool
    right: bool
    still: Still
    outputs: Sequence[torch.Tensor] = ()


class Looker(Protocol):
    """Compiles programs without code generation."""

    def look(self, program: Program) -> Look:
        """Compile a program once."""


@dataclass
class _Budget:
    looker: Looker
    deadline: float | None

    def looks(self, programs: Iterable[Program], most: int) -> Iterable[tuple[Program, Look]]:
        """The first programs, each with what it shows, as long as there is time."""
        for _, program in zip(range(most), programs, strict=False):
            if self.deadline is not None and time.monotonic() >= self.deadline:
                return
            yield program, self.looker.look(program)


def cause_of(
    report: ReportJson,
    programs: Sequence[Program],
    looker: Looker,
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
    computes = verdict.kind == "values" and _computes(window, change.program, shown)
    return _told(change, still, computes="neighbour" if computes else None)


def _window(
    report: ReportJson, programs: Sequence[Program], budget: _Budget, *, shrink: bool
) -> tuple[Program, Look] | None:
    """The smallest part of the captured graphs that shows the bug, and what it showed; None if none does."""
    candidates = budget.looks(windows(programs, *_places(report)), _WINDOWS)
    shown = next(((program, look) for program, look in candidates if look.shows), None)
    return _shrunk(*shown, budget) if shown is not None and shrink else shown


def _shrunk(best: Program, shown: Look, budget: _Budget) -> tuple[Program, Look]:
    """Remove the statements at both ends of the window that the bug does not need."""
    tried: list[Program] = []
    while len(tried) < _SMALLER:
        fresh = (program for program in smaller(best) if program not in tried)
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
    details: Mapping[str, object] = culprit.get("details") or {}
    matched = details.get("matched")
    named = (
        [str(line.get("source")) for line in matched if isinstance(line, Mapping)] if isinstance(matched, list) else []
    )
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
) -> tuple[Change | None, Still]:
    """Find the most informative change among those that mend the bug.

    A known change is taken at once if the culprit still matches, or if it is of the kind that ``settles`` the matter.
    """
    offered = sorted(changes(window), key=lambda change: change.fingerprint not in known)
    looks = budget.looks((change.program for change in offered), _NEIGHBOURS)
    best: tuple[Change | None, Still] = (None, Still.ABSENT)
    further = 0
    for change, (_, look) in zip(offered, looks, strict=False):
        further += best[0] is not None
        if look.right and _counts(change, look.still, verdict) and _says_more(change, look.still, best):
            best = change, look.still
            known_again = change.fingerprint in known and (look.still is not Still.ABSENT or change.kind == settles)
            if known_again or (look.still is Still.FIRES and not _is_weak(change)):
                break
        if further >= _FURTHER:
            break
    return best


def _says_more(change: Change, still: Still, best: tuple[Change | None, Still]) -> bool:
    """Return whether a change says more than the best so far; of two that say as much, the first is kept."""
    return best[0] is None or (still, _is_weak(change)) < (best[1], _is_weak(best[0]))


def _is_weak(change: Change) -> bool:
    """Return whether a copy separates two operators, which may affect a pass by more than the layout."""
    return change.hides and change.kind != "argument"


def _counts(change: Change, still: Still, verdict: Verdict) -> bool:
    """Return whether a change that mends the bug says something about it.

    An operator that is put into the middle of what a pattern matches always hides it; only of a wrong layout is the
    plain layout the nearest that is right all the same.
    """
    if not change.hides or still is not Still.ABSENT:
        return True
    return change.kind == "layout" and verdict is Verdict.METADATA


def _told(change: Change, still: Still, *, computes: str | None) -> CauseJson:
    cause: CauseJson = {
        "fingerprint": change.fingerprint,
        "kind": change.kind,
        "before": change.before,
        "after": change.after,
        "still": still.name.lower(),
        "computes": computes,
    }
    return cause if change.program.is_recorded else {**cause, "neighbour": case_source(change.program)}


def _computes(window: Program, neighbour: Program, shown: Look) -> bool:
    """Return whether the compiled window returned eager's result on the neighbour, and not that on the window.

    Dtypes differ in how far the two may be apart; what counts is that the neighbour is much nearer.
    """
    own, changed = _results(window), _results(neighbour)
    if not own or not len(own) == len(changed) == len(shown.outputs):
        return False
    far, near = (_distance(results, shown.outputs) for results in (own, changed))
    return math.isfinite(near) and near <= _NEARER * far and far > 0.0


def _results(program: Program) -> list[torch.Tensor]:
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
