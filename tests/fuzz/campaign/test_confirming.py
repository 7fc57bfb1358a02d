"""Findings of another machine are judged here beside a campaign's own cases: which, how many, and how often."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from answering import AnsweringPool

from fuzzcompile.corpus.records import Campaign, CaseRecord, Reproducer
from fuzzcompile.corpus.store import Store
from fuzzcompile.corpus.transactions import Mark
from fuzzcompile.fuzz.campaign.budget import CampaignBudget
from fuzzcompile.fuzz.campaign.campaign_engine import CampaignEngine
from fuzzcompile.fuzz.campaign.campaign_settings import CampaignSettings
from fuzzcompile.fuzz.campaign.case_sources import CaseSource, DrawnCase
from fuzzcompile.fuzz.campaign.leftovers import ConfirmationQueue
from fuzzcompile.fuzz.generation.profile import Profile
from fuzzcompile.model.judge_task import JudgeResult

HERE = {"torch": "2.13.0", "device": "cpu", "machine": "aaaaaaaa"}
THERE = HERE | {"machine": "bbbbbbbb"}
CASE = "# theirs {}\ndef make(): ...\n"


@dataclass(frozen=True)
class Numbers(CaseSource):
    """Endlessly many programs."""

    name: str = ""
    profile: None = None

    def at(self, seed: int, index: int, candidate: int = 0) -> DrawnCase:
        return DrawnCase(f"# {index}.{candidate}\n", "generated", ("plain",))

    def of(self, choices: bytes) -> DrawnCase | None:
        return None


@dataclass
class Worker(AnsweringPool):
    """Finds every program right, but for those that ``shows`` names."""

    shows: tuple[str, ...] = ()
    judged: list[str] = field(default_factory=list)

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        (task,) = args
        source = task.source
        self.judged.append(source)
        future: Future[Any] = Future()
        future.set_result(JudgeResult(said(source, is_bug=source in self.shows)))
        return future


def said(source: str, *, is_bug: bool) -> Any:
    place = f"post_grad:p.py:rule{hashlib.sha256(source.encode()).hexdigest()[:6]}:x"
    report = {"schema": 1, "torch": "2.13.0", "device": "cpu", "case": "c", "culprit": None, "evidence": {}, "cost": {}}
    verdict = "miscompile" if is_bug else "equal"
    return report | {"verdict": verdict, "is_bug": is_bug, "signature": place if is_bug else None, "confidence": "high"}


def found(store: Store, number: int, environment: dict[str, Any] = THERE) -> str:
    """A finding with a reproducer, so that a campaign has nothing to minimize; its case."""
    source = CASE.format(number)
    sha256 = hashlib.sha256(source.encode()).hexdigest()
    recorded = store.record(None, CaseRecord(sha256, source, "generated"), environment, said(source, is_bug=True))
    script = Reproducer(f"script {number}\n", f"{number:064}", 1, "graph", True, "2.13.0", said(source, is_bug=True))
    assert recorded.finding_id is not None
    store.add_reproducer(recorded.finding_id, script)
    return source


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "corpus.db") as opened:
        yield opened


def campaign(store: Store, worker: Worker, cases: int, **given: Any) -> list[str]:
    """What a campaign on this machine judges of other machines' programs."""
    settings = CampaignSettings(
        **{"budget": CampaignBudget(cases=cases), "seed": 0, "profile": Profile(), "device": "cpu", "workers": 1,
           "torch": "2.13.0", "source": Numbers(), "mix": "full", "drafts": Path(store.location).parent, **given}
    )  # fmt: skip
    kept = {"stream": settings.stream, **settings.conditions}
    number = store.start_campaign(Campaign(0, kept, "run", "0", HERE))
    engine = CampaignEngine(settings, store, worker, HERE, campaign=number)
    for _ in engine.run():
        pass
    engine.finish()
    return [source for source in worker.judged if "theirs" in source]


def test_a_campaign_asks_this_machine_about_findings_of_another(store: Store) -> None:
    shows, hides = found(store, 1), found(store, 2)
    assert sorted(campaign(store, Worker((shows,)), 60)) == sorted([shows, hides])
    first, second = store.finding("F1"), store.finding("F2")
    assert (first.machines.second_machine, second.machines.second_machine) == ("confirmed", "not reproduced")
    assert (first.hits, second.hits) == (2, 1)
    assert not campaign(store, Worker(), 60), "each machine is asked once"


def test_confirmations_are_a_small_share_of_the_cases(store: Store) -> None:
    for number in range(5):
        found(store, number)
    assert len(campaign(store, Worker(), 10)) == 1
    assert len(campaign(store, Worker(), 60)) == 2


def test_what_this_machine_cannot_add_to_is_left_alone(store: Store, tmp_path: Path) -> None:
    found(store, 1, HERE)
    found(store, 2, THERE | {"torch": "2.15.0"})
    found(store, 3, THERE | {"target": "cuda:sm_90"})
    found(store, 4, {"torch": "2.13.0", "device": "cpu"})
    store.mark("F4", Mark("wontfix"))
    with Store.open(tmp_path / "theirs.db") as theirs:
        found(theirs, 5)
        list(store.copy(theirs, lambda *_: None))
    assert not campaign(store, Worker(), 120)
    store.trust(None)
    assert campaign(store, Worker(), 120) == [CASE.format(5)]


def test_a_campaign_with_another_compiler_confirms_nothing(store: Store) -> None:
    found(store, 1)
    assert not campaign(store, Worker(), 60, vetoes=("_sfdp",))


def test_a_reproducer_that_is_a_case_is_what_is_judged(store: Store) -> None:
    found(store, 1)
    script = CASE.format("reproducer")
    reproducer = Reproducer(script, "r" * 64, 0, "graph", True, "2.13.0", said(CASE.format(1), is_bug=True))
    store.add_reproducer("F1", reproducer)
    assert campaign(store, Worker(), 10) == [script]


def test_new_findings_are_looked_for_every_few_minutes(store: Store) -> None:
    now = [0.0]
    confirming = ConfirmationQueue(store, lambda: [HERE], lambda: now[0])
    assert confirming.next(0) is None
    found(store, 1)
    assert confirming.next(0) is None, "it has looked"
    now[0] = 400.0
    waiting = confirming.next(0)
    assert waiting is not None and (waiting.finding, waiting.not_on) == ("F1", {"bbbbbbbb"})
    now[0] = 800.0
    assert confirming.next(1000) is None, "it was begun"
