"""Which reducers run on a captured program, in the order of what they save per compile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fuzzcompile.reduction.program import Program
from fuzzcompile.reduction.reducers import arguments, cutting, inputs, nodes, shapes
from fuzzcompile.reduction.reducers.settings import plain_settings
from fuzzcompile.reduction.search import OutOfBudget, Questions, Search

Reducer = Callable[[Search], None]
# Names are what progress shows. What makes every later candidate cheaper comes first.
CUTTING: tuple[tuple[str, Reducer], ...] = (
    ("settings", plain_settings),
    ("parameters", inputs.plain_parameters),
    ("outputs", cutting.drop_outputs),
    ("tail", cutting.cut_tail),
    ("head", cutting.cut_head),
    ("outputs", cutting.drop_outputs),
    ("modules", nodes.bypass_modules),
    ("first statements", nodes.give_first_statements),
    ("statements", nodes.bypass_statements),
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
# What a search that ran out of its budget may still spend on values that can be written down, and the last check.
_LAST_TESTS, _LAST_SECONDS = 16, 45.0


class LostBug(Exception):
    """The program that was to be made small does not show the bug itself."""


@dataclass(frozen=True)
class Reduced:
    """The smallest program found, confirmed by a full compile. ``finished`` unless a budget ended the search."""

    program: Program
    finished: bool
    screened: bool


def reduce_programs(
    candidates: Sequence[Program], questions: Questions, *, screens: bool, refuses: bool = False
) -> Reduced:
    """Reduce the first of the programs that shows the bug.

    Args:
        candidates: what was captured, the likeliest first.
        questions: how candidates are tried, and what that may cost.
        screens: whether the bug may show without code generation; it is tried.
        refuses: whether the bug is that compiled accepts what eager refuses.

    Raises:
        LostBug: none of the programs shows the bug.
    """
    search = _started(candidates, questions, screens=screens, refuses=refuses)
    kept = search.best
    try:
        for reducers in (CUTTING, POLISHING):
            _run(search, reducers)
            if search.screen and not search.holds(search.best, screen=False):
                # The interpreter does not show all of it: back to what was confirmed, and on with generated code.
                search.best, search.screen = kept, False
                _run(search, reducers)
            kept = search.best
    except (OutOfBudget, KeyboardInterrupt):
        return Reduced(_ended(search, kept), False, search.screen)
    return Reduced(search.best, True, search.screen)


def _run(search: Search, reducers: Sequence[tuple[str, Reducer]]) -> None:
    for name, reducer in reducers:
        search.questions.reducer = name
        reducer(search)


def _ended(search: Search, kept: Program) -> Program:
    """The best of a search that was cut short, with plain values and confirmed; ``kept`` if that is not to be had."""
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


def without_gradients(program: Program) -> Program:
    """The program with no input that asks for a gradient, as it runs where no gradients are recorded."""
    return replace(program, inputs=tuple(replace(one, requires_grad=False) for one in program.inputs))
