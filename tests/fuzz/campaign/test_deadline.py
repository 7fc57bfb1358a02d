"""The end of a budget: what is cut off, what is not begun, what the next campaign does first, and what is said."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from answering import AnsweringPool
from rich.console import Console

from fuzzcompile.corpus.records import Campaign, CaseRecord
from fuzzcompile.corpus.store import Store
from fuzzcompile.diagnosis.worker.minimize_task import MinimizeTask
from fuzzcompile.fuzz.campaign import campaign_run
from fuzzcompile.fuzz.campaign.budget import BudgetClock, CampaignBudget, format_progress
from fuzzcompile.fuzz.campaign.campaign_display import print_summary
from fuzzcompile.fuzz.campaign.campaign_engine import CampaignEngine
from fuzzcompile.fuzz.campaign.campaign_events import Finished
from fuzzcompile.fuzz.campaign.campaign_settings import CampaignSettings
from fuzzcompile.fuzz.campaign.case_sources import CaseSource, DrawnCase
from fuzzcompile.fuzz.generation.profile import Profile
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.errors import EnvironmentUnfit
from fuzzcompile.model.judge_task import JudgeResult
from fuzzcompile.programs.shrink.outcome import MinimizeResult, SearchTally

TORCH = "2.13.0"
ENVIRONMENT = {"torch": TORCH, "device": "cpu"}


@dataclass(frozen=True)
class Numbers(CaseSource):
    """Endlessly many programs."""

    name: str = ""
    profile: None = None

    def at(self, seed: int, index: int, candidate: int = 0) -> DrawnCase:
        return DrawnCase(f"# {index}.{candidate}\n", "generated", ("plain",), b"\x00\xff", {"number": index})

    def of(self, choices: bytes) -> DrawnCase | None:
        return None


@dataclass
class Workers(AnsweringPool):
    """Finds a bug in each case. Each task takes ``seconds`` of a made-up time, ``hangs`` never end."""

    seconds: float = 1.0
    hangs: type | tuple[type, ...] = ()
    time: float = 0.0
    tasks: list[Any] = field(default_factory=list)
    running: int = 0
    most_minimized: int = 0

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        (task,) = args
        self.tasks.append(task)
        self.time += self.seconds
        future: Future[Any] = Future()
        if isinstance(task, self.hangs):
            self.running += isinstance(task, MinimizeTask)
            self.most_minimized = max(self.most_minimized, self.running)
        elif isinstance(task, MinimizeTask):
            outcome = MinimizeResult(
                task.source,
                task.report,
                "repro\n",
                True,
                "",
                None,
                "graph",
                True,
                "",
                SearchTally(),
                1.0,
                True,
                None,
                None,
            )
            future.set_result(replace(outcome, original=task.source))
        else:
            future.set_result(JudgeResult(_bug(task.source)))
        return future

    def now(self) -> float:
        """Time passes while nothing is begun, too."""
        self.time += 0.1
        return self.time

    @property
    def judged(self) -> list[str]:
        return [Path(task.path).name for task in self.tasks if not isinstance(task, MinimizeTask)]

    @property
    def minimized(self) -> list[str]:
        return [task.source for task in self.tasks if isinstance(task, MinimizeTask)]


def _bug(source: str) -> Any:
    place = f"post_grad:p.py:rule{source.split()[1]}"
    culprit = {"stage": "post_grad", "rewrite": "fold", "source": "p.py", "family": "fold", "necessary": True}
    report = {"schema": 1, "torch": TORCH, "device": "cpu", "verdict": "miscompile", "is_bug": True, "case": "c"}
    return report | {"confidence": "high", "culprit": culprit, "evidence": {"outputs": []}, "signature": place}


@contextmanager
def campaign(folder: Path, executor: Workers, budget: CampaignBudget, **given: Any) -> Iterator[tuple[Finished, Store]]:
    settings = CampaignSettings(
        **{"budget": budget, "seed": 0, "profile": Profile(), "device": "cpu", "workers": 2, "torch": TORCH,
           "drafts": folder / "drafts", "source": Numbers(), **given}
    )  # fmt: skip
    executor.capacity = settings.workers
    clock = BudgetClock(budget, started=executor.time, now=executor.now)
    with Store.open(folder / "corpus.db") as store:
        kept = Campaign(0, {"stream": settings.stream, **settings.conditions}, "run", "0", ENVIRONMENT)
        engine = CampaignEngine(
            settings, store, executor, ENVIRONMENT, campaign=store.start_campaign(kept), clock=clock
        )
        for _ in engine.run():
            pass
        yield engine.finish(), store


def said(summary: Finished, **how: Any) -> str:
    out = io.StringIO()
    print_summary(Console(file=out, width=300), summary, **how)
    return out.getvalue()


def test_what_runs_at_the_deadline_is_cut_off_and_judged_first_by_the_next_campaign(tmp_path):
    stuck = Workers(seconds=20.0, hangs=object)
    with campaign(tmp_path, stuck, CampaignBudget(seconds=40)) as (summary, store):
        assert (summary.tally.cases, summary.behind.cases, summary.ended) == (0, 2, "budget")
        assert store.counters().runs == 0 and "Cut off: 2 cases; the next run" in said(summary)
    next_one = Workers()
    with campaign(tmp_path, next_one, CampaignBudget(cases=3)) as (summary, store):
        assert next_one.judged[:2] == stuck.judged and len(set(next_one.judged)) == 3
        assert summary.behind.cases == 0
        assert store.recorded_indices(store.campaigns()[0].settings["stream"]) == {0, 1, 2}
    with campaign(tmp_path, again := Workers(), CampaignBudget(cases=1)):
        assert not {*again.judged} & {*next_one.judged}  # left over once


def test_a_minimization_that_cannot_end_is_not_begun_and_is_done_next(tmp_path):
    with campaign(tmp_path, short := Workers(), CampaignBudget(seconds=8)) as (summary, store):
        assert short.judged and not short.minimized
        waiting = summary.behind.waiting
        assert waiting == summary.tally.new_findings == len(store.findings()) > 2
        assert f"{waiting} findings wait for minimization: " in said(summary) and "--pending" in said(summary)
    with campaign(tmp_path, later := Workers(), CampaignBudget(seconds=100), judges=False) as (summary, store):
        assert not later.judged and len(later.minimized) == waiting
        assert {finding.reproducer_lines for finding in store.summaries()} == {1}
        assert summary.behind.waiting == 0
        assert f"{waiting} findings minimized." in said(summary, judges=False)
        assert "Waiting for" not in said(summary, judges=False) and "No findings" not in said(summary, judges=False)


def test_a_run_minimizes_what_an_earlier_one_left_and_half_of_the_workers_go_on_judging(tmp_path):
    with campaign(tmp_path, Workers(), CampaignBudget(seconds=8)) as (summary, _):
        names = summary.behind.waiting
    slow = Workers(hangs=MinimizeTask)
    with campaign(tmp_path, slow, CampaignBudget(seconds=60), workers=4) as (summary, _):
        assert slow.most_minimized == 2 and len(slow.judged) > 10
        assert summary.behind.waiting == names + summary.tally.new_findings


def test_what_was_imported_is_not_run_before_it_is_trusted(tmp_path):
    source = "# imported\n"
    case = CaseRecord(hashlib.sha256(source.encode()).hexdigest(), source, "generated")
    with Store.open(tmp_path / "theirs.db") as theirs, Store.open(tmp_path / "corpus.db") as store:
        theirs.record(None, case, ENVIRONMENT, _bug("# imported"))
        list(store.copy(theirs, lambda *_: None))
    with campaign(tmp_path, careful := Workers(), CampaignBudget(seconds=200), judges=False) as (summary, store):
        assert not careful.tasks and (summary.behind.waiting, summary.behind.foreign) == (0, 1)
        assert summary.to_json()["left_over"] == {"cases": 0, "bugs": 0, "to_minimize": 0, "to_trust": 1}
        assert "not run until they are read and trusted: 1 finding. Then: " in said(summary, judges=False)
        store.trust(["F1"])
    with campaign(tmp_path, trusting := Workers(), CampaignBudget(seconds=200), judges=False) as (summary, _):
        assert trusting.minimized == [source] and summary.behind.foreign == 0
        assert "trusted" not in said(summary, judges=False)


def test_a_budget_in_which_no_worker_starts_is_said_to_be_too_short(monkeypatch):
    class Slow:
        killed = False

        def schedule(self, *task: Any, **given: Any) -> Future[Any]:
            return Future()

        def kill_workers(self) -> None:
            self.killed = True

    pool = Slow()
    monkeypatch.setattr(campaign_run, "open_pool", lambda *given: pool)
    with (
        pytest.raises(EnvironmentUnfit, match="No worker had started after 0:00"),
        campaign_run.start_workers(Conditions("cpu"), 2, BudgetClock(CampaignBudget(seconds=0.05))),
    ):
        raise AssertionError("no worker has started")
    assert pool.killed


def test_no_findings_is_not_said_over_a_corpus_that_has_some(tmp_path):
    with campaign(tmp_path, Workers(), CampaignBudget(cases=2)) as (summary, _):
        assert "2 distinct, 2 of them new; the corpus holds 2." in said(summary)
    with campaign(tmp_path, Workers(), CampaignBudget(seconds=0.5)) as (summary, _):
        assert "This campaign hit no finding; the corpus holds 2 of earlier ones: " in said(summary)
        assert "No findings" not in said(summary)


def test_the_display_never_reads_more_than_the_budget():
    budget = CampaignBudget(seconds=60)
    assert (format_progress(12.4, budget), format_progress(60.9, budget)) == ("0:12 of 1:00", "1:00 of 1:00")
    assert format_progress(63.2, budget) == "1:00 of 1:00, finishing: 3 s over"
    assert (format_progress(138, CampaignBudget(cases=5)), format_progress(5, None)) == ("2:18 of 5 cases", "0:05")


@pytest.mark.slow
def test_a_run_ends_with_its_budget_on_a_busy_machine(tmp_path):
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        start = time.monotonic()
        run = [sys.executable, "-m", "fuzzcompile", "run", "--device", "cpu", "--budget", "40s"]
        ended = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
        took = time.monotonic() - start
    finally:
        for process in busy:
            process.kill()
    assert ended.returncode == 0, ended.stderr
    assert 30.0 <= took <= 50.0 and "ended with its budget after 0:" in ended.stdout


def test_a_campaign_takes_over_what_others_left_and_not_what_it_has_begun_itself(tmp_path, monkeypatch):
    """Its own cases stand in its heartbeats too, as left over if it were killed."""
    monkeypatch.setattr("fuzzcompile.fuzz.campaign.work_queue._LOOK_EVERY", 0.0)
    monkeypatch.setattr("fuzzcompile.fuzz.campaign.campaign_engine._HEARTBEAT", 0.0)

    class Late(Workers):
        """Every third case never ends, so that some are always running."""

        def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            future = super().submit(function, *args, **kwargs)
            return Future() if len(self.tasks) % 3 == 0 else future

    late = Late()
    with campaign(tmp_path, late, CampaignBudget(seconds=30), workers=8) as (summary, _):
        assert len(late.judged) > 8 and summary.behind.cases > 2
        assert len(set(late.judged)) == len(late.judged), "each case was begun once"
    with campaign(tmp_path, heir := Workers(), CampaignBudget(cases=2), workers=2):
        assert set(heir.judged) <= set(late.judged)
