"""The engine without workers: what it asks them to do, what it stores of what they say, when it ends."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fuzzcompile.campaign.budget import Budget
from fuzzcompile.campaign.drawing import Drawn
from fuzzcompile.campaign.engine import Engine
from fuzzcompile.campaign.settings import CampaignSettings
from fuzzcompile.campaign.steering import UNIFORM, Strategy
from fuzzcompile.corpus import Campaign, Store
from fuzzcompile.generation import Profile
from fuzzcompile.judging.report import CoverageCount
from fuzzcompile.worker.judge import Judged, JudgeTask

TORCH = "2.13.0"


@dataclass(frozen=True)
class Numbers:
    """So many programs, and no more."""

    programs: int = 10**6
    name: str = ""
    profile: None = None

    def at(self, seed: int, index: int, candidate: int = 0) -> Drawn:
        return Drawn(f"# {index % self.programs}\n", "generated", (f"feature {index % 3}",), spec={"number": index})

    def of(self, choices: bytes) -> Drawn | None:
        return None


@dataclass
class Inline(Executor):
    """Answers every task at once: the case reaches a rewrite of its own."""

    tasks: list[JudgeTask] = field(default_factory=list)

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        (task,) = args
        self.tasks.append(task)
        report = {"schema": 1, "torch": TORCH, "device": "cpu", "verdict": "rounding", "is_bug": False}
        report |= {"signature": None, "culprit": None, "evidence": {"float64_step": 0.0}, "cost": {"seconds": 1.0}}
        name = Path(task.path).read_text().strip()
        counts = [("joint_graph", "pass", name, "fired"), ("lowering", None, "aten.mm", "fallback")]
        coverage = tuple(CoverageCount(*count, 1) for count in (*counts, ("joint_graph", "pass", "v", "vetoed")))
        future: Future[Any] = Future()
        future.set_result(Judged(report, coverage, screened=task.screen))
        return future


def campaign(folder: Path, **given: Any) -> tuple[Inline, Any, Store]:
    """Run one on the corpus in ``folder``: what the executor was asked, the summary, and the open store."""
    settings = CampaignSettings(**{
        "budget": Budget(cases=40), "seed": 0, "profile": Profile(), "device": "cpu", "workers": 1, "torch": TORCH,
        "drafts": folder / "drafts", "source": Numbers(), **given,
    })  # fmt: skip
    store, executor, environment = Store.open(folder / "corpus.db"), Inline(), {"torch": TORCH, "device": "cpu"}
    number = store.start_campaign(Campaign(0, {"stream": settings.stream}, "run", "0", environment))
    engine = Engine(settings, store, executor, environment, campaign=number)
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
