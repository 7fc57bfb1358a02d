"""Error maps as pictures: one cell a square, its colour the size of the error on a logarithmic scale."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fuzzcompile.model.contract import ErrorMapJson, OutputJson
from fuzzcompile.report.proof import figure

_LEVELS = range(1, 8)
# The lowest level holds all errors that are this much smaller than the largest: rounding, beside what is wrong.
_DECADES = 3.0


@dataclass(frozen=True)
class Picture:
    """The errors of one side."""

    side: str
    svg: Markup
    largest: str


@dataclass(frozen=True)
class HeatMap:
    """Eager and compiled side by side, on one scale.

    ``legend`` says of each level which errors it holds, from the lowest to the highest.
    """

    output: str
    pictures: Sequence[Picture]
    legend: Sequence[str]
    has_exact: bool
    has_non_finite: bool
    caption: str


def heat_map(output: OutputJson) -> HeatMap | None:
    """The heat map of an output; None where the report has none, or both sides are exact."""
    drawn = output.get("error_map")
    if drawn is None:
        return None
    cells = [error for side in ("eager", "compiled") for row in drawn[side] for error in row]
    positive = [error for error in cells if error]
    if not positive and None not in cells:
        return None
    scale = _Scale(max(positive, default=1.0))
    marked = _cell_of(drawn, output.get("where"))
    pictures = [_picture(side, drawn[side], scale, marked) for side in ("eager", "compiled")]
    starts = [figure(scale.start(level)) for level in _LEVELS] if positive else []
    legend = [*(f"below {start}" for start in starts[:1]), *(f"from {start}" for start in starts)]
    return HeatMap(str(output.get("name")), pictures, legend, 0 in cells, None in cells, caption(drawn))


def caption(drawn: ErrorMapJson) -> str:
    """What rows, columns and cells are, and how much was gathered into one cell."""
    shape, split = drawn["shape"], drawn["row_dims"]
    rows, columns = drawn["rows"][-1], drawn["columns"][-1]
    cell = math.ceil(rows / (len(drawn["rows"]) - 1)), math.ceil(columns / (len(drawn["columns"]) - 1))
    each = (
        "one cell is one element"
        if cell == (1, 1)
        else f"one cell is the largest error of up to {cell[0]} × {cell[1]} elements"
    )
    if rows == 1:
        return f"Shape {tuple(shape)}: its {columns} elements from left to right; {each}."
    down = "dimension 0" if split == 1 else f"dimensions 0 to {split - 1}, one behind the other"
    return f"Shape {tuple(shape)}: down, {down} ({rows}); across, dimension {split} ({columns}); {each}."


@dataclass(frozen=True)
class _Scale:
    """Levels of equal ratio below the largest error."""

    largest: float

    def level(self, error: float) -> int:
        return max((level for level in _LEVELS if error >= self.start(level)), default=0)

    def start(self, level: int) -> float:
        """The smallest error of a level above the lowest."""
        return float(self.largest * 10 ** (-_DECADES * (len(_LEVELS) + 1 - level) / len(_LEVELS)))


def _cell_of(drawn: ErrorMapJson, where: Sequence[int] | None) -> tuple[int, int] | None:
    """The cell (row, column) that holds the element of that index."""
    shape, split = drawn["shape"], drawn["row_dims"]
    if where is None or len(where) != len(shape):
        return None
    row = 0
    for index, size in zip(where[:split], shape[:split], strict=True):
        row = row * size + index
    return _range_of(row, drawn["rows"]), _range_of(where[split], drawn["columns"])


def _range_of(index: int, edges: Sequence[int]) -> int:
    return max(place for place, start in enumerate(edges[:-1]) if start <= index)


def _picture(
    side: str, errors: Sequence[Sequence[float | None]], scale: _Scale, marked: tuple[int, int] | None
) -> Picture:
    """The cells of one side, one path each colour: exact ones stay empty."""
    height, width = len(errors), len(errors[0])
    paths = defaultdict[str, list[str]](list)
    for y, row in enumerate(errors):
        for kind, x, length in _runs(row, scale):
            paths[kind].append(f"M{x} {y}h{length}v1h-{length}z")
    drawn = [Markup('<path class="{}" d="{}"/>').format(kind, "".join(parts)) for kind, parts in sorted(paths.items())]
    if marked is not None:
        square = Markup('<rect class="{2}" x="{1}" y="{0}" width="1" height="1"/>')
        drawn += [square.format(*marked, name) for name in ("halo", "worst")]  # seen on cells of any colour
    finite = [error for row in errors for error in row if error is not None]
    missing = any(error is None for row in errors for error in row)
    largest = "not finite" if missing else f"at most {figure(max(finite, default=0.0))}"
    svg = Markup(
        '<svg class="map" viewBox="0 0 {} {}" style="aspect-ratio:{}/{}" preserveAspectRatio="none" role="img" '
        'aria-label="Errors of {}: {}.">{}</svg>'
    ).format(width, height, *_form(width, height), side, largest, Markup("").join(drawn))
    return Picture(side, svg, largest)


def _form(width: int, height: int) -> tuple[int, int]:
    """The form of the picture: that of the grid, but no narrower or flatter than one to eight."""
    return max(width, math.ceil(height / 8)), max(height, math.ceil(width / 8))


def _runs(row: Sequence[float | None], scale: _Scale) -> Iterator[tuple[str, int, int]]:
    """Neighbouring cells of one colour: its class, where they begin, and how many they are."""
    start = 0
    kinds = ["" if error == 0 else "bad" if error is None else f"h{scale.level(error)}" for error in row]
    for place in range(1, len(kinds) + 1):
        if place == len(kinds) or kinds[place] != kinds[start]:
            if kinds[start]:
                yield kinds[start], start, place - start
            start = place
