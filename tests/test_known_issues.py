"""Public issues of pytorch/pytorch get the verdict and the culprit that are right on the installed torch.

The case files say what is right on torch 2.13 (``EXPECT``), ``ELSEWHERE`` what differs on the others that are tried: a
bug that is not there yet, or is mended, must come out as benign.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from fuzzcompile.compiler.watch.rule_labels import get_base_name

KNOWN = Path(__file__).parent / "known_issues"
CASES = sorted(KNOWN.glob("issue_*.py"))
BENIGN = ("equal", "rounding")
TORCH = ".".join(torch.__version__.split(".")[:2])
# torch: {case: verdicts that are right there}
ELSEWHERE: dict[str, dict[str, tuple[str, ...]]] = {
    "2.11": {
        "issue_185337": ("rounding", "precision_casts"),
        "issue_191203b": ("miscompile",),
        "issue_195320": BENIGN,
        "issue_198343b": BENIGN,
    },
    "2.13": {},
    "2.15": {
        "issue_188084": BENIGN,
        "issue_189518": BENIGN,
        "issue_191203b": BENIGN,
        "issue_193265": BENIGN,
        "issue_195320": BENIGN,
        "issue_195422": BENIGN,
        "issue_195579": ("invalid",),
        "issue_196468": BENIGN,
        "issue_197829": ("aliasing", "miscompile"),
    },
}
# case: (stage, rewrite with its variant if it has one, other rewrites that are needed too; None where versions differ)
CULPRITS = {
    "issue_195320": ("joint_graph", "_sfdp_pattern_28_inference", []),
    "issue_196468": ("joint_graph", "_sfdp_pattern_1_inference", None),
    "issue_191203b": ("joint_graph", "_sfdp_pattern_5_inference", []),
    "issue_189518": ("post_grad", "pointless_cumsum_replacement", []),
    "issue_193265": ("post_grad", "pointless_cumsum_replacement", []),
    "issue_197829": ("post_grad", "reinplace_inplaceable_ops", ["remove_noop_ops"]),
    "issue_188084": ("post_grad", "reinplace_inplaceable_ops", []),
}
# case: (stage, family) of what lies before or behind the graph passes
BEYOND = {
    "issue_195422": ("decomposition", "dropout"),
    "issue_195579": ("decomposition", "addmm"),
    "issue_198343b": ("decomposition", "lerp"),
    "issue_191499": ("codegen", "reduction:min"),
}
pytestmark = pytest.mark.skipif(TORCH not in ELSEWHERE, reason=f"nobody has looked at these issues on torch {TORCH}")


def expected(path: Path) -> tuple[str, ...]:
    """The verdicts that are right on this torch."""
    if path.stem in ELSEWHERE[TORCH]:
        return ELSEWHERE[TORCH][path.stem]
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
    assert report["wrong"] in (None, "compiled"), report["detail"]


def bugs_here(names):
    """Those of the issues that are bugs of this torch."""
    return [name for name in names if not {"invalid", *BENIGN} & set(expected(KNOWN / f"{name}.py"))]


@pytest.mark.parametrize("name", bugs_here(CULPRITS) if TORCH in ELSEWHERE else ())
def test_culprit_is_named_and_proved(name, triaged):
    stage, rewrite, contributors = CULPRITS[name]
    report = triaged(KNOWN / f"{name}.py")
    culprit = report["culprit"]
    if TORCH == "2.11":  # patterns have no names there: they go by their search functions, which their variants share
        rewrite = get_base_name(rewrite)
    assert (culprit["stage"], culprit["rewrite"], culprit["necessary"]) == (stage, rewrite, True)
    assert culprit["source"].startswith("torch/_inductor/fx_passes/") and culprit["line"] > 0
    assert report["confidence"] == "high"
    if contributors is not None and TORCH == "2.13":
        assert [other["rewrite"] for other in report["contributors"]] == contributors


@pytest.mark.skipif(TORCH == "2.15", reason="mended there")
def test_a_sibling_that_takes_the_place_of_a_vetoed_pattern_is_vetoed_too(triaged):
    report = triaged(KNOWN / "issue_196468.py")
    repaired = {ablation["toggle"]: ablation["repairs"] for ablation in report["ablations"]}
    alone = "veto _sfdp_pattern_1"
    assert [repaired.get(f"{alone} (graphs interpreted)"), repaired.get(alone)].count(False) >= 1
    assert repaired["veto _sfdp_pattern_1, _sfdp_pattern_3"] is True
    assert report["signature"] == "joint_graph:torch/_inductor/fx_passes/fuse_attention.py:sfdp"


@pytest.mark.parametrize("name", bugs_here(BEYOND) if TORCH in ELSEWHERE else ())
def test_what_lies_beyond_graph_passes_is_named_and_proved(name, triaged):
    report = triaged(KNOWN / f"{name}.py")
    culprit = report["culprit"]
    assert (culprit["stage"], culprit["family"], culprit["necessary"]) == (*BEYOND[name], True)
    assert report["confidence"] == "high"


def test_the_pass_that_two_reports_blamed_did_not_run(triaged):
    for name in ("issue_179575", "issue_179578"):
        report = triaged(KNOWN / f"{name}.py")
        changed = {rewrite["rewrite"] for rewrite in report["changed_bits"]}
        assert changed and "replace_einsum_to_pointwise" not in changed
