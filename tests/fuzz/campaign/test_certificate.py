"""What a campaign says of the user's own passes and backends: as much as it saw, and no more."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from fuzzcompile.fuzz.campaign.case_sources import DrawnCase
from fuzzcompile.fuzz.campaign.certificates import Certificate
from fuzzcompile.model.custom import LoadedCustom
from fuzzcompile.model.verdicts import NO_REFERENCE, CoverageCount

FUSION = LoadedCustom("m:fusion", "pass", "post_grad", "post_grad_custom_post_pass", ("norm", "norm#2"))


def see(certificate: Certificate, verdict: str = "equal", *, outcome: str = "fired", finding=None, **more) -> None:
    notes = more.get("notes", [])
    report = {"verdict": verdict, "evidence": {"notes": notes, "graphs": more.get("graphs", 1)}}
    count = CoverageCount("post_grad", "m:fusion", "norm", outcome, 1, more.get("step", 0.0))
    screened = more.get("screened", False)
    case = DrawnCase("", more.get("origin", "near_miss"), more.get("features", ()))
    certificate.count_case(case, report, [count], screened=screened, finding=finding)  # type: ignore[arg-type]


def end(certificate: Certificate, *findings: tuple[str, str, bool]) -> dict[str, Any]:
    named = [
        SimpleNamespace(public_id=name, verdict="miscompile", culprit={"pass": of, "rewrite": "x", "necessary": proved})
        for name, of, proved in findings
    ]
    return certificate.certify(named, 9)  # type: ignore[arg-type]


def test_a_clean_pass_is_certified_with_what_was_seen():
    certificate = Certificate(FUSION)
    see(certificate, step=1e-16)
    see(certificate, "rounding", step=3e-16, screened=True, features=("stack",))
    see(certificate, outcome="refused")
    assert end(certificate)["sentence"] == (
        "`m:fusion` (post_grad) fired on 2 programs (near misses of these 1, blocks 1), judged in float64 (1 without "
        "generated code); largest step 3e-16; never fired: norm#2; nothing found."
    )


def test_what_never_fired_is_not_certified():
    certificate = Certificate(FUSION)
    see(certificate, outcome="refused")
    ended = end(certificate)
    assert not ended["programs"] and "never fired in 9 programs: nothing was tested" in ended["sentence"]
    assert ended["rules"] == {"norm": {"fired": 0, "refused": 1}, "norm#2": {"fired": 0, "refused": 0}}


def test_what_could_not_be_judged_or_compared_in_float64_is_counted_apart():
    certificate = Certificate(FUSION)
    see(certificate, notes=[f"{NO_REFERENCE}, compared with eager alone"], step=None)
    see(certificate, step=None)
    see(certificate, "unjudged")
    said = end(certificate)["sentence"]
    assert "1 of them judged in float64" in said and "1 further program could not be judged" in said


def test_findings_are_its_own_another_s_or_nobody_s():
    certificate = Certificate(FUSION)
    for finding in ("F1", "F2", "F3"):
        see(certificate, "miscompile", finding=finding, step=float("inf"))
    ended = end(certificate, ("F1", "m:fusion", True), ("F2", "pass_pattern_0", True), ("F3", "other", False))
    assert "findings: F1 (miscompile); not attributed: F3 (miscompile)." in ended["sentence"]
    assert (ended["findings"], ended["largest_step"]) == (["F1"], None)
    json.dumps(ended, allow_nan=False)


def test_a_backend_counts_the_programs_that_it_compiled():
    certificate = Certificate(LoadedCustom("m:compile", "backend"))
    see(certificate)
    see(certificate, graphs=0)
    assert end(certificate)["sentence"] == (
        "`m:compile` compiled 1 program (near misses of these 1), judged in float64; nothing found."
    )


CASE = """
import torch


def make():
    torch.manual_seed(0)
    return (lambda x: torch.rsqrt(x.exp())), (torch.randn(4, 8),)
"""
PASSES = """
import torch


def wrong(graph):
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.rsqrt.default):
        node.target = torch.ops.aten.sqrt.default


def idle(graph):
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize(("attribute", "status"), [("wrong", 1), ("idle", 3)])
def test_a_campaign_blames_a_wrong_pass_and_certifies_no_idle_one(tmp_path, attribute, status):
    (tmp_path / "case.py").write_text(CASE)
    (tmp_path / "own.py").write_text(PASSES)
    command = f"run --from case.py --pass own:{attribute} --at post_grad --budget 1c --workers 1 --corpus c.db"
    outputs = "--summary summary.json --fail-on-finding"
    done = subprocess.run(
        [sys.executable, "-m", "fuzzcompile", *command.split(), *outputs.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == status, done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    [certificate] = summary["certificates"]
    assert certificate["sentence"] in done.stdout
    assert certificate["findings"] == [line["id"] for line in summary["findings"]] == (["F1"] if status == 1 else [])
    assert all(f"own:{attribute}" in (line["culprit"] or "") and line["confirmed"] for line in summary["findings"])
