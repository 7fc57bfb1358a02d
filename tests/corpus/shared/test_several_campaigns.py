"""Campaigns at once on one corpus: each has its part of the stream, and they learn from each other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from answering import AnsweringPool
from corpus_examples import ENVIRONMENT, FIRED, TORCH, bug, campaign, case, report
from sqlalchemy import update

from fuzzcompile.corpus import transactions
from fuzzcompile.corpus.models import CampaignRow
from fuzzcompile.corpus.records import Campaign, StreamRun
from fuzzcompile.corpus.store import Store
from fuzzcompile.corpus.transactions import PLACES, find_part
from fuzzcompile.fuzz.campaign import campaign_engine
from fuzzcompile.fuzz.campaign.budget import CampaignBudget
from fuzzcompile.fuzz.campaign.campaign_engine import CampaignEngine
from fuzzcompile.fuzz.campaign.campaign_settings import CampaignSettings
from fuzzcompile.fuzz.campaign.case_sources import CaseSource, DrawnCase
from fuzzcompile.fuzz.campaign.steering import CoverageExchange, list_places, sort_own_last
from fuzzcompile.fuzz.generation.profile import Profile
from fuzzcompile.model.errors import CaseError
from fuzzcompile.model.judge_task import JudgeResult, JudgeTask
from fuzzcompile.model.verdicts import CoverageCount


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    location = tmp_path / "c.db" if request.param == "sqlite" else request.getfixturevalue("database")
    with Store.open(location) as opened:
        yield opened


@pytest.fixture(autouse=True)
def processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each campaign counts as one of a process on a machine of its own."""
    numbers = itertools.count()
    monkeypatch.setattr(transactions, "this_process", lambda: f"machine{next(numbers)}:1:1")


def of(stream: str) -> Campaign:
    return campaign(settings={"stream": stream})


def silence(store: Store, key: int) -> None:
    """Let a campaign have said nothing for four minutes."""
    with store._engine.begin() as connection:
        past = transactions.now() - timedelta(minutes=4)
        connection.execute(update(CampaignRow).where(CampaignRow.id == key).values(last_heard=past))


def test_each_takes_the_lowest_part_that_is_free(store: Store) -> None:
    first, second, elsewhere = (store.start_campaign(of(stream)) for stream in ("s", "s", "t"))
    assert [store.part(key) for key in (first, second, elsewhere)] == [0, 1, 0]
    store.finish_campaign(first, {}, "budget")
    assert store.part(store.start_campaign(of("s"))) == 0
    assert store.part(store.start_campaign(of("s"))) == 2
    assert len(store.living()) == 4


def test_a_silent_campaigns_part_is_taken_and_it_takes_another(store: Store) -> None:
    stopped, other = store.start_campaign(of("s")), store.start_campaign(of("s"))
    silence(store, stopped)
    successor = store.start_campaign(of("s"))
    assert store.part(successor) == 0 and stopped not in store.living()
    assert store.heartbeat(stopped, {}) == store.part(stopped) == 2
    assert [store.heartbeat(key, {}) for key in (successor, other, stopped)] == [0, 1, 2]


def test_a_silent_campaign_whose_part_nobody_took_keeps_it(store: Store) -> None:
    stopped = store.start_campaign(of("s"))
    silence(store, stopped)
    assert store.heartbeat(stopped, {"cases": 1}) == 0 and stopped in store.living()


def test_a_campaign_whose_process_is_gone_frees_its_part_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "this_process", lambda: f"{transactions._machine()}:{2**22 + 1}:7")
    store.start_campaign(of("s"))
    monkeypatch.undo()
    assert store.part(store.start_campaign(of("s"))) == 0


def test_parts_are_apart_and_those_of_a_stream_that_ends_cover_it() -> None:
    assert list(itertools.islice(list_places(2, None), 3)) == [2 * PLACES, 2 * PLACES + 1, 2 * PLACES + 2]
    assert [find_part(place) for place in (0, PLACES - 1, PLACES)] == [0, 0, 1]
    assert list(list_places(0, 7)) == list(range(7))
    begins = [next(iter(list_places(part, 1000))) for part in range(5)]
    assert all(sorted(list_places(part, 7)) == list(range(7)) for part in range(5)) and len(set(begins)) == 5
    past = [StreamRun(index, (), False, 0) for index in (3, PLACES, 2 * PLACES)]
    assert [run.index for run in sort_own_last(past, 1)] == [3, 2 * PLACES, PLACES]


def test_what_others_reached_and_proved_is_taken_over(store: Store) -> None:
    store.record(None, case("old\n"), ENVIRONMENT, bug("old"))
    heard: set[tuple[str, str, str]] = set()
    known: set[tuple[str, str]] = set()
    hearsay = CoverageExchange(store, TORCH, lambda finding: finding.is_proved)
    store.record(None, case("new\n"), ENVIRONMENT, bug("proved"), [FIRED])
    store.record(None, case("unproved\n"), ENVIRONMENT, bug("unproved", culprit={"necessary": None}))
    store.record(None, case("elsewhere\n"), {**ENVIRONMENT, "torch": "9"}, report(), [FIRED])
    hearsay.merge_news(heard.update, known)
    assert heard == {
        (FIRED.stage, FIRED.rewrite, "fired"),
        ("finding", "proved", "fired"),
        ("finding", "unproved", "fired"),
    }
    assert known == {("proved", "values")}
    heard.clear()
    hearsay.merge_news(heard.update, known)
    assert not heard
    store.record(None, case("now proved, and short\n"), ENVIRONMENT, bug("unproved"))
    hearsay.merge_news(heard.update, known)
    assert ("unproved", "values") in known, "a finding that is older than the last look"


@dataclass(frozen=True)
class Numbers(CaseSource):
    """A program a place."""

    name: str = ""
    profile: None = None

    def at(self, seed: int, index: int, candidate: int = 0) -> DrawnCase:
        return DrawnCase(f"# {index}\n", "generated", ("feature",), spec={"number": index})

    def of(self, choices: bytes) -> DrawnCase | None:
        return None


class Inline(AnsweringPool):
    """Answers every task at once; each third case shows one of two proved bugs."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        (task,) = args
        future: Future[Any] = Future()
        if not isinstance(task, JudgeTask):
            future.set_exception(CaseError("nothing is minimized here"))
            return future
        number = int(task.source.removeprefix("# "))
        judged = bug(f"post_grad:torch/m.py:rule{number % 2}") if number % 3 == 0 else report()
        future.set_result(JudgeResult(judged, (CoverageCount("joint_graph", "p", f"rule{number % 5}", "fired", 1),)))
        return future


def engine(store: Store, folder: Path, cases: int) -> CampaignEngine:
    """A campaign of the one stream that all of them judge."""
    settings = CampaignSettings(
        budget=CampaignBudget(cases=cases), seed=0, profile=Profile(), device="cpu", workers=1, torch=TORCH,
        drafts=folder / "drafts", source=Numbers(),
    )  # fmt: skip
    key = store.start_campaign(Campaign(0, {"stream": settings.stream}, "run", "0", ENVIRONMENT))
    return CampaignEngine(settings, store, Inline(), ENVIRONMENT, campaign=key)


def test_two_campaigns_judge_different_places_and_find_each_bug_once(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign_engine, "_HEARTBEAT", 0.0)
    both = [engine(store, tmp_path, 30), engine(store, tmp_path, 30)]
    for _ in itertools.zip_longest(*(each.run() for each in both)):
        pass
    stream = both[0].settings.stream
    indices = store.recorded_indices(stream)
    assert sorted(indices) == [*range(30), *range(PLACES, PLACES + 30)]
    assert store.counters().runs == store.counters().cases == 60
    found = store.findings()
    assert len(found) == 2 and sum(finding.hits for finding in found) == sum(index % 3 == 0 for index in indices)
    assert sum(row.count for row in store.coverage(TORCH)) == 60
    assert {("finding", finding.signature, "fired") for finding in found} <= both[1]._work.steering.seen
    for each in both:
        each.finish()
    third = engine(store, tmp_path, 5)
    for _ in third.run():
        pass
    assert store.recorded_indices(stream) - indices == set(range(30, 35)), "it resumes the part that was freed"
