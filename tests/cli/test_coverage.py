"""``fuzzcompile coverage``: what was reached of what the installed torch registers."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fuzzcompile.cli import main
from fuzzcompile.corpus import CaseRecord, Coverage, Store

VARIANT = "_inference" if torch.__version__ >= "2.12" else ""
FIRST, SECOND = (f"_sfdp_pattern_{number}{VARIANT}" for number in (1, 2))


def call(*arguments: object) -> tuple[int, str, str]:
    """Exit status, standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ending:
        main([str(argument) for argument in arguments])
    return int(ending.value.code or 0), out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus with something of each stage."""
    path = tmp_path_factory.mktemp("coverage") / "corpus.db"
    report = {"schema": 1, "verdict": "rounding", "is_bug": False, "signature": None, "culprit": None, "evidence": {}}
    report |= {"torch": str(torch.__version__), "device": "cpu", "confidence": "high", "cost": {"seconds": 1.0}}
    seen = [
        Coverage("joint_graph", "pass_pattern_0", FIRST, "fired", 3),
        Coverage("joint_graph", "pass_pattern_0", FIRST, "refused", 3),
        Coverage("joint_graph", "pass_pattern_0", SECOND, "refused", 5),
        Coverage("decomposition", "", "aten.gelu.default", "fired", 2),
        Coverage("lowering", "", "aten.mul.Tensor", "fired", 2),
        Coverage("lowering", "", "aten.convolution_backward.default", "fallback", 2),
        Coverage("scheduler", "", "Pointwise*2", "fired", 2),
    ]
    with Store.open(path) as store:
        record = CaseRecord(hashlib.sha256(b"x").hexdigest(), "x", origin="file")
        store.record(None, record, {"torch": str(torch.__version__), "device": "cpu"}, report, seen)
    return path


@pytest.fixture(scope="module")
def table(corpus: Path) -> dict[tuple[str, str], dict[str, Any]]:
    status, out, _ = call("coverage", "--json", "--corpus", corpus)
    assert status == 0
    told = json.loads(out)
    assert told["torch"] == str(torch.__version__)
    return {(row["stage"], row["kind"]): row for row in told["stages"]}


def test_rules_are_sorted_by_what_became_of_them(table):
    patterns = table["joint_graph", "pattern"]
    assert patterns["fired"] == [FIRST] and patterns["refused"] == [SECOND]
    assert len(patterns["never"]) > 50 and FIRST not in patterns["never"]
    states = ("fired", "refused", "fallback", "off", "never")
    assert all(row["known"] in (None, sum(len(row[state]) for state in states)) for row in table.values())


def test_what_is_off_by_default_does_not_count_as_missed(table):
    freezing = table["freezing", "pattern"]
    assert freezing["share"] is None and len(freezing["off"]) == freezing["known"] > 5
    patterns = table["joint_graph", "pattern"]
    assert patterns["share"] == pytest.approx(1 / (patterns["known"] - len(patterns["off"])))


def test_operators_and_kernels(table):
    assert table["decomposition", "decomposition"]["fired"] == ["aten.gelu.default"]
    lowering = table["lowering", "lowering"]
    assert lowering["fired"] == ["aten.mul.Tensor"] and len(lowering["never"]) > 500
    assert lowering["fallback"] == ["aten.convolution_backward.default"]
    assert table["scheduler", "kernel"]["fired"] == ["Pointwise*2"]
    assert table["scheduler", "kernel"]["known"] is None


def test_the_table_for_people(corpus):
    status, out, err = call("coverage", "--corpus", corpus)
    assert status == 0 and str(corpus) in err
    lines = out.splitlines()
    assert lines[0].split("\t") == [
        "stage", "kind", "known", "fired", "refused only", "called only", "off", "never", "reached",
    ]  # fmt: skip
    (row,) = [line.split("\t") for line in lines if line.startswith("decomposition\t")]
    assert row[3] == "1" and row[-1] == "0 %"
    assert f"joint_graph, pattern, refused only: {SECOND}" in lines
    assert not any("aten.mul.Tensor" in line for line in lines)
    assert "aten.mul.Tensor" in call("coverage", "--corpus", corpus, "--stage", "lowering")[1]


def test_wrong_use_is_said_in_one_sentence(corpus, tmp_path):
    status, out, err = call("coverage", "--corpus", corpus, "--stage", "nowhere")
    assert (status, out) == (2, "") and "joint_graph" in err and len(err.splitlines()) == 1
    status, out, err = call("coverage", "--corpus", tmp_path / "none.db")
    assert status != 0 and "fuzzcompile run" in err and len(err.splitlines()) == 1
