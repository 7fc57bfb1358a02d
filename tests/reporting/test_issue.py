"""Issue drafts: they say what the facts hold, and nothing else."""

from __future__ import annotations

import copy

import pytest
from triage_reports import output, report

from fuzzcompile.reporting.facts import IssueFacts
from fuzzcompile.reporting.issue import draft_issue
from fuzzcompile.reporting.privacy import scrub

REPORT = {
    "schema": 1,
    "case": "case_7",
    "torch": "2.13.0+cpu",
    "device": "cpu",
    "verdict": "miscompile",
    "is_bug": True,
    "confidence": "high",
    "detail": "",
    "evidence": {
        "outputs": [
            {
                "name": "out1",
                "finding": "same",
                "max_abs_error_eager": 0.0,
                "max_abs_error_compiled": 0.0,
                "error_ratio": None,
                "noise_floor": 0.0,
                "scale": 1.0,
                "within_default_tolerance": True,
                "torch_same": True,
            },
            {
                "name": "out0",
                "finding": "far",
                "max_abs_error_eager": 1.75e-07,
                "max_abs_error_compiled": 0.713,
                "error_ratio": 4068291.28,
                "noise_floor": 3.58e-07,
                "scale": 0.47,
                "within_default_tolerance": False,
                "torch_same": False,
            },
        ],
        "eager_deterministic": True,
        "float64_step": 1.14,
    },
    "culprit": {
        "stage": "joint_graph",
        "pass": "pass_pattern_0",
        "rewrite": "_sfdp_pattern_28_inference",
        "nodes": ["bmm"],
        "source": "torch/_inductor/fx_passes/fuse_attention.py",
        "line": 66,
        "family": "sfdp",
        "site": "case.py:14 #1",
        "step": 1.14,
        "necessary": True,
        "sufficient": False,
    },
    "contributors": [
        {
            "stage": "joint_graph",
            "rewrite": "remove_noop_ops",
            "source": "torch/_inductor/fx_passes/post_grad.py",
            "line": 1225,
        }
    ],
    "changed_bits": [],
    "ablations": [{"toggle": "veto _sfdp_pattern_28", "repairs": True, "error": 1.75e-07}],
    "workaround": {"pattern_matcher": False},
    "signature": "joint_graph:torch/_inductor/fx_passes/fuse_attention.py:sfdp",
    "cost": {"compiles": 3, "replays": 9, "seconds": 4.2},
}
ENVIRONMENT = {
    "torch": "2.13.0+cpu",
    "torch_git": "cf30153c",
    "device": "cpu",
    "cuda": None,
    "driver": None,
    "cxx": "g++ 12.2.0",
    "cpu": "A CPU",
    "python": "3.11.7",
    "platform": "Linux x86_64",
    "hostname": "secret-host",
}
REPRODUCER = "import torch\ntorch.manual_seed(0)\n"


def draft(report=REPORT, reproducer=REPRODUCER, environment=ENVIRONMENT, first_seen="2026-01-02", hits=3, **more):
    more.setdefault("confirmed", True)
    return draft_issue(IssueFacts(report, reproducer, environment, first_seen, hits, **more))


def changed(**fields):
    return {**copy.deepcopy(REPORT), **fields}


def test_the_draft_of_a_proved_miscompile_holds_all_that_pytorch_asks_for():
    text = draft()
    for part in (
        "# [inductor] _sfdp_pattern_28_inference: wrong result (cpu)",
        "### 🐛 Describe the bug",
        "`out0` is 0.713 away from the float64 result when compiled and 1.75e-07 in eager",
        "```python\nimport torch\ntorch.manual_seed(0)\n```",
        "| out0 | 1.75e-07 | 0.713 | 4.07e+06 | 3.58e-07 | fail | far |",
        "| out1 | 0 | 0 | – | 0 | pass | same |",
        "`torch/_inductor/fx_passes/fuse_attention.py:66`",
        "- User code: `case.py:14 #1`",
        "- Step in replay, relative to the size of the result: 1.14",
        "- Necessary (gone without it): yes",
        "- Sufficient (stays with it alone): no",
        "Also needed for the bug: `remove_noop_ops`",
        "| veto _sfdp_pattern_28 | yes | 1.75e-07 |",
        "pattern_matcher = False",
        "### Versions",
        "PyTorch commit: cf30153c",
        "C++ compiler: g++ 12.2.0",
        "- [x] Default tolerances: outside",
        "- [x] Compiled is farther from float64 than eager: 0.713 against 1.75e-07",
        "- [x] Minimal reproducer: 2 lines, run alone: exit status 1",
        "`topic: fuzzer`",
        "first on 2026-01-02, 3 times so far; the reproducer was confirmed in a clean process.",
    ):
        assert part in text, part
    assert text.index("| out0 |") < text.index("| out1 |")


def test_what_is_null_is_not_run_or_not_there():
    culprit = {
        **REPORT["culprit"],
        "necessary": None,
        "sufficient": None,
        "step": None,
        "site": None,
        "pass": None,
    }
    text = draft(changed(culprit=culprit, workaround=None, contributors=[], ablations=[]))
    assert "Necessary (gone without it): not run" in text
    assert "Sufficient (stays with it alone): not run" in text
    assert "This is a suspect, not a proof" in text
    assert "- [ ] Ablation: none was run" in text
    for absent in (
        "None",
        "null",
        "Workaround",
        "User code",
        "Step in",
        "Pass:",
        "**Ablation**",
        "CUDA",
        "Driver",
    ):
        assert absent not in text, absent


def test_a_suspect_that_is_not_proved_is_not_in_the_title():
    culprit = {**REPORT["culprit"], "necessary": False}
    assert draft(changed(culprit=culprit)).startswith("# [torch.compile] wrong result (cpu)\n")
    assert "_sfdp" not in draft(changed(confidence="low")).splitlines()[0]


def test_an_unattributed_finding_of_low_confidence_says_so():
    text = draft(changed(culprit=None, confidence="low"))
    assert "could not be attributed" in text
    assert "confidence in this is low" in text
    assert "_sfdp_pattern_28_inference" not in text


def test_confirmation_is_claimed_only_where_it_happened():
    text = draft(confirmed=False)
    assert "not confirmed in a clean process" in text
    assert "was confirmed" not in text
    assert "- [ ] Minimal reproducer" in text and "Not fit to be filed as it is" in text


def test_a_case_that_no_campaign_found_is_not_called_found_by_a_fuzzer():
    assert "Found by a fuzzer" not in draft(first_seen=None, hits=0)


def test_without_a_reproducer_there_is_none():
    text = draft(reproducer=None, confirmed=False)
    assert "There is none yet." in text and "```python" not in text


@pytest.mark.parametrize("verdict", ["equal", "rounding", "unstable", "precision_casts", "invalid"])
def test_what_is_no_bug_is_not_filed(verdict):
    text = draft(changed(verdict=verdict, is_bug=False, culprit=None))
    assert text.startswith("# Nothing to file\n")
    assert f"`{verdict}`" in text
    assert "###" not in text and "topic: fuzzer" not in text


def test_an_error_is_told_by_its_message_without_the_machines_paths():
    installed = "/home/someone/venv/lib/python3.11/site-packages/torch/x.py"
    detail = f"IndexError: bad index in {installed} and /tmp/someone/k.cpp"
    text = draft(changed(verdict="compile_error", detail=detail, evidence={"outputs": []}), output=detail)
    assert "raises: `IndexError: bad index in torch/x.py and k.cpp`" in text
    assert "error while compiling" in text.splitlines()[0]
    assert "someone" not in text and "Errors by output" not in text
    assert "Default tolerances" not in text


def test_metadata_is_told_by_what_differs():
    entry = {"name": "out0", "finding": "dtype", "detail": "eager torch.bfloat16, compiled torch.int64"}
    text = draft(changed(verdict="metadata", evidence={"outputs": [entry]}))
    assert "wrong dtype" in text.splitlines()[0]
    assert "`out0`: eager torch.bfloat16, compiled torch.int64" in text
    assert "| out0 | – | – | – | – | – | dtype eager torch.bfloat16" in text


def test_an_alias_is_told_by_what_shares_memory_in_which_run():
    gained = output(
        finding="alias",
        max_abs_error_eager=0.0,
        max_abs_error_compiled=0.0,
        detail="eager: out0 is a copy; compiled: shares memory with input0",
    )
    text = draft(report("aliasing", gained, output("out1", finding="same"), culprit=None))
    assert "result shares memory that eager does not share" in text.splitlines()[0]
    assert (
        "eager and compiled return the same values in different memory. "
        "`out0`: eager: out0 is a copy; compiled: shares memory with input0."
    ) in text
    assert "| out0 | – | – | – | – | – | alias eager: out0 is a copy; compiled: shares memory with input0 |" in text
    assert "Default tolerances" not in text and "Higher-precision baseline" not in text


def test_a_lost_mutation_beside_an_alias_is_still_a_mutation():
    shared = output(finding="alias", detail="eager: out0 shares memory with input0; compiled: a copy")
    lost = output("input0 after the call", finding="missing", detail="only eager has it")
    assert "wrong mutation or aliasing" in draft(report("aliasing", shared, lost)).splitlines()[0]


def test_infinite_errors_are_named():
    entry = {**REPORT["evidence"]["outputs"][1], "max_abs_error_compiled": None, "non_finite": "inf"}
    entry["finding"] = "nonfinite"
    text = draft(changed(verdict="nonfinite", evidence={"outputs": [entry]}))
    assert "`out0` is inf away from the float64 result" in text
    assert "- [x] Compiled is farther" in text


def test_a_broken_rule_is_shown():
    entry = {
        **REPORT["evidence"]["outputs"][1],
        "max_abs_error_compiled": 1e-8,
        "within_default_tolerance": True,
    }
    text = draft(changed(evidence={"outputs": [entry]}))
    assert "- [ ] Default tolerances: within" in text
    assert "- [ ] Compiled is farther from float64 than eager" in text
    assert "Not fit to be filed as it is" in text


def test_integer_outputs_ask_whether_they_are_indices():
    entry = {"name": "out0", "finding": "integer", "at": {"eager": 3, "compiled": 0}, "where": [1]}
    text = draft(changed(evidence={"outputs": [entry]}))
    assert "`out0`: eager 3, compiled 0 at index [1]" in text
    assert "- [ ] No comparison of indices" in text


def test_gradients_do_not_hide_a_wrong_output():
    worse = {**REPORT["evidence"]["outputs"][1], "name": "gradient of input0", "max_abs_error_compiled": 9.0}
    text = draft(changed(evidence={"outputs": [worse, REPORT["evidence"]["outputs"][1]]}))
    assert "`out0` is 0.713 away" in text


def test_an_environment_and_a_report_may_be_partial():
    text = draft({"verdict": "miscompile"}, None, {}, None, 0, confirmed=False)
    assert "version not recorded" in text and "not recorded\n```" in text
    assert "- [ ] Device and version stated: not recorded" in text


def test_only_known_keys_of_the_environment_leave_the_machine():
    assert "secret-host" not in draft()


def test_long_tables_are_cut_and_say_so():
    entries = [{**REPORT["evidence"]["outputs"][1], "name": f"out{n}"} for n in range(20)]
    text = draft(changed(evidence={"outputs": entries}))
    assert "8 more outputs are left out." in text


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("in /home/me/x/site-packages/torch/a.py:3", "in torch/a.py:3"),
        ('File "/tmp/me/repro.py", line 3', 'File "repro.py", line 3'),
        ("~/cache/k.so", "k.so"),
        ("torch/_inductor/a.py and 1/2", "torch/_inductor/a.py and 1/2"),
        ("https://pytorch.org/docs/x", "https://pytorch.org/docs/x"),
    ],
)
def test_absolute_paths_are_cut(text, clean):
    assert scrub(text) == clean


def test_the_graph_before_and_after_is_in_the_draft():
    diff = "@@ -1 +1 @@\n-a: f32[2] = aten.sin.default(x)\n+b: f32[2] = aten.cos.default(/home/me/x.py)"
    text = draft(changed(culprit={**REPORT["culprit"], "details": {"diff": diff}}))
    assert "```diff\n@@ -1 +1 @@\n-a: f32[2] = aten.sin.default(x)\n+b" in text and "/home/me" not in text
    assert "```diff" not in draft(changed())
