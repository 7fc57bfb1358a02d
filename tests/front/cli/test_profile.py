"""``fuzzcompile profile`` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from calling import CLEAN, call, sentence

BENCH = Path(__file__).parents[2].parent / "bench" / "profiles"


@pytest.mark.slow
def test_one_object_for_machines_and_a_page_for_people(write_case, tmp_path, capsys):
    page = tmp_path / "page.html"
    asked = ("profile", write_case(CLEAN), "--against", "float64", "--device", "cpu", "--html", page, "--json")
    assert call(*asked) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["verdict"] == "expected_compounding" and answer["layer"] is None
    assert set(answer["layers"][0]) >= {
        "name",
        "max_error",
        "rms_error",
        "cosine",
        "made",
        "inherited",
        "amplification",
    }
    assert answer["rule"] in page.read_text() or answer["rule"].split(":")[0] in page.read_text()


@pytest.mark.slow
def test_a_run_is_recorded_and_compared_with_itself(write_case, tmp_path, capsys):
    case, recording = write_case(CLEAN), tmp_path / "run.safetensors"
    assert call("profile", case, "--record", recording, "--device", "cpu") == 0
    assert str(recording) in capsys.readouterr().out
    assert call("profile", case, "--against", recording, "--device", "cpu") == 0
    assert "equal" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--against", "eagre"], "Nothing runs as 'eagre'"),
        (["--against", "gone.safetensors"], "gone.safetensors"),
        (["--ops"], "fuses operators"),
        (["--record", "/nowhere/at/all.safetensors"], "Cannot write"),
    ],
)
def test_a_wrong_option_is_one_sentence(write_case, capsys, options, says):
    assert call("profile", write_case(CLEAN), "--device", "cpu", *options) == 2
    assert says in sentence(capsys)


@pytest.mark.slow
def test_the_layer_of_a_jump_is_triaged_to_its_rewrite(capsys):
    plant, case = BENCH / "scale_of_layer_7.py", BENCH / "bert_layout.py"
    assert call("profile", case, "--plant", plant, "--device", "cpu", "--json") == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["verdict"], answer["layer"]) == ("jump", "layer.7")
    # The plant counts the attentions of a graph: the layer alone has one.
    assert not answer["triage"]["is_bug"]
    assert answer["triage_whole"]["culprit"]["rewrite"] == "scale_by_too_much"


SCRIPT = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
torch.compile(model)(torch.ones(2, 4)).sum().backward()
"""


@pytest.mark.slow
def test_the_layers_of_a_script_are_compared_in_float64_too(write_case, capsys):
    assert call("profile", write_case(SCRIPT), "--device", "cpu", "--json") == 0
    layers = [layer for layer in json.loads(capsys.readouterr().out)["layers"] if layer["kind"] in ("Linear", "GELU")]
    assert len(layers) == 3
    assert all(layer["made_in_float64"] is not None for layer in layers)
