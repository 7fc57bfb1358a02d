"""A profile as one self-contained HTML page: verdict, plots over depth, layers, attention, triage."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from markupsafe import Markup

from fuzzcompile.model.hints import CommandSubject
from fuzzcompile.model.profile_contract import LayerJson, ProfileJson
from fuzzcompile.model.templates import get_environment as templates
from fuzzcompile.model.versions import __version__
from fuzzcompile.report.charts import Panel, Series, chart_or_reason
from fuzzcompile.report.circumstances import versions
from fuzzcompile.report.pages.case_page import render_section
from fuzzcompile.report.profile_text import advice, attention_line, cells, meaning, remarks, triages
from fuzzcompile.report.proof import format_number

_FINE = ("equal", "expected_compounding")
# What is drawn, by key of a layer; noise and rounding are what the others are held against.
_ERRORS = {"max_error": "largest", "rms_error": "RMS", "made": "newly made", "inherited": "inherited"}
_LIMITS = {"noise": "rounding in this layer", "rounding": "rounding up to here"}


def page_of_profile(profile: ProfileJson, *, name: str | CommandSubject) -> str:
    """The page on a profile (``profile --json``); without matplotlib it says in place of the plots what to install."""
    page = templates().get_template("pages/profile.html.j2")
    return page.render(
        profile=profile,
        is_fine=profile["verdict"] in _FINE,
        meaning=meaning(profile),
        advice=advice(profile, CommandSubject.from_name(name).to_publish()),
        plots=list(_plots(profile)),
        cells=cells,
        remarks=list(remarks(profile)),
        attention=[attention_line(call) for call in profile.get("attention", [])],
        triages=[(each.what, render_section(each.report, name=each.name)) for each in triages(profile, name)],
        versions=versions(profile.get("environment", {})),
        figure=format_number,
        fuzzcompile=__version__,
    )


def _plots(profile: ProfileJson) -> Iterator[tuple[str, Markup]]:
    layers = profile.get("layers", [])
    forward, gradients = ([x for x in layers if (x.get("kind") == "gradient") == wanted] for wanted in (False, True))
    plots = [("Error over depth", innermost(forward), "errors over depth")]
    plots += [("Gradients, from the last layer to the first", gradients, "errors of gradients")] if gradients else []
    for heading, shown, what in plots:
        series = [
            Series(label, [_relative(layer, key) for layer in shown], is_limit=key in _LIMITS)
            for key, label in {**_ERRORS, **_LIMITS}.items()
        ]
        measured = [each for each in series if any(value is not None for value in each.values)]
        cosine = Series("cosine", [layer.get("cosine") for layer in shown])
        plot = chart_or_reason(
            [str(layer["name"]) for layer in shown],
            [Panel("error / size (RMS)", measured or series[:1]), Panel("cosine", [cosine], log=False)],
            axis="layer, in the order of execution",
            about=f"{profile['case']}: {what} of {profile['against']} against {profile['reference']}",
            highlight=_highlight(shown, profile.get("layer")),
        )
        yield heading, plot


def innermost(layers: Sequence[LayerJson]) -> list[LayerJson]:
    """The layers that contain no other one: outer ones would draw their last part a second time."""
    names = [_module(layer) for layer in layers]
    holding = {name[:index] for name in names for index, character in enumerate(name) if character == "."}
    return [layer for layer, name in zip(layers, names, strict=True) if name not in holding]


def _module(layer: LayerJson) -> str:
    return str(layer["name"]).partition("#")[0]


def _relative(layer: LayerJson, key: str) -> float | None:
    value, size = layer.get(key), layer.get("size")
    if not isinstance(value, int | float) or size is None:
        return None
    if not size:
        return math.inf if value else 0.0
    return value / size


def _highlight(layers: Sequence[LayerJson], jump: str | None) -> tuple[int, str] | None:
    """Return the place at which the jump is drawn: the layer, or the last one within it."""
    if jump is None:
        return None
    names = [str(layer["name"]) for layer in layers]
    module = jump.partition("#")[0]
    inside = [index for index, layer in enumerate(layers) if f"{_module(layer)}.".startswith(f"{module}.")]
    if jump in names:
        return names.index(jump), f"jump: {jump}"
    return (inside[-1], f"jump: {jump}") if inside else None
