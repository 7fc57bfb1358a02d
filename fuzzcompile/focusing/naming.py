"""Which of the names that a ledger gives a user means."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Callable, Iterator, Sequence

from fuzzcompile.errors import UsageError
from fuzzcompile.stage_names import STAGES

_NEAREST = 4
_WORD = re.compile(r"^(aten|prims|torch)\.")
Reading = Callable[[str], str]
"""From the name of a rule to what several share: the name without its variant, or its family."""


def meant(
    what: str, rules: Sequence[tuple[str, str]], operators: Sequence[str], readings: Sequence[Reading]
) -> set[str]:
    """The names of rules or operators that ``what`` means.

    A name is taken as it stands; else as what several rules share (a name without its variant, a family) or a glob;
    else as an operator, with or without namespace and overload; else as the ending of one name.

    Args:
        what: as typed; ``stage:`` before it restricts it to one stage.
        rules: stage and name of each rule and pass.
        operators: names of overloads (``aten.mm.default``).
        readings: how names of rules are shortened, the closest first.

    Raises:
        UsageError: it means nothing, or several things.
    """
    stage, colon, rest = what.partition(":")
    staged = bool(colon) and stage in STAGES
    wanted = rest if staged else what
    names = {name for own, name in rules if not staged or own == stage}
    for matching in _matchings(wanted, names, operators, readings):
        if matching:
            return matching
    ends = {name for name in (*names, *operators) if _ends(name, wanted)}
    ends = {name for name in ends if name.removesuffix(wanted)[-1] in ".:"} or ends
    groups = {readings[0](name) for name in ends}
    if len(groups) == 1:
        return ends
    near = sorted(ends)[:_NEAREST] or _near(wanted, {*names, *(readings[0](name) for name in names), *operators})
    kind = "may mean several" if ends else "names no rule, pass or operator of the installed torch"
    nearest = f": {'; '.join(near)}" if ends else f"; the nearest are {', '.join(near)}" if near else ""
    raise UsageError(f"--focus {what} {kind}{nearest}. `fuzzcompile passes` lists them.")


def _matchings(
    wanted: str, names: set[str], operators: Sequence[str], readings: Sequence[Reading]
) -> Iterator[set[str]]:
    yield {name for name in (*names, *operators) if name == wanted}
    for reading in readings:
        yield {name for name in names if wanted.strip("_") == reading(name).strip("_")}
    if any(letter in wanted for letter in "*?["):
        yield {name for name in (*names, *operators) if fnmatch.fnmatchcase(name, wanted)}
    bare = _WORD.sub("", wanted)
    overloads = {name for name in operators if bare and _WORD.sub("", name).startswith(f"{bare}.")}
    yield {name for name in overloads if not name.endswith("out")} or overloads  # graphs are functional


def _ends(name: str, wanted: str) -> bool:
    """Whether a name ends with ``wanted``, which begins a word of it."""
    start = len(name) - len(wanted)
    return bool(wanted) and name.endswith(wanted) and start > 0 and name[start - 1] in "_.:"


def _near(wanted: str, names: set[str]) -> list[str]:
    by_case = {name.lower(): name for name in sorted(names)}
    close = difflib.get_close_matches(wanted.lower(), sorted(by_case), _NEAREST, 0.5)
    return [by_case[name] for name in close]
