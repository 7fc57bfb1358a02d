"""Architectures by name: what their case files build, that nothing is downloaded, and what bad names get."""

from __future__ import annotations

import importlib.util
import socket
from pathlib import Path

import click
import pytest
import torch
from click.testing import CliRunner

from fuzzcompile.front.cli import options
from fuzzcompile.fuzz.bundled_models import find_architecture, list_architectures, render_case, write_case_file
from fuzzcompile.model.errors import EnvironmentUnfit, UsageError
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run.case import Case
from fuzzcompile.run.case_program import build
from fuzzcompile.run.runs import drive

CPU = torch.device("cpu")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def no_network(monkeypatch):
    def refused(*args):
        raise AssertionError("a connection was attempted")

    monkeypatch.setattr(socket.socket, "connect", refused)


def called(case: Case) -> object:
    program = build(case, CPU)
    with torch.set_grad_enabled(case.backward):
        return drive(case, program.model, program.calls[0])


def test_there_are_the_architectures_that_users_know():
    libraries = [find_architecture(name).library for name in list_architectures()]
    assert libraries.count("transformers") >= 20 and libraries.count("timm") >= 10


@pytest.mark.parametrize("name", list_architectures())
def test_every_architecture_runs_in_eval_and_in_training(name, cache, no_network):
    pytest.importorskip(find_architecture(name).library)
    for training in (False, True):
        case = load_case(write_case_file(name, training=training))
        output = called(case)
        outputs = [output] if isinstance(output, torch.Tensor) else list(output.values())
        assert case.backward is training
        assert all(torch.isfinite(value).all() for value in outputs if isinstance(value, torch.Tensor))
        labelled = (
            training and find_architecture(name).library == "transformers" and not find_architecture(name).unlabelled
        )
        assert not labelled or output.loss.requires_grad


def test_sizes_keep_what_they_promise(cache):
    tiny, narrow = (build(load_case(write_case_file("bert", size=size)), CPU).model for size in ("tiny", "narrow"))
    assert (tiny.config.num_hidden_layers, narrow.config.num_hidden_layers) == (2, 12)
    assert tiny.config.hidden_size == narrow.config.hidden_size == 64
    published = render_case("bert", size="full")
    assert "hidden_size=768" in published and "num_hidden_layers=12" in published


def test_heads_stay_grouped_and_windows_stay_windows(cache):
    config = build(load_case(write_case_file("mistral")), CPU).model.config
    assert config.num_attention_heads == 4 * config.num_key_value_heads
    assert config.sliding_window < 16, "the window must end within the sequence"


def test_a_dtype_reaches_parameters_and_inputs(cache):
    program = build(load_case(write_case_file("vit-base-patch16-224", dtype="bfloat16")), CPU)
    assert {parameter.dtype for parameter in program.model.parameters()} == {torch.bfloat16}
    assert program.calls[0]["pixel_values"].dtype == torch.bfloat16


def test_each_choice_has_a_file_of_its_own(cache):
    paths = {write_case_file("gpt2"), write_case_file("gpt2", training=True), write_case_file("gpt2", size="narrow")}
    paths |= {write_case_file("gpt2", dtype="bfloat16"), write_case_file("gpt2", dtype="bfloat16", training=True)}
    assert len(paths) == 5 and all(path.is_relative_to(cache) for path in paths)
    assert write_case_file("gpt2") in paths, "a later command finds it again"


def test_no_bias_and_no_norm_is_at_its_initial_value(cache):
    model = build(load_case(write_case_file("gpt2")), CPU).model
    assert all(parameter.std() > 0 for name, parameter in model.named_parameters() if parameter.numel() > 1)


@pytest.mark.parametrize("spelling", ["BERT-base-uncased", "google-bert/bert-base-uncased", "bert"])
def test_names_are_found_as_users_spell_them(spelling):
    assert find_architecture(spelling).name == "bert-base-uncased"


def test_an_unknown_name_lists_close_ones():
    with pytest.raises(UsageError, match=r"no 'roberta-bse': close ones are roberta-base, xlm-roberta-base, "):
        find_architecture("roberta-bse")
    with pytest.raises(UsageError, match=r"there are bert-base-uncased, .*timm/resnet18"):
        find_architecture("zzz")


def test_a_missing_library_is_one_sentence(cache, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        EnvironmentUnfit, match=r"needs timm, which is not installed: pip install 'fuzzcompile\[timm\]'"
    ):
        write_case_file("timm/resnet18")


@click.command()
@click.argument("case", required=False)
@options.model("case", str, size="narrow")
def shown(case: str) -> None:
    click.echo(case)


def test_the_option_stands_in_for_the_case(cache):
    run = CliRunner().invoke
    assert run(shown, ["x.py"]).output == "x.py\n"
    path = run(shown, ["--hf-config", "gpt2", "--hf-train"]).output.strip()
    assert path.endswith("gpt2-narrow-train.py") and "BACKWARD = True" in Path(path).read_text()
    assert "name a case" in run(shown, []).output
    assert "not both" in run(shown, ["x.py", "--hf-config", "gpt2"]).output
