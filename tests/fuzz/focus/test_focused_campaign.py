"""A campaign with a focus, end to end: a rule that is off by default fires, and what is wrong in it is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fuzzcompile.front.cli.main import main

# The rule that gives every concatenation one form makes it 1 % too large.
PLANT = """
import functools

import torch
from torch._inductor.fx_passes.split_cat import PRE_GRAD_PATTERNS


def wrong(handler):
    @functools.wraps(handler)
    def handle(match, *args, **kwargs):
        graph = match.nodes[0].graph
        before = set(graph.nodes)
        handler(match, *args, **kwargs)
        for node in [node for node in graph.nodes if node not in before]:
            with graph.inserting_after(node):
                scaled = graph.call_function(torch.mul, (node, 1.01))
            scaled.meta.update(node.meta)
            node.replace_all_uses_with(scaled, delete_user_cb=lambda user: user is not scaled)

    return handle


for entries in PRE_GRAD_PATTERNS["normalization_pass"].patterns.values():
    for entry in entries:
        if entry.handler.__name__ == "normalize_cat_default":
            entry.handler = wrong(entry.handler)
"""


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ending:
        main(["run", "--device", "cpu", *arguments])
    return int(ending.value.code or 0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--focus", "torch/_inductor/fx_passes/missing.py:3"], "no such file"),
        (["--changed", "HEAD"], "no checkout of PyTorch"),
        (["--checkout", "."], "--changed"),
        (["--focus", "addmm", "--from", "case.py"], "give one of them"),
    ],
)
def test_what_cannot_be_aimed_at_is_refused_before_any_worker_starts(arguments, says, tmp_path, monkeypatch, capsys):
    (tmp_path / "case.py").write_text("def make():\n    return abs, (1,)\n")
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    assert says in capsys.readouterr().err
    assert not list(tmp_path.glob("corpus"))


@pytest.mark.slow
def test_a_name_that_no_rule_has_is_refused_by_the_first_worker(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run("--focus", "normalise_cat_default", "--budget", "60s", "--workers", "1") == 2
    assert "normalize_cat_default" in capsys.readouterr().err


@pytest.mark.slow
def test_a_focus_switches_its_rule_on_makes_it_fire_and_finds_what_is_wrong_in_it(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plant.py").write_text(PLANT)
    asked = ("--focus", "normalize_cat_default", "--plant", "plant.py", "--budget", "8c", "--max-findings", "1")
    assert run(*asked, "--workers", "1", "--fail-on-finding", "--summary", "out.json") == 1
    summary = json.loads((tmp_path / "out.json").read_text())
    entry = summary["focus"]["normalize_cat_default"]
    assert entry["fired"] >= 1
    assert entry["matched"] == entry["fired"] + entry["refused"]
    assert any("normalize_cat_default" in finding["culprit"] for finding in summary["findings"])
