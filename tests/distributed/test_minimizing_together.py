"""Cases that several processes run, made smaller: the search, the script of all processes, and what an issue says."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
from calling import call, sentence

from fuzzcompile.corpus.replay.replay_engine import run_script
from fuzzcompile.corpus.store import Store
from fuzzcompile.diagnosis.probe import SignatureLock
from fuzzcompile.diagnosis.worker.local_pool import LEAST_THREADS, open_pool
from fuzzcompile.diagnosis.worker.minimization import probe_candidate
from fuzzcompile.front.minimize_case import MinimizeSubject, judge_case_file, minimize
from fuzzcompile.fuzz.campaign.campaign_outputs import collect_issue_facts
from fuzzcompile.model.conditions import Conditions, Limits
from fuzzcompile.model.signatures import agree
from fuzzcompile.programs.casefiles.case_file import count_processes
from fuzzcompile.programs.ir.case_source import CaseText
from fuzzcompile.programs.scripts.clean_process import run_together
from fuzzcompile.programs.scripts.reproducer import confirm_reproducer, form_group_once
from fuzzcompile.programs.shrink.case_reducer import in_two_processes, reduce_text
from fuzzcompile.programs.shrink.outcome import ProbeResult
from fuzzcompile.report.finding_facts import IssueFacts
from fuzzcompile.report.issue_draft import draft_issue

PLANTS = Path(__file__).parent / "plants"
# The lowering of reduce_scatter adds up where it should average (plants/reduce_scatter_op.py); the rest is by the way.
PADDED = """
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

NPROC = 2


def make():
    dist.init_process_group("gloo")
    group = dist.group.WORLD
    torch.manual_seed(31 + dist.get_rank())
    scale = 0.5

    def program(x, w):
        y1 = torch.relu(x) * w
        y2 = funcol.all_reduce(y1 + 1, "max", group)
        y3 = torch.sin(y2) - x
        y4 = funcol.reduce_scatter_tensor(x * scale, "avg", 0, group)
        y5 = y4.cos() + w
        return y3, y5, torch.tanh(y1)

    return program, (torch.randn(8, 6), torch.randn(6))
"""
CASE = """
import time
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

NPROC = 2


def make():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    {made}

    def program(x):
        {within}
        return funcol.all_reduce(x.cos(), "sum", dist.group.WORLD)

    return program, (torch.ones(4, 3),)
"""


@pytest.mark.slow
def test_a_planted_bug_of_several_processes_is_made_small_and_its_script_shows_it(tmp_path: Path) -> None:
    path, plant = tmp_path / "case.py", PLANTS / "reduce_scatter_op.py"
    path.write_text(PADDED, encoding="utf-8")
    conditions = Conditions("cpu", limits=Limits(seconds=300.0), plants=(plant,))
    report = judge_case_file(path, conditions)
    small = minimize(MinimizeSubject(PADDED, report), conditions, seconds=300.0)
    assert small.how == "text" and small.confirmed, small.note
    assert agree(report["signature"] or "", small.report["signature"] or "")
    case = small.source
    assert count_processes(case) == 2 and "all_reduce" not in case and "tanh" not in case
    assert len(case.splitlines()) <= len(PADDED.splitlines()) - 6
    assert "fuzzcompile" not in small.reproducer and "rank 1, torch" in small.confirmation
    right = confirm_reproducer(small.reproducer)
    assert right.status == 0 and not right.confirmed and right.output.count("OK: ") == 2  # torch itself is right


# The lowering of erf is wrong, whatever the collectives beside it give.
ALONE = """
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

NPROC = 2


def make():
    dist.init_process_group("gloo")
    group = dist.group.WORLD
    torch.manual_seed(31 + dist.get_rank())

    def program(x, w):
        y1 = torch.erf(x) * w
        y2 = funcol.all_reduce(y1 + 1, "max", group)
        return torch.sin(y2) - x, torch.erf(y1)

    return program, (torch.randn(8, 6), torch.randn(6))
"""
ERF = """
import torch
from torch._inductor.lowering import lowerings

right = lowerings[torch.ops.aten.erf.default]
lowerings[torch.ops.aten.erf.default] = lambda x: lowerings[torch.ops.aten.mul.Tensor](right(x), 1.5)
"""


@pytest.mark.slow
def test_what_shows_in_one_process_too_is_left_to_one(tmp_path: Path) -> None:
    path, plant = tmp_path / "case.py", tmp_path / "plant.py"
    path.write_text(ALONE, encoding="utf-8")
    plant.write_text(ERF, encoding="utf-8")
    conditions = Conditions("cpu", limits=Limits(seconds=300.0), plants=(plant,))
    report = judge_case_file(path, conditions)
    small = minimize(MinimizeSubject(ALONE, report), conditions, seconds=300.0)
    assert small.confirmed, small.note
    assert agree(report["signature"] or "", small.report["signature"] or "")
    assert count_processes(small.source) is None and "distributed" not in small.reproducer
    assert "erf" in small.reproducer


@dataclass(frozen=True)
class Candidate:
    """What a candidate does in ``make()`` or in its program, and whether anything of it can be compared."""

    made: str = "pass"
    within: str = "pass"
    runs: bool = False


CANDIDATES = {
    "right": Candidate(runs=True),
    "one raises while it is made": Candidate("if rank == 1: raise ValueError('no')"),
    "right again": Candidate(within="x = x + 1", runs=True),
    "one raises in the program": Candidate(within="if rank == 1: raise ValueError('no')"),
    "right after that": Candidate(within="x = x + 2", runs=True),
    "one calls more": Candidate(within="if rank == 0: x = funcol.all_reduce(x, 'sum', dist.group.WORLD) + 0"),
    "one never ends": Candidate(within="if rank == 1: time.sleep(1000)"),
    "right at last": Candidate(within="x = x + 3", runs=True),
}


def probe_all(sources: list[str]) -> list[ProbeResult]:
    """Probe candidates one after the other, in this process and the other that it starts."""
    target = SignatureLock("miscompile", "lowering", None, ("all_reduce",))
    return [probe_candidate(CaseText(source, {}), target) for source in sources]


@pytest.mark.slow
def test_a_candidate_whose_processes_hang_die_or_part_is_only_refused() -> None:
    sources = [CASE.format(made=each.made, within=each.within) for each in CANDIDATES.values()]
    with open_pool(Conditions("cpu"), 1, least_threads=LEAST_THREADS) as pool:
        probed = pool.schedule(probe_all, (sources,), time_limit=500).result()
    ran = [result.verdict in ("equal", "rounding") for result in probed]
    assert dict(zip(CANDIDATES, ran, strict=True)) == {name: each.runs for name, each in CANDIDATES.items()}
    assert not any(result.matches for result in probed)


@pytest.mark.slow
def test_a_campaign_of_several_processes_ends_with_minimized_findings(tmp_path: Path, capsys) -> None:
    corpus, plant = tmp_path / "corpus.sqlite", PLANTS / "rank_1.py"
    typed = [
        "--nproc",
        "2",
        "--device",
        "cpu",
        "--seed",
        "5",
        "--max-findings",
        "1",
        "--budget",
        "6m",
        "--workers",
        "1",
    ]
    files = ["--corpus", str(corpus), "--plant", str(plant), "--drafts", str(tmp_path / "drafts")]
    assert call("run", *typed, *files) == 0
    assert "not minimized" not in capsys.readouterr().out
    with Store.open(str(corpus), create=False) as store:
        (finding,) = store.summaries()[:1]
        best = store.best_reproducer(finding.id)
        assert best is not None and best.confirmed and count_processes(best.source) == 2
        draft = draft_issue(collect_issue_facts(store, finding.public_id))
    assert "torchrun --nproc-per-node 2" in draft and "`oncall: distributed`" in draft


# Without a compile.


def test_a_script_runs_in_all_of_its_processes_and_one_that_fails_ends_the_others() -> None:
    script = "import os, time\nrank = os.environ['RANK']\nprint('rank', rank, 'of', os.environ['WORLD_SIZE'])\n{end}\n"
    right = run_together(script.format(end=""), 2, environment={}, timeout=60)
    assert [ran.output for ran in right] == ["rank 0 of 2\n", "rank 1 of 2\n"]
    assert [ran.status for ran in right] == [0, 0]
    failed = run_together(script.format(end="raise SystemExit(rank == '1')"), 2, environment={}, timeout=60)
    assert [ran.status for ran in failed] == [0, 1]


def test_a_replay_runs_a_script_in_as_many_processes_as_it_asks_for() -> None:
    script = (
        "import os\nNPROC = 2\nrank = os.environ['RANK']\nprint('BUG: rank', rank)\nraise SystemExit(rank == '1')\n"
    )
    ended = run_script(Path(sys.executable), script, {}, timeout=60, stop=threading.Event())
    assert ended.status == 1 and ended.output == "BUG: rank 0\nBUG: rank 1\n"


@pytest.mark.parametrize(
    ("mesh", "fewer"),
    [
        ("", [""]),
        ('init_device_mesh("cpu", (4,))', ['init_device_mesh("cpu", (2,))']),
        ('init_device_mesh("cpu", (2, 2))', ['init_device_mesh("cpu", (2, 1))', 'init_device_mesh("cpu", (1, 2))']),
    ],
)
def test_more_processes_are_lowered_to_two_with_their_meshes(mesh: str, fewer: list[str]) -> None:
    source = f"NPROC = 4\n\ndef make():\n    mesh = {mesh or None}\n    return abs, (4,)\n"
    assert list(in_two_processes(source)) == [
        source.replace("NPROC = 4", "NPROC = 2").replace(mesh or "None", text or "None") for text in fewer
    ]
    assert list(in_two_processes(source.replace("NPROC = 4", "NPROC = 2"))) == []


def test_the_processes_and_their_group_stay_and_names_that_nothing_binds_are_not_asked_about() -> None:
    asked = list[str]()

    def holds(text: str) -> bool:
        asked.append(text)
        return "reduce_scatter" in text

    small = reduce_text(PADDED, holds)
    assert "NPROC = 2" in small and 'dist.init_process_group("gloo")' in small
    assert "y1" not in small and all("y4 =" in text or "y4" not in text for text in asked)


def test_the_group_is_formed_once_by_a_make_that_is_called_twice() -> None:
    once = form_group_once(PADDED)
    assert '    if not dist.is_initialized():\n        dist.init_process_group("gloo")\n' in once
    assert form_group_once(once) == once


def test_a_draft_says_how_many_processes_run_it_and_claims_no_more() -> None:
    report = {"verdict": "miscompile", "is_bug": True, "device": "cpu", "torch": "2.13.0"}
    draft = draft_issue(IssueFacts(report, PADDED, {}, confirmed=True))  # type: ignore[arg-type]
    assert (
        "Run it in 2 processes: `torchrun --nproc-per-node 2 repro.py`. A group of one and NCCL were not tried."
        in draft
    )
    assert "on the CPU in 2 processes on gloo" in draft and "`oncall: distributed`" in draft
    alone = draft_issue(IssueFacts(report, PADDED.replace("NPROC = 2\n", ""), {}))  # type: ignore[arg-type]
    assert "torchrun" not in alone and "oncall: distributed" not in alone


def test_a_script_is_not_minimized_in_several_processes_and_is_told_what_to_do(tmp_path: Path, capsys) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\ntorch.compile(torch.relu)(torch.ones(2))\n", encoding="utf-8")
    assert call("minimize", script, "--nproc", "2") == 2
    assert "a case file with `NPROC = 2`" in sentence(capsys)
