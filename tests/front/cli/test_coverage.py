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

from fuzzcompile.analyses import coverage
from fuzzcompile.analyses import coverage as attention
from fuzzcompile.compiler import sdpa_patterns
from fuzzcompile.corpus.records import Campaign, CaseRecord, Coverage
from fuzzcompile.corpus.store import Store
from fuzzcompile.front.cli.main import main
from fuzzcompile.model.facts import find_facts

VARIANT = "_inference" if torch.__version__ >= "2.12" else ""
REPORT: dict[str, Any] = {
    "schema": 1, "verdict": "rounding", "is_bug": False, "signature": None, "culprit": None, "evidence": {},
    "torch": str(torch.__version__), "device": "cpu", "confidence": "high", "cost": {"seconds": 1.0},
}  # fmt: skip
named_by_variant = pytest.mark.skipif(torch.__version__ < "2.12", reason="this torch names patterns without variants")
only_2_13 = pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="reasons were checked in torch 2.13")
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
        store.record(None, record, {"torch": str(torch.__version__), "device": "cpu"}, REPORT, seen)
    return path


@pytest.fixture(scope="module")
def table(corpus: Path) -> dict[tuple[str, str], dict[str, Any]]:
    status, out, _ = call("coverage", "--json", "--corpus", corpus)
    assert status == 0
    content = json.loads(out)
    assert content["torch"] == str(torch.__version__)
    return {(row["stage"], row["kind"]): row for row in content["stages"]}


def test_rules_are_sorted_by_what_became_of_them(table):
    patterns = table["joint_graph", "pattern"]
    assert patterns["fired"] == [FIRST] and patterns["refused"] == [SECOND]
    assert len(patterns["never"]) > 50 and FIRST not in patterns["never"]
    states = ("fired", "refused", "fallback", "unreachable", "off", "never")
    assert all(row["known"] in (None, sum(len(row[state]) for state in states)) for row in table.values())


@only_2_13
def test_what_has_a_reason_against_it_does_not_count_as_missed(table):
    freezing = table["freezing", "pattern"]
    assert len(freezing["off"]) + len(freezing["unreachable"]) == freezing["known"] > 5
    assert freezing["share"] == 0 and freezing["unreachable"]["mkldnn_rnn_layer"]["why"].endswith(".")
    patterns = table["joint_graph", "pattern"]
    assert patterns["share"] == pytest.approx(1 / (patterns["known"] - len(patterns["unreachable"])))


@only_2_13
def test_what_was_reached_needs_no_reason(corpus, tmp_path):
    """A reason that a corpus refutes is not held against it."""
    name = "unfuse_bias_add_to_pointwise"
    path = tmp_path / "corpus.db"
    path.write_bytes(corpus.read_bytes())
    seen = [Coverage("post_grad", "pass_pattern_2", name, "fired", 1)]
    with Store.open(path) as store:
        record = CaseRecord(hashlib.sha256(b"y").hexdigest(), "y", origin="file")
        store.record(None, record, {"torch": str(torch.__version__), "device": "cpu"}, REPORT, seen)
    content = [json.loads(call("coverage", "--json", "--corpus", location)[1]) for location in (corpus, path)]
    before, after = (
        {(row["stage"], row["kind"]): row for row in table["stages"]}["post_grad", "pattern"] for table in content
    )
    assert name in before["unreachable"] and name not in before["fired"]
    assert name in after["fired"] and name not in after["unreachable"]
    assert content[1]["rules"]["fired"] == content[0]["rules"]["fired"] + 2  # the rule and its table
    assert content[1]["rules"]["unreachable"] == content[0]["rules"]["unreachable"] - 1


def test_both_shares_are_given(corpus):
    content = json.loads(call("coverage", "--json", "--corpus", corpus)[1])
    rules = content["rules"]
    assert rules["share_of_known"] == pytest.approx(rules["fired"] / rules["known"])
    _, out, _ = call("coverage", "--corpus", corpus)
    raw = f"{rules['fired']} fired of {rules['known']} that are registered ({100 * rules['share_of_known']:.1f} %)"
    (line,) = [line for line in out.splitlines() if line.startswith("Rewrite rules and passes: ")]
    assert raw in line
    if content["note"] is None:
        assert rules["share"] == pytest.approx(rules["fired"] / (rules["known"] - rules["unreachable"]))
        assert f"of {rules['known'] - rules['unreachable']} that can be reached ({100 * rules['share']:.1f} %)" in line


@pytest.mark.parametrize("version", ["2.11.0", "2.14.0", "2.16.0"])
def test_on_a_torch_without_checked_reasons_only_the_raw_share_is_given(corpus, tmp_path, monkeypatch, version):
    monkeypatch.setattr(coverage, "facts", lambda: find_facts(version))
    report = tmp_path / "coverage.md"
    status, out, _ = call("coverage", "--json", "--corpus", corpus, "--report", report)
    content = json.loads(out)
    rules = content["rules"]
    assert status == 0 and rules["unreachable"] is None and rules["share"] is None and rules["share_of_known"] > 0
    assert not any(row["unreachable"] for row in content["stages"])
    assert version in content["note"] and "not checked" in content["note"]
    _, out, _ = call("coverage", "--corpus", corpus)
    assert content["note"] in out and "that can be reached" not in out
    assert content["note"] in report.read_text() and "of all that is registered" in report.read_text()


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
        "stage", "kind", "known", "fired", "refused only", "called only", "unreachable", "off", "never", "reached",
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


@pytest.fixture
def three_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling all SDPA patterns takes a minute: two that can fire, and one that cannot."""
    by_name = {variant.name: variant for variant in sdpa_patterns.read_variants(torch.device("cpu"))}
    names = [f"_sfdp_pattern_{name}_inference" for name in ("1", "3", "5")]
    monkeypatch.setattr(attention, "read_variants", lambda device: [by_name[name] for name in names])


@named_by_variant
def test_attention_tells_what_can_fire_and_what_did(corpus, three_variants):
    status, out, err = call("coverage", "--json", "--attention", "--corpus", corpus)
    assert status == 0 and "SDPA patterns: 1 of" not in err  # no line of progress where there is no terminal
    content = json.loads(out)["attention"]
    assert content["can_fire"] == [FIRST, "_sfdp_pattern_5_inference"]
    assert content["fired"] == [FIRST] and content["never"] == ["_sfdp_pattern_5_inference"] and content["share"] == 0.5
    assert len(content["registered"]) > 50 and SECOND in content["silent"]
    status, out, _ = call("coverage", "--attention", "--corpus", corpus)
    assert "2 can fire here, 1 of these fired (50 %)" in out
    assert "SDPA patterns that can fire here and never did: _sfdp_pattern_5_inference" in out.splitlines()


def test_a_torch_without_a_list_of_sdpa_patterns_still_gets_its_table(corpus, monkeypatch):
    monkeypatch.delattr("torch._inductor.fx_passes.fuse_attention._get_sfdp_patterns")
    status, out, err = call("coverage", "--attention", "--corpus", corpus)
    assert status == 3 and out.startswith("stage\t")
    assert [line for line in err.splitlines() if "not known" in line and line.startswith("fuzzcompile: ")]


def test_the_report_is_written_as_markdown(corpus, tmp_path, three_variants):
    path = tmp_path / "reports" / "coverage.md"
    status, _, _ = call("coverage", "--attention", "--report", path, "--corpus", corpus)
    assert status == 0
    page = path.read_text()
    assert page.startswith(f"# Coverage on torch {torch.__version__}\n") and str(tmp_path) not in page
    (row,) = [line for line in page.split("## SDPA")[0].splitlines() if line.startswith("| joint_graph | pattern |")]
    assert row.split(" | ")[3] == "1"
    assert "of all that is registered" in page
    assert f"matched and always refused by its own check: `{SECOND}`" in page
    assert "the user's own pass" in page and "`joint_custom_pre_pass`" in page


def test_the_report_names_the_campaigns_and_the_window(corpus, tmp_path):
    path = tmp_path / "coverage.md"
    assert call("coverage", "--within", "30m", "--report", path, "--corpus", corpus)[0] == 0
    page = path.read_text()
    assert "What 0 cases reached that campaigns judged in their first 30:00 together" in page
    assert "Not asked for" in page


def test_within_leaves_out_what_no_campaign_judged(corpus):
    """The corpus of these tests holds a case that was judged outside of any campaign."""
    content = json.loads(call("coverage", "--json", "--within", "1h", "--corpus", corpus)[1])
    assert content["counted"]["cases"] == 0 and content["rules"]["fired"] == 0
    assert json.loads(call("coverage", "--json", "--corpus", corpus)[1])["counted"]["cases"] == 1


@pytest.mark.parametrize("within", ["soon", "200c", "0m"])
def test_a_wrong_time_is_said_in_one_sentence(corpus, within):
    status, out, err = call("coverage", "--within", within, "--corpus", corpus)
    assert (status, out) == (2, "") and within in err and len(err.splitlines()) == 1


def test_a_report_that_cannot_be_written_is_said_in_one_sentence(corpus, tmp_path):
    (tmp_path / "file").write_text("")
    status, _, err = call("coverage", "--report", tmp_path / "file" / "coverage.md", "--corpus", corpus)
    assert status == 2 and "Cannot write" in err and len(err.splitlines()) == 1


REACHING = """
import torch

def make():
    torch.manual_seed(0)
    return {program}, (torch.randn(3, 4),)
"""


@pytest.mark.slow
def test_code_is_reached_by_the_programs_that_need_it(tmp_path):
    shares = []
    for programs in (["torch.sin"], ["torch.sin", "lambda x: torch.stft(x, 4, return_complex=True).abs().cumsum(-1)"]):
        path, environment = tmp_path / f"{len(programs)}.db", {"torch": str(torch.__version__), "device": "cpu"}
        with Store.open(path) as store:
            campaign = store.start_campaign(Campaign(0, {}, "run", "1", environment))
            for program in programs:
                source = REACHING.format(program=program)
                record = CaseRecord(hashlib.sha256(source.encode()).hexdigest(), source, origin="generated")
                store.record(campaign, record, environment, REPORT)
        report = tmp_path / "coverage.md"
        asked = ("--code", "60s", "--device", "cpu", "--report", report)
        status, out, _ = call("coverage", "--json", "--corpus", path, *asked)
        assert status == 0
        code = json.loads(out)["code"]
        assert (code["cases"], code["failed"]) == (len(programs), 0)
        assert f"are reached by {len(programs)} of {len(programs)} cases." in report.read_text()
        shares.append({row["stage"]: row["share"] for row in code["stages"]})
    assert all(1 > shares[1][stage] > shares[0][stage] > 0 for stage in ("dynamo", "lowering", "decomposition"))
