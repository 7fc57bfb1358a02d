"""``coverage --rules``: what the installed torch registers, what switches it, and what the corpus has seen."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config

from fuzzcompile.corpus.records import CaseRecord, Coverage
from fuzzcompile.corpus.store import Store
from fuzzcompile.front.cli.main import main
from fuzzcompile.model.stages import STAGES

# torch 2.11 knows patterns by the function that they search for, without what variant they are.
VARIANT = "_inference" if torch.__version__ >= "2.12" else ""
FIRST, SECOND = (f"_sfdp_pattern_{number}{VARIANT}" for number in (1, 2))
PATTERN = ("joint_graph", "pass_pattern_0", FIRST)


def call(*arguments: object) -> tuple[int, str, str]:
    """Exit status, standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ending:
        main([str(argument) for argument in arguments])
    return int(ending.value.code or 0), out.getvalue(), err.getvalue()


def rows(*arguments: object) -> list[dict[str, Any]]:
    status, out, _ = call("coverage", "--rules", "--json", *arguments)
    assert status == 0
    return [json.loads(line) for line in out.splitlines()]


@pytest.fixture(autouse=True)
def no_corpus_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FUZZCOMPILE_CORPUS", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A corpus that saw one pattern fire, one refused, a user's own pass, and another torch."""
    path = tmp_path_factory.mktemp("corpus") / "corpus.db"
    report = {"schema": 1, "verdict": "rounding", "is_bug": False, "signature": None, "culprit": None, "evidence": {}}
    report |= {"torch": str(torch.__version__), "device": "cpu", "confidence": "high", "cost": {"seconds": 1.0}}
    record = CaseRecord(hashlib.sha256(b"x").hexdigest(), "x", origin="file")
    seen = [
        Coverage(*PATTERN, "fired", 3),
        Coverage("joint_graph", "pass_pattern_0", SECOND, "refused", 5),
        Coverage("post_grad", "remove_noop_ops", "remove_noop_ops", "fired", 7),
        Coverage("post_grad", "post_grad_custom_post_pass", "my_own_pass", "fired", 2),
        Coverage("post_grad", "decompose_auto_functionalized", "_", "fired", 4),
    ]
    with Store.open(path) as store:
        store.record(None, record, {"torch": str(torch.__version__), "device": "cpu"}, report, seen)
        store.record(None, record, {"torch": "1.0", "device": "cpu"}, report, [Coverage(*PATTERN, "fired", 100)])
    yield path


@pytest.fixture(scope="module")
def everything(corpus: Path) -> list[dict[str, Any]]:
    return rows("--corpus", corpus)


def the(listed: list[dict[str, Any]], stage: str, name: str) -> dict[str, Any]:
    (chosen,) = [row for row in listed if (row["stage"], row["name"]) == (stage, name)]
    return chosen


def test_patterns_and_passes_have_their_names_sources_and_switches(everything):
    pattern = the(everything, "joint_graph", FIRST)
    assert pattern["kind"] == "pattern" and pattern["pass_name"] == "pass_pattern_0" and pattern["on"] is True
    assert pattern["source"] == "torch/_inductor/fx_passes/fuse_attention.py" and pattern["line"] > 1
    assert "config.pattern_matcher" in pattern["when"]
    noop = [row for row in everything if row["name"] == "remove_noop_ops"]
    assert [row["stage"] for row in noop] == ["joint_graph", "post_grad"]
    assert (
        the(everything, "joint_graph", "constant_fold_uniform_value")["when"] == "config.joint_graph_constant_folding"
    )
    assert the(everything, "post_grad", "reinplace_inplaceable_ops")["on"] is True
    assert the(everything, "post_grad", "post_grad_custom_post_pass")["on"] is False


def test_a_pass_that_is_off_says_what_would_switch_it_on(everything):
    einsum = the(everything, "pre_grad", "replace_einsum_to_pointwise")
    assert einsum["on"] is False and einsum["pass_name"] == "einsum_to_pointwise_pass"
    assert einsum["when"] == "'einsum_to_pointwise_pass' in config.pre_grad_fusion_options"
    binary = [row for row in everything if row["stage"] == "freezing" and row["kind"] == "pattern"]
    assert len(binary) > 5 and not any(row["on"] for row in binary)
    assert all("config.freezing" in row["when"] for row in binary)


def test_operators_with_code_of_inductors_own_are_there(everything):
    assert the(everything, "decomposition", "aten.native_layer_norm.default")["kind"] == "decomposition"
    assert the(everything, "lowering", "aten.cat.default")["source"].startswith("torch/_inductor/lowering.py")
    assert {row["stage"] for row in everything} <= set(STAGES)


def test_settings_have_their_values(everything):
    precision = the(everything, "lowering", "config.emulate_precision_casts")
    assert precision == {
        "stage": "lowering", "kind": "setting", "name": "config.emulate_precision_casts", "on": None,
        "when": "False", "default": "False", "changed": False,
    }  # fmt: skip


def test_what_the_corpus_saw_under_this_torch_is_counted(everything):
    assert [the(everything, *place)[key] for place, key in [
        (("joint_graph", FIRST), "fired"),
        (("joint_graph", SECOND), "fired"),
        (("joint_graph", SECOND), "refused"),
        (("joint_graph", "pass_pattern_0"), "fired"),
        (("joint_graph", "remove_noop_ops"), "fired"),
        (("post_grad", "remove_noop_ops"), "fired"),
    ]] == [3, 0, 5, 3, 0, 7]  # fmt: skip
    own = the(everything, "post_grad", "my_own_pass")
    assert own["fired"] == 2 and "not registered" in own["when"]
    assert the(everything, "post_grad", "post_grad_custom_post_pass")["fired"] == 2
    assert the(everything, "post_grad", "decompose_auto_functionalized")["fired"] == 4  # by a rule that it makes


def test_never_leaves_out_what_fired(corpus):
    unfired = rows("--corpus", corpus, "--never", "--stage", "joint_graph")
    names = [row["name"] for row in unfired]
    assert SECOND in names and FIRST not in names
    assert "pass_pattern_0" not in names and "pass_pattern_1" in names
    assert {row["kind"] for row in unfired} == {"pass", "pattern"} and {row["stage"] for row in unfired} == {
        "joint_graph"
    }


def test_settings_switch_what_hangs_on_them():
    changes = {"pattern_matcher": False, "post_grad_fusion_options": {"decompose_mm_pass": {}}, "freezing": True}
    with config.patch(changes):
        listed = rows()
    assert the(listed, "joint_graph", FIRST)["on"] is False
    assert the(listed, "joint_graph", "constant_fold_uniform_value")["on"] is True
    assert the(listed, "post_grad", "decompose_addmm")["on"] is False  # asked for, and no pattern is matched at all
    assert all(row["on"] for row in listed if row["stage"] == "freezing" and row["kind"] == "pattern")
    matcher = the(listed, "pre_grad", "config.pattern_matcher")
    assert (matcher["when"], matcher["default"], matcher["changed"]) == ("False", "True", True)
    with config.patch({"post_grad_fusion_options": {"decompose_mm_pass": {}}, "use_joint_graph_passes": False}):
        listed = rows()
    assert the(listed, "post_grad", "decompose_addmm")["on"] is True
    assert not any(row["on"] for row in listed if row["stage"] == "joint_graph")


def test_without_a_corpus_nothing_is_counted(tmp_path):
    status, out, err = call("coverage", "--rules", "--stage", "joint_graph")
    assert status == 0 and "no corpus to count in" in err
    header, *lines = [line.split("\t") for line in out.splitlines()]
    assert header == ["stage", "kind", "name", "pass", "on", "fired", "refused", "source", "when"]
    assert len(lines) > 40 and {len(line) for line in lines} == {9} and {line[5] for line in lines} == {"-"}
    assert call("coverage", "--rules", "--corpus", tmp_path / "none.db")[0] == 3
    assert "nothing was seen to fire" in call("coverage", "--rules", "--never", "--stage", "partition")[2]


def test_operators_are_listed_where_their_stage_is_asked_for():
    _, everything, err = call("coverage", "--rules")
    assert "lowerings" in err and "\tlowering\t" not in everything and "config.cpp.simdlen" in everything
    _, lowerings, _ = call("coverage", "--rules", "--stage", "lowering")
    assert lowerings.count("\tlowering\t") > 200


def test_the_stages_are_those_of_the_catalogue():
    assert "one of " + ", ".join(STAGES) in call("coverage", "--rules", "--stage", "nowhere")[2]
    assert call("coverage", "--rules", "--stage", "nowhere")[0] == 2


def test_a_terminal_gets_a_table_by_stage(monkeypatch, corpus):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "140")
    status, out, _ = call("coverage", "--rules", "--stage", "joint_graph", "--corpus", corpus)
    assert status == 0
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    (row,) = [line.split() for line in plain.splitlines() if line.startswith(f"  {FIRST} ")]
    assert row[1:4] == ["yes", "3", "0"] and row[4].startswith("fx_passes/fuse_attention.py:")
    assert plain.lstrip().startswith("joint_graph") and f"counted in {corpus}" in plain
