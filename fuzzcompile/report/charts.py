"""Charts as inline SVG for the pages of ``profile`` and ``watch``: panels above one axis (layers, or steps).

They stand in a light and in a dark page, and the same numbers give the same bytes.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Colours that every reader can tell apart (M. Okabe and K. Ito, "Color Universal Design", 2008), without the yellow,
# which is hard to see on white.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
_MARKERS = ("o", "s", "^", "D", "v", "P")
# Stand-ins that become the page's own colours.
_INK, _SOFT, _BAD = "#010203", "#040506", "#070809"
_THEMED = {_INK: "currentColor", _SOFT: "var(--soft, #6e7781)", _BAD: "var(--bad, #d1242f)"}
_NAMES = 26  # labels below the axis, at most
_CHARACTERS = 28  # of a label
_WIDTH, _HEIGHT, _LOWER = 9.0, 3.1, 1.5  # inches: the chart, its first panel, each further one
_MARKED = 60  # points of a series, above which it is drawn without markers
_SETTINGS = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # measured; the page's own font draws the text
    "font.size": 9,
    "svg.fonttype": "none",
    "text.parse_math": False,  # a dollar sign is one
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
    "axes.edgecolor": _SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": _SOFT,
    "grid.alpha": 0.25,
    "legend.frameon": False,
}


class Series(NamedTuple):
    """Values along the axis; None and NaN are gaps, marked below the curve."""

    name: str
    values: Sequence[float | None]
    is_limit: bool = False  # drawn as a broken line without markers: what the other series are held against


class Panel(NamedTuple):
    """Series that share a vertical axis; zeros lie on the floor of a logarithmic one, which is labelled 0."""

    label: str  # what the axis measures, with its unit
    series: Sequence[Series]
    log: bool = True

    @property
    def positive(self) -> list[float]:
        """The values that a logarithmic axis can show."""
        values = [value for series in self.series for value in series.values]
        return [value for value in values if value is not None and 0 < value < math.inf]


Along: TypeAlias = Sequence[str] | Sequence[int]


def chart(
    along: Along, panels: Sequence[Panel], *, axis: str, about: str, highlight: tuple[int, str] | None = None
) -> Markup:
    """Draw panels above one axis, as an ``svg`` element without references to anything outside it.

    What the values belong to are names (of layers), drawn at equal distances, or numbers (of steps); each series has
    one value for each. ``about`` is for readers who do not see the chart, and ``highlight`` an index into ``along`` and
    what to write there, such as ``(7, "jump")``. A paragraph says why there is no chart.
    """
    if not along:
        return Markup("<p>Nothing was compared.</p>")
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        return Markup("<p>{}</p>").format("Plots need matplotlib: pip install 'fuzzcompile[profile]'.")
    with matplotlib.rc_context({**_SETTINGS, "svg.hashsalt": about}):
        heights = [_HEIGHT, *[_LOWER] * (len(panels) - 1)]
        # The labels of the axis take height too.
        longest = max((len(name) for name in shortened([str(item) for item in along])[0]), default=0)
        figure = Figure(figsize=(_WIDTH, sum(heights) + 0.6 + 0.065 * longest), layout="constrained")
        rows = figure.subplots(len(panels), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        places = [item if isinstance(item, int) else index for index, item in enumerate(along)]
        for axes, panel in zip(rows, panels, strict=True):
            _draw(axes, panel, places)
            if highlight is not None:
                _highlight(axes, places, highlight, named=axes is rows[0])
        _label(rows[-1], along, axis, None if highlight is None else highlight[0])
        return Markup(_svg(figure, about))


def shortened(names: Sequence[str]) -> tuple[list[str], str]:
    """Dotted names without the parts that begin all of them, cut in the middle; and these parts."""
    parts = [name.split(".") for name in names]
    most = min((len(part) - 1 for part in parts), default=0)
    common = next((i for i in range(most) if len({part[i] for part in parts}) > 1), most) if len(parts) > 1 else 0
    rest, half = [".".join(part[common:]) for part in parts], (_CHARACTERS - 1) // 2
    short = [name if len(name) <= _CHARACTERS else f"{name[:half]}…{name[-half:]}" for name in rest]
    return short, ".".join(parts[0][:common]) if parts else ""


def _draw(axes: Axes, panel: Panel, places: Sequence[float]) -> None:
    # Zeros lie a decade below the smallest other value.
    floor = 10.0 ** (math.floor(math.log10(min(panel.positive, default=1.0))) - 1) if panel.log else None
    for index, series in enumerate(panel.series):
        _curve(axes, series, places, index, -math.inf if floor is None else floor)
    axes.set_ylabel(panel.label)
    axes.grid(axis="y")
    if len(panel.series) > 1:
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(panel.series) + 1, handlelength=2.8)
    if floor is None:
        axes.ticklabel_format(useOffset=False)
        return
    top = max(panel.positive, default=floor * 100)
    axes.set_yscale("log")
    has_zeros = any(value == 0 for series in panel.series for value in series.values)
    axes.set_ylim(floor * (0.7 if has_zeros else 5), top * 3)
    low, high = round(math.log10(floor)) + 1, math.floor(math.log10(top * 3))
    decades = [10.0**power for power in range(low, high + 1, max(1, math.ceil((high - low + 1) / 8)))]
    axes.set_yticks([floor, *decades] if has_zeros else decades)
    axes.set_yticklabels([*["0"] * has_zeros, *(f"{decade:.0e}" for decade in decades)])
    axes.minorticks_off()


def _curve(axes: Axes, series: Series, places: Sequence[float], index: int, floor: float) -> None:
    """The curve, with a cross at its foot for every gap and a triangle at the top for every infinity."""
    colour = _SOFT if series.is_limit else _COLOURS[index % len(_COLOURS)]
    marked = len(places) <= _MARKED and not series.is_limit
    values = [math.nan if value is None else value for value in series.values]
    axes.plot(
        places,
        [max(value, floor) if math.isfinite(value) else math.nan for value in values],
        label=series.name,
        color=colour,
        linewidth=1.4,
        linestyle=("--", ":")[index % 2] if series.is_limit else "-",
        marker=_MARKERS[index % len(_MARKERS)] if marked else None,
        markersize=3.5,
    )
    edge = axes.get_xaxis_transform()
    for marker, height, chosen in (("x", 0.0, math.isnan), ("^", 1.0, math.isinf)):
        where = [place for place, value in zip(places, values, strict=True) if chosen(value) and not series.is_limit]
        if where:
            axes.plot(where, [height] * len(where), marker, color=colour, markersize=5, transform=edge, clip_on=False)


def _label(axes: Axes, along: Along, axis: str, kept: int | None) -> None:
    names = [item for item in along if isinstance(item, str)]
    if len(names) < len(along):
        axes.set_xlabel(axis)
        axes.locator_params(axis="x", integer=True)
        return
    short, common = shortened(names)
    # At most `_NAMES` at equal distances, and `kept` in place of its neighbours.
    every = max(1, math.ceil(len(short) / _NAMES))
    ticks = [tick for tick in range(0, len(short), every) if kept is None or abs(tick - kept) >= every]
    ticks = sorted({*ticks, *([] if kept is None else [kept])})
    axes.set_xticks(ticks, [short[tick] for tick in ticks], rotation=60, ha="right", rotation_mode="anchor")
    axes.set_xlabel(f"{axis} (names below {common})" if common else axis)


def _highlight(axes: Axes, places: Sequence[float], highlight: tuple[int, str], *, named: bool) -> None:
    index, text = highlight
    axes.axvline(places[index], color=_BAD, linewidth=6, alpha=0.25, zorder=0)
    axes.axvline(places[index], color=_BAD, linewidth=0.8, zorder=0)
    if named:
        side, offset = ("right", -6) if index > len(places) / 2 else ("left", 6)
        at, across = (places[index], 1.0), axes.get_xaxis_transform()
        axes.annotate(
            text, at, (offset, -4), xycoords=across, textcoords="offset points", ha=side, va="top", color=_BAD
        )


def _svg(figure: Figure, about: str) -> str:
    """The figure as one element: no prologue, no metadata, no identifiers that nothing uses, colours of the page."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    _, start, text = buffer.getvalue().partition("<svg ")
    for pattern, replacement in _SMALLER:
        text = re.sub(pattern, replacement, text)
    used = set(re.findall(r'(?:url\(|href=")#([^")]+)', text))
    text = re.sub(r' id="([^"]+)"', lambda match: match[0] if match[1] in used else "", text)
    text = re.sub(r'="[^"]*"', lambda value: _DIGITS.sub(r"\1", value[0]), text)  # of places, not of what is written
    return f'{start}role="img" aria-label="{escape(about)}" {text.rstrip()}'


_DIGITS = re.compile(r"(\d+\.\d\d)\d+")
_SMALLER = (
    (r"<metadata>.*?</metadata>\s*|<!--.*?-->\s*", ""),
    (r"'DejaVu Sans'(, [^;\"]*)?", "system-ui, sans-serif"),
    (r"\n\s*", "\n"),
    # References within the page need no namespace of their own.
    (r'xmlns:xlink="http://www.w3.org/1999/xlink" ', ""),
    (r"xlink:href=", "href="),
    *_THEMED.items(),
)
