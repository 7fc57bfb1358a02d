"""The engine without workers: what it asks them to do, what it stores of what they say, when it ends."""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from answering import AnsweringPool
from rich.console import Console

from fuzzcompile.corpus.records import Campaign, CaseRecord
from fuzzcompile.corpus.store import Store
from fuzzcompile.diagnosis.worker.minimize_task import LocalAsker
from fuzzcompile.fuzz.campaign.budget import CampaignBudget
from fuzzcompile.fuzz.campaign.campaign_display import print_summary
from fuzzcompile.fuzz.campaign.campaign_engine import CampaignEngine
from fuzzcompile.fuzz.campaign.campaign_run import run_campaign
from fuzzcompile.fuzz.campaign.campaign_settings import CampaignSettings
from fuzzcompile.fuzz.campaign.case_sources import CaseSource, DrawnCase
from fuzzcompile.fuzz.campaign.steering import UNIFORM, Strategy
from fuzzcompile.fuzz.generation.profile import Profile
from fuzzcompile.model import hints
from fuzzcompile.model.errors import EnvironmentUnfit, MachineUnfit
from fuzzcompile.model.judge_task import JudgeResult, JudgeTask
from fuzzcompile.model.severity import FailOn, Severity
from fuzzcompile.model.verdicts import CoverageCount
from fuzzcompile.programs.shrink.outcome import MinimizeResult, SearchTally
from fuzzcompile.run.pool.worker import WorkerCrashed

TORCH = "2.13.0"


@dataclass(frozen=True)
class Numbers(CaseSource):
    """So many programs, and no more."""

    programs: int = 10**6
    name: str = ""
    profile: None = None

    def at(self, seed: int, index: int, candidate: int = 0) -> DrawnCase:
        return DrawnCase(f"# {index % self.programs}\n", "generated", (f"feature {index % 3}",), spec={"number": index})

    def of(self, choices: bytes) -> DrawnCase | None:
        return None


@dataclass
class Inline(AnsweringPool):
    """Answers every task at once: the case reaches a rewrite of its own."""

    tasks: list[JudgeTask] = field(default_factory=list)

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        (task,) = args
        self.tasks.append(task)
        report = {"schema": 1, "torch": TORCH, "device": "cpu", "verdict": "rounding", "is_bug": False}
        report |= {"signature": None, "culprit": None, "evidence": {"float64_step": 0.0}, "cost": {"seconds": 1.0}}
        name = task.source.strip()
        counts = [("joint_graph", "pass", name, "fired"), ("lowering", None, "aten.mm", "fallback")]
        coverage = tuple(CoverageCount(*count, 1) for count in (*counts, ("joint_graph", "pass", "v", "vetoed")))
        future: Future[Any] = Future()
        future.set_result(JudgeResult(report, coverage, screened=task.screen))
        return future


def campaign(
    folder: Path, environment: dict[str, Any] | None = None, executor: Any = None, **given: Any
) -> tuple[Any, Any, Store]:
    """Run one on the corpus in ``folder``: what the executor was asked, the summary, and the open store."""
    settings = CampaignSettings(**{
        "budget": CampaignBudget(cases=40), "seed": 0, "profile": Profile(), "device": "cpu", "workers": 1, "torch":
        TORCH,
        "drafts": folder / "drafts", "source": Numbers(), **given,
    })  # fmt: skip
    store, executor = Store.open(folder / "corpus.db"), executor or Inline()
    environment = environment or {"torch": TORCH, "device": "cpu"}
    number = store.start_campaign(Campaign(0, {"stream": settings.stream}, "run", "0", environment))
    engine = CampaignEngine(settings, store, executor, environment, campaign=number)
    for _ in engine.run():
        pass
    return executor, engine.finish(), store


def test_speeds_coverage_and_features_are_stored(tmp_path):
    executor, summary, store = campaign(tmp_path)
    asked = [task.screen for task in executor.tasks]
    assert summary.tally.cases == 40 and 0 < summary.tally.screened == sum(asked) < 40
    runs = store.stream_runs(store.campaigns()[0].settings["stream"], TORCH)
    assert [run.screened for run in runs] == asked
    assert [run.features for run in runs][:4] == [("feature 0",), ("feature 1",), ("feature 2",), ("feature 0",)]
    assert [run.firsts for run in runs] == [2, *[1] * 39]  # aten.mm is new once
    rows = {(row.stage, row.rewrite, row.outcome): row.count for row in store.coverage(TORCH)}
    assert rows["lowering", "aten.mm", "fallback"] == 40 and ("joint_graph", "v", "refused") not in rows
    assert summary.tally.rewrites == 40  # lowerings are none
    store.close()


@pytest.mark.parametrize("mix", ["screen", "full"])
def test_one_speed_alone_is_a_stream_of_its_own(tmp_path, mix):
    campaign(tmp_path)[2].close()
    executor, summary, store = campaign(tmp_path, mix=mix)
    assert {task.screen for task in executor.tasks} == {mix == "screen"}
    assert summary.tally.cases == 40 and store.campaigns()[1].settings["stream"].endswith(f"{mix}-only")
    store.close()


def test_a_second_campaign_goes_on_where_the_first_ended(tmp_path):
    campaign(tmp_path)[2].close()
    executor, _, store = campaign(tmp_path)
    assert store.recorded_indices(store.campaigns()[0].settings["stream"]) == set(range(80))
    assert len({task.path for task in executor.tasks}) == 40
    store.close()


@pytest.mark.parametrize("strategy", [UNIFORM, Strategy()])
def test_a_source_that_has_no_more_ends_the_campaign(tmp_path, strategy):
    executor, summary, store = campaign(tmp_path, source=Numbers(7), strategy=strategy)
    assert summary.ended == "exhausted" and len(executor.tasks) == 7
    store.close()


class Full(Inline):
    """A machine whose disk is full: no case can be compiled, though graphs can be screened."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(function, *args, **kwargs)
        if not args[0].screen:
            future = Future()
            future.set_exception(MachineUnfit("case cannot be compiled on this machine: No space left on device."))
        return future


def test_a_machine_that_can_compile_no_more_ends_the_campaign_and_costs_no_verdict(tmp_path):
    with pytest.raises(EnvironmentUnfit, match="No space left"):
        campaign(tmp_path, executor=Full(), mix="mixed")
    with Store.open(tmp_path / "corpus.db", create=False) as store:
        assert store.counters().by_verdict["unjudged"] == 4


def test_the_summary_of_a_campaign_that_the_machine_ends_says_why(tmp_path):
    executor = Full()
    around = SimpleNamespace(environment={"torch": TORCH, "device": "cpu"}, numerics={})
    started = SimpleNamespace(pool=executor, surroundings=around, cluster=None)
    settings = CampaignSettings(
        CampaignBudget(cases=40), 0, Profile(), "cpu", 1, TORCH, drafts=tmp_path, source=Numbers(), mix="full"
    )
    where = {"location": str(tmp_path / "corpus.db"), "command": "run"}
    told = run_campaign(settings, started, **where).to_json()
    assert told["ended"] == "failed" and "No space left" in told["why"] and told["verdicts"] == {"unjudged": 4}


def test_a_target_is_a_stream_of_its_own_and_counts_apart(tmp_path):
    campaign(tmp_path)[2].close()
    told = {"environment": {"torch": TORCH, "device": "cpu", "target": "cuda:sm_90"}, "target": "cuda:sm_90"}
    executor, summary, store = campaign(tmp_path, **told)
    assert summary.tally.cases == len(executor.tasks) == 40 and summary.target == "cuda:sm_90"
    cpu, cuda = (row.settings["stream"] for row in store.campaigns())
    assert "target" not in cpu and "device=cpu target=cuda:sm_90" in cuda
    assert store.recorded_indices(cpu) == store.recorded_indices(cuda) == set(range(40))
    assert {row.count for row in store.coverage(f"{TORCH} for cuda:sm_90") if row.stage == "lowering"} == {40}
    store.close()
    _, _, store = campaign(tmp_path, **told)
    assert store.recorded_indices(cuda) == set(range(80)) and len(store.recorded_indices(cpu)) == 40
    store.close()


def test_a_finding_for_a_target_leaves_the_device_that_runs_to_prove(tmp_path):
    culprit = {"stage": "joint_graph", "rewrite": "r", "necessary": True}
    of_target = {"device": "cuda:sm_90", "stages": {}, "confirmed_on_device": False}
    bug = {
        "culprit": culprit,
        "target": of_target,
        "torch": TORCH,
        "verdict": "miscompile",
        "is_bug": True,
        "signature": "joint_graph:f.py:r",
    }
    with Store.open(tmp_path / "corpus.db") as store:
        environment = {"torch": TORCH, "device": "cpu", "target": "cuda:sm_90"}
        store.record(None, CaseRecord("0" * 64, "x", "user"), environment, bug)
    executor, _, store = campaign(tmp_path)
    store.close()
    assert executor.tasks[0].known == ()
    executor, _, store = campaign(tmp_path, target="cuda:sm_90")
    store.close()
    assert executor.tasks[0].known == (("joint_graph:f.py:r", "values"),)


PLACE = "post_grad:p.py:fold"


def wrong(signature: str, **fields: Any) -> dict[str, Any]:
    report = {
        "schema": 1,
        "torch": TORCH,
        "device": "cpu",
        "verdict": "miscompile",
        "is_bug": True,
        "confidence": "high",
    }
    culprit = {
        "stage": "post_grad",
        "rewrite": "fold",
        "source": "p.py",
        "line": 1,
        "family": "fold",
        "necessary": True,
    }
    report |= {"case": "c", "culprit": culprit, "evidence": {"outputs": []}, "cost": {"seconds": 1.0}}
    return report | {"signature": signature} | fields


@dataclass
class Buggy(AnsweringPool):
    """Every case shows a bug under a name of its own; reduced, all but each third are the same."""

    judged: int = 0
    reduced: int = 0

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        (task,) = args
        future: Future[Any] = Future()
        if isinstance(task, JudgeTask):
            verdict = "accepts_invalid" if self.judged % 3 == 2 else "miscompile"
            future.set_result(JudgeResult(wrong(f"unattributed:-:program-{self.judged}", verdict=verdict), ()))
            self.judged += 1
            return future
        self.reduced += 1
        minor = task.report["verdict"] == "accepts_invalid"
        report = wrong(f"{PLACE}:check" if minor else f"{PLACE}:dtype", verdict=task.report["verdict"])
        outcome = MinimizeResult(
            "x = 1\n", report, "repro\n", True, "", None, "graph", True, "", SearchTally(), 1.0, True, None, None
        )
        future.set_result(replace(outcome, original=task.source))
        return future


def test_findings_that_turn_out_to_be_one_are_one_everywhere(tmp_path):
    _executor, summary, store = campaign(tmp_path, executor=Buggy(), budget=CampaignBudget(cases=6))
    said = summary.to_json()["findings"]
    assert [(line["id"], line["severity"], line["signature"], line["hits"]) for line in said] == [
        ("F1", "silent", f"{PLACE}:dtype", 4),
        ("F3", "accepts_invalid", f"{PLACE}:check", 2),
    ]
    assert said[1]["umbrella"] == "validation" and said[0]["status"] == "open" and said[0]["finding"] == "F1"
    assert all(line["new"] for line in said) and summary.tally.new_findings == summary.tally.findings == 2
    assert not {path.stem for path in (tmp_path / "drafts").glob("F*.md")} - {"F1", "F3"}
    assert store.finding("F6").public_id == "F3"
    lesser = replace(summary, findings=summary.findings[1:])
    assert summary.shows(FailOn(Severity.SILENT)) and not lesser.shows(FailOn(Severity.LAYOUT))
    assert lesser.shows(FailOn(verdict=said[1]["verdict"])) and not summary.shows(FailOn(verdict="eager_wrong"))
    out = io.StringIO()
    print_summary(Console(file=out, width=200), summary)
    assert (
        "F1  silent" in out.getvalue()
        and (
            "1 that accept what eager refuses: "
            f"{hints.format_command('corpus', 'list', all=True, corpus=summary.corpus)}"
        )
        in out.getvalue()
    )
    store.close()


def test_a_finding_is_minimized_again_only_for_something_worse(tmp_path):
    @dataclass
    class Worse(Buggy):
        def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            (task,) = args
            if not isinstance(task, JudgeTask):
                return super().submit(function, *args, **kwargs)
            verdict = ("accepts_invalid", "accepts_invalid", "miscompile", "miscompile", "aliasing")[self.judged % 5]
            self.judged += 1
            future: Future[Any] = Future()
            future.set_result(JudgeResult(wrong(f"{PLACE}:dtype", verdict=verdict), ()))
            return future

    executor, _summary, store = campaign(tmp_path, executor=Worse(), budget=CampaignBudget(cases=10))
    assert (executor.judged, executor.reduced) == (10, 2)
    store.close()


def test_a_candidate_that_takes_its_worker_down_does_not_end_the_minimization(tmp_path, monkeypatch):
    left: dict[str, str] = {}
    monkeypatch.setattr("fuzzcompile.diagnosis.worker.minimize_task.leave", left.__setitem__)

    @dataclass
    class Fragile(Buggy):
        def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            (task,) = args
            if isinstance(task, JudgeTask) or (asked := LocalAsker.resume(task.left)).fatal:
                return super().submit(function, *args, **kwargs)
            self.asking = asked.guard("compile x")
            self.asking.__enter__()  # and never comes back
            loss, future = WorkerCrashed(-11), Future()
            loss.left = dict(left)
            future.set_exception(loss)
            return future

    executor, _summary, store = campaign(tmp_path, executor=Fragile(), budget=CampaignBudget(cases=1))
    assert executor.reduced == 1 and store.best_reproducer("F1") is not None
    store.close()
