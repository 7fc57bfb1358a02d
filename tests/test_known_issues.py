"""Public issues of pytorch/pytorch get the verdict and the culprit that are right on torch 2.13."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

KNOWN = Path(__file__).parent / "known_issues"
CASES = sorted(KNOWN.glob("issue_*.py"))
# case: (stage, rewrite without variant, other rewrites that are needed too)
CULPRITS = {
    "issue_195320": ("joint_graph", "_sfdp_pattern_28_inference", []),
    "issue_196468": ("joint_graph", "_sfdp_pattern_1_inference", None),
    "issue_191203b": ("joint_graph", "_sfdp_pattern_5_inference", []),
    "issue_189518": ("post_grad", "pointless_cumsum_replacement", []),
    "issue_193265": ("post_grad", "pointless_cumsum_replacement", []),
    "issue_197829": ("post_grad", "reinplace_inplaceable_ops", ["remove_noop_ops"]),
    "issue_188084": ("post_grad", "reinplace_inplaceable_ops", []),
}
UPSTREAM = {
    "issue_195422": "functionalization",
    "issue_195579": "decomposition",
    "issue_198343b": "decomposition",
    "issue_191499": "lowering",
}
pytestmark = pytest.mark.skipif(
    not torch.__version__.startswith("2.13"), reason="the expected verdicts are those of torch 2.13"
)


def expected(path: Path) -> tuple[str, ...]:
    """The verdicts that the case file says are right."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "EXPECT":
            return tuple(ast.literal_eval(node.value))
    raise AssertionError(f"{path} has no EXPECT")


def test_all_seventeen_are_here():
    assert len(CASES) == 17


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_verdict(path, triaged):
    report = triaged(path)
    assert report["verdict"] in expected(path), report["detail"]
    assert report["is_bug"] == (report["culprit"] is not None) == (report["signature"] is not None)


@pytest.mark.parametrize("name", CULPRITS)
def test_culprit_is_named_and_proved(name, triaged):
    stage, rewrite, contributors = CULPRITS[name]
    report = triaged(KNOWN / f"{name}.py")
    culprit = report["culprit"]
    assert (culprit["stage"], culprit["rewrite"], culprit["necessary"]) == (stage, rewrite, True)
    assert culprit["source"].startswith("torch/_inductor/fx_passes/") and culprit["line"] > 0
    assert report["confidence"] == "high"
    if contributors is not None:
        assert [other["rewrite"] for other in report["contributors"]] == contributors


def test_a_sibling_that_takes_the_place_of_a_vetoed_pattern_is_vetoed_too(triaged):
    report = triaged(KNOWN / "issue_196468.py")
    repaired = {ablation["toggle"]: ablation["repairs"] for ablation in report["ablations"]}
    assert repaired["veto _sfdp_pattern_1 (graphs interpreted)"] is False
    assert repaired["veto _sfdp_pattern_1, _sfdp_pattern_3"] is True
    assert report["signature"] == "joint_graph:torch/_inductor/fx_passes/fuse_attention.py:sfdp"


@pytest.mark.parametrize("name", UPSTREAM)
def test_what_lies_beyond_graph_passes_is_of_low_confidence(name, triaged):
    report = triaged(KNOWN / f"{name}.py")
    assert report["culprit"]["stage"] == UPSTREAM[name]
    assert report["confidence"] == "low"


def test_the_pass_that_two_reports_blamed_did_not_run(triaged):
    for name in ("issue_179575", "issue_179578"):
        report = triaged(KNOWN / f"{name}.py")
        changed = {rewrite["rewrite"] for rewrite in report["changed_bits"]}
        assert changed and "replace_einsum_to_pointwise" not in changed
