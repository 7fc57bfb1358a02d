"""The words to search for are those of the culprit, the user's operators and the symptom."""

from __future__ import annotations

import pytest

from fuzzcompile.report.github_search import MOST_QUERIES, extract_terms, make_queries

PROGRAM = """
import torch
import torch.nn.functional as F

def program(x, w):
    pooled = F.avg_pool2d(x, 2, ceil_mode=True)
    return torch.logcumsumexp(pooled.view(-1) + w, dim=0)

def make():
    return program, (torch.randn(1, 1, 4, 4), torch.linspace(0, 1, 4))

if __name__ == "__main__":
    torch.testing.assert_close(1, 1)
"""


def report(verdict="miscompile", detail="", outputs=(), cause=None, **culprit):
    return {
        "verdict": verdict,
        "is_bug": True,
        "detail": detail,
        "torch": "0.0",
        "evidence": {"outputs": list(outputs)},
        "culprit": culprit or None,
        "cause": cause,
    }


def test_a_program_without_a_culprit_gives_its_operators_and_their_keywords():
    terms = extract_terms(report(), PROGRAM)
    assert terms.operators == ("avg_pool2d", "logcumsumexp", "add")
    assert (terms.owner, terms.arguments) == ("avg_pool2d", ("ceil_mode", "dim"))
    assert "linspace" not in str(terms) and "assert_close" not in str(terms)


def test_the_lines_that_a_rewrite_matched_go_before_the_rest_of_the_program():
    matched = {"matched": [{"code": "return torch.logcumsumexp(pooled.view(-1) + w, dim=0)"}]}
    culprit = {"stage": "joint_graph", "rewrite": "_fuse_scan_7_inference", "pass": "pass_pattern_3", "family": "scans"}
    terms = extract_terms(report(**culprit, source="torch/_inductor/fx_passes/scan_rules.py", details=matched), PROGRAM)
    assert terms.names == ("_fuse_scan_7", "scans")
    assert terms.places == ("scan_rules",)
    assert terms.operators == ("logcumsumexp", "add") and terms.arguments == ("dim",)


def test_the_rule_of_an_operator_names_the_operator_and_no_rewrite():
    culprit = {"stage": "decomposition", "rewrite": "aten._softshrink_backward.grad", "family": "softshrink_backward"}
    terms = extract_terms(report("wrong_gradient", **culprit, source="torch/_decomp/decompositions.py"), PROGRAM)
    assert terms.operators[0] == "softshrink_backward" and not terms.names and not terms.places
    assert "softshrink_backward gradient decomposition" in make_queries(terms)


def test_a_rewrite_that_is_called_after_an_operator_of_its_graph_stands_for_the_operator():
    diff = {"diff": "+baddbmm_1: f32[2] = aten.baddbmm.default(a, b)"}
    terms = extract_terms(report(stage="post_grad", rewrite="baddbmm", family="baddbmm", details=diff), PROGRAM)
    assert terms.operators[0] == "baddbmm" and not terms.names


def test_the_operator_whose_name_a_pass_holds_goes_first():
    culprit = {
        "stage": "pre_grad",
        "rewrite": "BatchLogCumSumExpFusion",
        "pass": "group_passes",
        "family": "BatchFusion",
    }
    assert extract_terms(report(**culprit), PROGRAM).operators[0] == "logcumsumexp"


def test_the_cause_names_the_operator_and_argument():
    terms = extract_terms(report(cause={"fingerprint": "logcumsumexp(dim)"}), PROGRAM)
    assert terms.operators[0] == terms.owner == "logcumsumexp" and terms.arguments[0] == "dim"
    assert "logcumsumexp dim inductor" in make_queries(terms)


@pytest.mark.parametrize(
    ("detail", "errors"),
    [
        ("eager raises RuntimeError: Expected a 'mean' of 7 elements per batch; compiled runs",
         ("RuntimeError", "elements per batch")),
        ("BackendCompilerFailed: LoweringException: AssertionError: cannot fold a strided view, got (3, 4)",
         ("AssertionError", "cannot fold a strided view")),
        ("CppCompileError: C++ compile error", ("CppCompileError",)),
        ("no exception at all", ()),
    ],
)  # fmt: skip
def test_of_an_error_the_type_and_the_steady_words_count(detail, errors):
    assert extract_terms(report("compile_error", detail), PROGRAM).errors == errors


def test_symptoms_of_metadata_are_those_of_the_output():
    wrong = [{"finding": "same"}, {"finding": "dtype"}]
    assert extract_terms(report("metadata", outputs=wrong), PROGRAM).symptoms[0] == "dtype"
    assert extract_terms(report("crash"), PROGRAM).symptoms[0] == "segfault"


def test_queries_are_few_short_and_distinct():
    names = {"rewrite": "a" * 200, "siblings": ["b" * 200], "family": "c"}
    for verdict in ("miscompile", "accepts_invalid", "metadata", "timeout"):
        said = report(verdict, "eager raises ValueError: one two three four", stage="pre_grad", **names)
        queries = make_queries(extract_terms(said, PROGRAM))
        assert 0 < len(queries) == len(set(queries)) <= MOST_QUERIES
        assert all(len(query) <= 256 for query in queries)


def test_the_base_classes_of_a_pass_of_this_torch_are_searched_too(tmp_path, monkeypatch):
    folder = tmp_path / "torch-9.9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9\n")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/passes.py").write_text("class Shared: ...\nclass HoistNorms(Shared, dict): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    said = report(stage="post_grad", rewrite="HoistNorms", source="torch/passes.py")
    assert extract_terms({**said, "torch": "9.9"}, PROGRAM).names == ("HoistNorms", "Shared")
    assert extract_terms({**said, "torch": "9.8"}, PROGRAM).names == ("HoistNorms",)
