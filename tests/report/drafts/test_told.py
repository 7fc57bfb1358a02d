"""What is said of a target: what was seen of it without a GPU, and no more."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from triage_reports import CULPRIT, SIGNATURE, output, report

from fuzzcompile.report.ci_formats import Scanned, format_triage_junit
from fuzzcompile.report.filing import find_refusal
from fuzzcompile.report.finding_facts import IssueFacts
from fuzzcompile.report.issue_draft import draft_issue
from fuzzcompile.report.pages.case_page import render_case_page
from fuzzcompile.report.proof import workaround_with_cost
from fuzzcompile.report.verdict_text import print_report

STAGES = {
    "pre_grad": "real code, fake device",
    "joint_graph": "real code, fake device",
    "kernels": "not looked at: Triton is not installed",
    "autotuning": "not decided",
}
KERNEL = {**CULPRIT, "stage": "codegen", "rewrite": None, "details": {"kernel_source": "@triton.jit\ndef k(): ..."}}
OVERCLAIMS = ("on a GPU", "miscompiles", "computes wrong values", "equals eager", "on cuda", "(cuda)")


def told(verdict: str = "rounding", confirmed: bool = False, **fields: Any) -> dict[str, Any]:
    target = {"device": "cuda:sm_90", "stages": STAGES, "confirmed_on_device": confirmed}
    return report(verdict, output(), **{"target": target, **fields})


def printed(of: dict[str, Any]) -> str:
    console = Console(file=io.StringIO(), width=200)
    print_report(console, of, name="model.py")
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("verdict", ["equal", "rounding"])
def test_a_clean_case_says_that_nothing_was_found_and_where(verdict):
    text = printed(told(verdict))
    assert "nothing found in the stages looked at for cuda:sm_90" in text
    assert "told cuda:sm_90, run on the CPU" in text
    assert "stages for cuda:sm_90, with no GPU:" in text
    assert "real code, fake device: pre_grad, joint_graph" in text
    assert text.index("not decided: autotuning") < text.index("not looked at: Triton is not installed: kernels")
    assert not [claim for claim in OVERCLAIMS if claim in text]


@pytest.mark.parametrize(
    ("culprit", "sentence"),
    [
        (CULPRIT, "this rewrite, applied for cuda:sm_90, changes the meaning in float64"),
        (KERNEL, "a kernel generated for cuda:sm_90 computes other values than its graph, interpreted"),
        (None, "what is made of the program for cuda:sm_90 computes other values than the program"),
    ],
)
def test_a_bug_says_what_was_seen(culprit, sentence):
    text = printed(told("miscompile", culprit=culprit))
    assert sentence in text and "fuzzcompile minimize model.py --target cuda:sm_90" in text
    assert not [claim for claim in OVERCLAIMS[1:] if claim in text]


def test_an_error_of_the_compiler_is_one_for_the_target():
    assert "compiling raises, eager runs, compiled for cuda:sm_90" in printed(told("compile_error"))


def test_a_target_of_which_nothing_was_seen_says_so():
    target = {"device": "cuda:sm_90", "stages": {}, "confirmed_on_device": False}
    assert "for cuda:sm_90, with no GPU: no stage was looked at to its end" in printed(report("crash", target=target))


def facts_of(of: dict[str, Any]) -> IssueFacts:
    of = {**of, "ablations": [{"toggle": "veto it", "repairs": True, "error": 0.0}]}
    return IssueFacts(of, "import torch\ntorch.manual_seed(0)\n", {"torch": "2.13.0"}, confirmed=True)


def draft(of: dict[str, Any]) -> str:
    return draft_issue(facts_of(of))


def test_a_draft_begins_with_what_was_not_there():
    text = draft(told("miscompile"))
    first = text.splitlines()[0]
    assert "No GPU was used" in first and "`cuda:sm_90`" in first and "on such a GPU to confirm" in first
    title = text.splitlines()[2]
    assert title.startswith("# [cuda:sm_90, no GPU used] ")
    assert "is compiled into a program with other values" in title
    assert "wrong" not in title
    assert "judged alone for cuda:sm_90" in text
    assert "This rewrite, applied for cuda:sm_90, changes the meaning in float64." in text
    assert "Device told to the compiler: cuda:sm_90" in text
    assert "- [ ] Seen on a cuda:sm_90 device: run the reproducer on a GPU first" in text


def test_what_no_gpu_has_shown_is_not_to_be_filed():
    far = output(finding="far", max_abs_error_compiled=0.5, within_default_tolerance=False, torch_same=False)
    refusal = find_refusal(facts_of({**told("miscompile"), "evidence": {"outputs": [far]}}))
    assert refusal is not None and "Seen on a cuda:sm_90 device" in refusal.reason and "GPU" in refusal.remedy
    assert find_refusal(facts_of({**told("miscompile", confirmed=True), "evidence": {"outputs": [far]}})) is None


def test_the_price_of_a_workaround_is_the_devices_own():
    workaround = {"how": "a setting", "verified": True, "cost_ratio": 1.5}
    assert "1.50 times the run time" in (
        workaround_with_cost(report("miscompile", output(), workaround=workaround)) or ""
    )
    assert "times the run time" not in (workaround_with_cost(told("miscompile", workaround=workaround)) or "")


def test_a_draft_that_a_gpu_confirmed_can_be_filed_on_that_ground():
    text = draft(told("miscompile", confirmed=True))
    assert "A device of that kind showed the same." in text.splitlines()[0]
    assert "- [x] Seen on a cuda:sm_90 device" in text


def test_a_draft_shows_the_kernel_that_was_interpreted():
    assert "```python\n@triton.jit\ndef k(): ...\n```" in draft(told("miscompile", culprit=KERNEL))
    plain = {**told("miscompile", culprit=KERNEL), "target": None}
    assert "No GPU was used" not in draft(plain) and "@triton.jit" not in draft(plain)


def test_ci_and_the_page_name_the_stages():
    clean, bug = told(), told("miscompile", signature=SIGNATURE)
    for of in (clean, bug):
        xml = format_triage_junit([Scanned(Path("model.py"), of)]).decode()
        page = render_case_page(of, {"torch": "2.13.0"}, name="model.py")
        assert all("real code, fake device: pre_grad, joint_graph" in text for text in (xml, page))
