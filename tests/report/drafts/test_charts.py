"""Charts: valid, self-contained SVG that is the same every time, with gaps, zeros and infinities to be seen."""

from __future__ import annotations

import math
import re
import sys
from xml.etree import ElementTree

import pytest

from fuzzcompile.report.charts import Panel, Series, chart, shortened

SVG = "{http://www.w3.org/2000/svg}"
LAYERS = [f"model.decoder.layers.{i}" for i in range(8)]
BLUE, VERMILION = "#0072b2", "#d55e00"


def drawn(*values: float | None, along=None, **options) -> str:
    along = along or [f"layer{i}" for i in range(len(values))]
    return chart(along, [Panel("error", [Series("RMS", values)])], axis="layer", about="errors", **options)


def texts(svg: str) -> list[str]:
    return ["".join(node.itertext()).strip() for node in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def curve(svg: str, colour: str = BLUE) -> str:
    """The path of a series' line; of what has that colour, it is the first that is not filled."""
    paths = ElementTree.fromstring(svg).iter(f"{SVG}path")
    styled = (path for path in paths if f"stroke: {colour}" in path.get("style", "") and path.get("clip-path"))
    return next(styled).get("d")


def marks(svg: str, colour: str) -> int:
    """How many marks of a colour stand at the edges, outside of the clipped area."""
    groups = ElementTree.fromstring(svg).iter(f"{SVG}g")
    return sum(
        1
        for group in groups
        if not group.get("clip-path")
        for use in group.findall(f"{SVG}use")
        if colour in use.get("style", "")
    )


def test_the_same_numbers_give_the_same_bytes():
    assert drawn(1e-6, 2e-6, None, 0.0) == drawn(1e-6, 2e-6, None, 0.0)
    assert drawn(1e-6, 2e-6) != drawn(1e-6, 3e-6)


def test_nothing_outside_of_the_element_is_referred_to():
    svg = drawn(1e-6, 2e-6, highlight=(1, "jump"))
    references = re.findall(r'(?:href="|url\()([^")]+)', svg)
    assert references and all(reference.startswith("#") for reference in references)
    assert {reference[1:] for reference in references} == set(re.findall(r'\sid="([^"]+)"', svg))
    assert re.findall(r"https?:[^\"]*", svg) == ["http://www.w3.org/2000/svg"]  # the namespace


def test_a_chart_is_small():
    svg = drawn(*(1e-6 * 1.37**index for index in range(50)))
    assert not re.search(r'(d|x|y)="[^"]*\.\d{3}', svg) and len(svg) < 25_000


def test_text_is_text_in_the_colour_of_the_page():
    svg = chart(LAYERS, [Panel("error", [Series("made", [1e-6] * 8), Series("noise", [1e-6] * 8, is_limit=True)])],
                axis="layer", about="errors", highlight=(3, "jump"))  # fmt: skip
    assert {"made", "noise", "error", "jump", "3", "layer (names below model.decoder.layers)"} <= set(texts(svg))
    assert "currentColor" in svg and "var(--bad" in svg and not re.search(r"#0[1-9]0[1-9]0[1-9]", svg)


def test_a_missing_value_breaks_the_line_and_is_marked():
    whole, broken = drawn(1e-6, 2e-6, 3e-6, 4e-6, 5e-6), drawn(1e-6, 2e-6, None, math.nan, 5e-6)
    assert curve(whole).count("M") == 1 and marks(whole, BLUE) == 0
    # What stands alone behind a gap has a marker and no line.
    assert curve(broken).count("L") == 1 and marks(broken, BLUE) == 2


def test_an_infinity_is_marked_at_the_top():
    svg = drawn(1e-6, math.inf, 3e-6, 4e-6)
    assert curve(svg).count("M") >= 1 and marks(svg, BLUE) == 1


def test_zeros_lie_on_a_floor_that_says_so():
    assert "0" in texts(drawn(0.0, 1e-6, 1e-5)) and "0" not in texts(drawn(1e-7, 1e-6, 1e-5))
    assert curve(drawn(0.0, 1e-6, 1e-5)).count("L") == 2


@pytest.mark.parametrize("values", [(), (1e-3,), (0.0, 0.0), (None, None), (math.inf, math.nan)])
def test_degenerate_series_are_drawn(values):
    ElementTree.fromstring(drawn(*values))


def test_steps_stand_at_their_numbers():
    near, far = drawn(1.0, 2.0, 3.0, along=[0, 10, 20]), drawn(1.0, 2.0, 3.0, along=[0, 10, 200])
    places = [[float(x) for x in re.findall(r"[ML] (\S+) \S+", curve(svg))] for svg in (near, far)]
    gaps = [(xs[2] - xs[1]) / (xs[1] - xs[0]) for xs in places]
    assert gaps == pytest.approx([1, 19], rel=0.01)
    assert "20" in texts(near) and "200" in texts(far)


def test_labels_keep_their_digits():
    cosines = [1.0, 0.99995, 0.9999]
    svg = chart([0, 1, 2], [Panel("cosine", [Series("cosine", cosines)], log=False)], axis="step", about="cosine")
    labels = [text for text in texts(svg) if text.startswith(("0.9", "1.0"))]
    assert len(labels) > 3 and len(set(labels)) == len(labels)


def test_many_names_are_thinned_and_the_highlighted_one_stays():
    names = [f"layer{i:03}" for i in range(200)]
    labelled = [text for text in texts(drawn(*[1e-6] * 200, along=names, highlight=(101, "jump"))) if text in names]
    assert len(labelled) <= 27 and "layer101" in labelled and "layer000" in labelled


def test_long_names_lose_what_all_share_and_their_middle():
    long = "encoder.layers.11.self_attention.output_projection"
    short, common = shortened([f"model.{long}", "model.encoder.norm"])
    assert common == "model.encoder" and short[1] == "norm" and "…" in short[0]
    assert short[0].startswith("layers.11") and len(short[0]) <= 28
    assert shortened(["model"]) == (["model"], "") and shortened(["a.b", "a.b"]) == (["b", "b"], "a")


def test_panels_share_the_axis():
    svg = chart([0, 1, 2], [Panel("error", [Series("RMS", [1e-3, 2e-3, 3e-3])]),
                            Panel("cosine", [Series("cosine", [1, 0.9, 0.8])], log=False)],
                axis="step", about="a <b> & \"c\"")  # fmt: skip
    assert {"cosine", "step", "error"} <= set(texts(svg))
    assert ElementTree.fromstring(svg).get("aria-label") == 'a <b> & "c"'


def test_without_matplotlib_the_reason_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = drawn(1.0, 2.0).unescape()
    assert said == "<p>Plots need matplotlib: pip install 'fuzzcompile[profile]'.</p>"
