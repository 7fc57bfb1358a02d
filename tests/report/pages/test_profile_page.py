"""The page on a profile: it stands alone, and words, plots and table show the jump."""

from __future__ import annotations

import re
import sys
from typing import Any
from xml.etree import ElementTree

from page_reader import Reader
from profiles import BLOCKS, WHOLE, jump, layer, profile
from triage_reports import CULPRIT, output, report

from fuzzcompile.report.profile_report import innermost, page_of_profile

RED = "var(--bad"


def page(of: dict[str, Any]) -> str:
    return page_of_profile(of, name="bert.py")


def plot(of: dict[str, Any]) -> ElementTree.Element:
    return ElementTree.fromstring(re.search(r"<svg.*?</svg>", page(of), re.DOTALL)[0])


def words(of: dict[str, Any]) -> list[str]:
    return ["".join(node.itertext()).strip() for node in plot(of).iter("{http://www.w3.org/2000/svg}text")]


def test_the_page_stands_alone():
    for of in (profile(), jump(triage=report("miscompile", output(finding="wrong")))):
        reader = Reader(page(of))
        assert not reader.open and reader.stands_alone and "svg" in {name for name, _ in reader.tags}
        assert set(re.findall(r"https?://[^\"<\s]+", page(of))) <= {"http://www.w3.org/2000/svg"}


def test_verdict_rule_and_advice_are_words_in_front():
    text = Reader(page(profile())).text
    assert text.index("expected_compounding") < text.index("Rule: no layer makes more than 0.8 times its rounding")
    assert text.index("What to do: nothing to fix") < text.index("Error over depth") < text.index("newly made")


def test_the_plot_shows_every_error_and_marks_the_layer_of_the_jump():
    written = words(jump())
    for name in ("largest", "RMS", "newly made", "inherited", "rounding in this layer", "rounding up to here", "cosine",
                 "jump: bert.encoder.layer.7", "bert.encoder.layer.7"):  # fmt: skip
        assert name in written, name
    assert RED in ElementTree.tostring(plot(jump())).decode()
    assert RED not in ElementTree.tostring(plot(profile())).decode()


def test_errors_are_drawn_in_units_of_the_layers_size():
    small = {key: 2.0**-10 * value for key, value in layer("h.1").items() if isinstance(value, float)}
    scaled = layer("h.1", **{**small, "cosine": 1.0, "amplification": 1.0})
    of, alike = (profile(layers=[layer("h.0"), each]) for each in (layer("h.1", cosine=1.0), scaled))
    assert ElementTree.tostring(plot(of)) == ElementTree.tostring(plot(alike)) and page(of) != page(alike)


def test_a_jump_in_an_outer_layer_is_drawn_at_its_last_part():
    layers = [layer("h.0.attn"), layer("h.0.mlp"), layer("h.0"), layer("h.1.attn"), layer("h.1"), WHOLE]
    assert [each["name"] for each in innermost(layers)] == ["h.0.attn", "h.0.mlp", "h.1.attn", "(whole program)"]
    assert "jump: h.0" in words(jump(layers=layers, layer="h.0"))
    assert not [word for word in words(jump(layers=layers, layer=None)) if word.startswith("jump")]


def test_a_name_that_begins_like_another_does_not_contain_it():
    layers = [layer("h.1"), layer("h.10"), layer("h.1#2"), layer("h.11.mlp")]
    assert innermost(layers) == layers


def test_gradients_have_a_plot_of_their_own():
    unknown = dict.fromkeys(("made", "inherited", "noise", "amplification"))
    of = jump(layers=[*BLOCKS, WHOLE, layer("h.1 (gradient)", kind="gradient", **unknown)], layer="h.1 (gradient)")
    forward, gradients = (re.findall(r"<text[^>]*>([^<]*)</text>", svg) for svg in page(of).split("<svg ")[1:])
    assert "jump: h.1 (gradient)" in gradients and not [text for text in forward if "gradient" in text]
    assert "newly made" in forward and "rounding up to here" in gradients
    assert not {"newly made", "rounding in this layer"} & set(gradients), "what no gradient has is not drawn"


def test_the_row_of_the_jump_is_marked():
    blamed = re.findall(r'<tr class="blamed">(.*?)</tr>', page(jump()), re.DOTALL)
    assert len(blamed) == 1 and "bert.encoder.layer.7" in blamed[0] and ">0.25<" in blamed[0]
    assert 'class="blamed"' not in page(profile())


def test_attention_tolerance_notes_and_versions_are_there():
    text = Reader(page(profile(notes=["recorded by torch 2.12"]))).text
    for part in ("flash (chosen); math; not efficient or cudnn: It needs CUDA", "same_backend, float32",
                 "may be 6 times what rounding makes there", "the kernels differ", "note: recorded by torch 2.12",
                 "PyTorch 2.13.0", "cost 12.5 s"):  # fmt: skip
        assert part in text, part
    assert "secret-host" not in text


def test_the_triage_of_the_layer_is_a_part_of_the_page():
    judged = report("miscompile", output(finding="wrong"), culprit={**CULPRIT, "details": {"diff": "-a\n+b"}})
    text = Reader(page(jump(triage=judged, triage_whole=report("rounding", output())))).text
    assert "Triage: bert.encoder.layer.7 alone" in text and "Triage: the whole program" in text
    assert "_sfdp_pattern_28_inference" in text and "fuse_attention.py:66" in text
    assert "fuzzcompile triage bert.py --module bert.encoder.layer.7 --proof" in text


def test_what_was_not_measured_or_has_no_size_can_be_drawn():
    odd = [
        layer("a", size=None, max_error=None, rms_error=None, made=None, inherited=None, cosine=None),
        layer("b", size=0.0), layer("c", size=0.0, max_error=0.0, rms_error=0.0, note="not run <again>"),
    ]  # fmt: skip
    assert {"a", "b", "c"} <= set(words(profile(layers=odd)))
    assert "not run &lt;again&gt;" in page(profile(layers=odd))
    assert "Nothing was compared." in page(profile(layers=[]))


def test_names_of_the_program_are_text_and_no_markup():
    of = jump(layers=[layer("<b>$x$</b>"), layer("h")], layer="<b>$x$</b>", case="<i>case</i>")
    assert "<b>" not in page(of) and "<i>" not in page(of) and "<b>$x$</b>" in Reader(page(of)).text
    assert "jump: <b>$x$</b>" in words(of)


def test_without_matplotlib_the_page_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = Reader(page(jump())).text
    assert "Plots need matplotlib: pip install 'fuzzcompile[profile]'." in text and "bert.encoder.layer.7" in text
