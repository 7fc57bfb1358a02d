"""The reducers of a captured program, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fuzzcompile.reduction.program import Program
from fuzzcompile.reduction.reducers import arguments, cutting, inputs, nodes, shapes
from fuzzcompile.reduction.reducers.settings import plain_settings
from fuzzcompile.reduction.search import OutOfBudget, Questions, Search, bisected
from fuzzcompile.reduction.writing import written

Reducer = Callable[[Search], None]
# Names appear in progress lines. Reducers that make every later candidate cheaper come first.
CUTTING: tuple[tuple[str, Reducer], ...] = (
    ("settings", plain_settings),
    ("parameters", inputs.plain_parameters),
    ("outputs", cutting.drop_outputs),
    ("values", inputs.random_values),
    ("tail", cutting.cut_tail),
    ("head", cutting.cut_head),
    ("values", inputs.random_values),
    ("outputs", cutting.drop_outputs),
    ("modules", nodes.bypass_modules),
    ("first statements", nodes.give_first_statements),
    ("values", inputs.random_values),
    ("statements", nodes.bypass_statements),
    ("values", inputs.random_values),
)
POLISHING: tuple[tuple[str, Reducer], ...] = (
    ("contexts", nodes.drop_blocks),
    ("precision", arguments.single_precision),
    ("evaluation mode", arguments.evaluation_mode),
    ("arguments", arguments.drop_arguments),
    ("strides", inputs.plain_strides),
    ("values", inputs.plain_values),
    ("sizes", shapes.shrink_sizes),
    ("strides", inputs.plain_strides),
    ("constants", arguments.round_constants),
    ("equal inputs", inputs.merge_equal),
    ("values", inputs.plain_values),
    ("parameters", inputs.plain_parameters),
    ("settings", plain_settings),
)
# After the budget is spent, tests and seconds for values that fit in a script and for the last full compile.
_LAST_TESTS, _LAST_SECONDS = 16, 45.0
# Compiles of each candidate for a bug that comes and goes.
REPEATS = 4


class LostBug(Exception):
    """None of the captured programs shows the bug."""


@dataclass(frozen=True)
class Reduced:
    """The smallest program found, confirmed by a full compile unless the search was ``interrupted``.

    ``finished`` unless that or the budget ended the search. ``path`` holds the best programs in the order in which they
    were found. ``comes_and_goes`` is set if only some compiles show the bug: in how many, of how many.
    """

    program: Program
    finished: bool
    screened: bool
    path: tuple[Program, ...] = ()
    interrupted: bool = False
    comes_and_goes: tuple[int, int] | None = None


def reduce_programs(
    candidates: Sequence[Program], questions: Questions, *, screens: bool, refuses: bool = False
) -> Reduced:
    """Reduce the first of the programs that shows the bug.

    An interrupt ends the search; the result is then the smallest program so far that fits in a script, unconfirmed.

    Args:
        candidates: the captured programs, the likeliest first.
        questions: probes candidates within the budget.
        screens: whether the bug may show without code generation, which is then tried first.
        refuses: whether the bug is that compiled accepts what eager refuses.

    Raises:
        LostBug: none of the programs shows the bug.
    """
    search = _started(candidates, questions, screens=screens, refuses=refuses)
    shown: tuple[int, int] | None = None
    kept = search.best
    try:
        for reducers in (CUTTING, POLISHING):
            start = search.best
            steps = len(search.path)
            _run(search, reducers)
            if search.screen and not search.holds(search.best, screen=False):
                shown = _comes_and_goes(search)
                if shown is None:
                    # Generated code does not show it: back to the last confirmed program, on with full compiles.
                    _step_back(search, start, steps)
                    _run(search, reducers)
            kept = search.best
    except OutOfBudget:
        return Reduced(_ended(search, kept), False, search.screen, tuple(search.path), comes_and_goes=shown)
    except KeyboardInterrupt:
        plain = next((program for program in reversed(search.path) if not program.is_recorded), search.best)
        return Reduced(plain, False, search.screen, interrupted=True, comes_and_goes=shown)
    return Reduced(search.best, True, search.screen, tuple(search.path), comes_and_goes=shown)


def _run(search: Search, reducers: Sequence[tuple[str, Reducer]]) -> None:
    for name, reducer in reducers:
        search.questions.reducer = name
        reducer(search)


def _comes_and_goes(search: Search) -> tuple[int, int] | None:
    """After a full compile without the bug: in how many of all compiles the best program shows it; None if in none.

    If it shows in some, every later candidate is compiled up to ``REPEATS`` times.
    """
    text = written(search.best)
    shown = search.questions.times(text, REPEATS)
    if not shown:
        return None
    search.questions.repeats = REPEATS
    search.questions.tally.answers[text.digest] = True
    return shown, REPEATS + 1


def _step_back(search: Search, start: Program, steps: int) -> None:
    """Go back to the last program since ``start`` that a full compile confirms, and screen no longer."""
    search.screen = False
    taken = [start, *search.path[steps:]]
    if not search.holds(start):
        raise LostBug("the bug shows where the graph is interpreted, and not in generated code")
    good = bisected(0, len(taken), lambda step: search.holds(taken[step]))
    search.best = taken[good]
    del search.path[steps + good :]


def _ended(search: Search, kept: Program) -> Program:
    """The best program of a search that was cut short, with plain values and confirmed; ``kept`` if that fails."""
    questions = search.questions
    questions.budget = questions.budget.beyond(questions.tally.tests, _LAST_TESTS, _LAST_SECONDS)
    questions.reducer = "values"
    try:
        inputs.plain_values(search)
        if not search.screen or search.holds(search.best, screen=False):
            return search.best
        search.best, search.screen = kept, False
        inputs.plain_values(search)
    except OutOfBudget:
        return search.best if not search.screen else kept
    return search.best


def _started(candidates: Sequence[Program], questions: Questions, *, screens: bool, refuses: bool) -> Search:
    questions.reducer = "graph"
    for program in candidates:
        search = Search(program, questions, refuses=refuses)
        try:
            if screens and search.holds(program, screen=True):
                search.screen = True
                return search
            if search.holds(program, screen=False):
                return search
        except OutOfBudget as error:
            raise LostBug("there was no budget to show the bug in a captured graph") from error
    raise LostBug("no graph that dynamo captures shows the bug when it runs alone")
