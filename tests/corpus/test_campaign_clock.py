"""Campaign time, and what was reached within it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import corpus_examples as examples
import pytest
from sqlalchemy import create_engine, text

from fuzzcompile.corpus.models import CampaignRow
from fuzzcompile.corpus.records import campaign_seconds, moment_at
from fuzzcompile.corpus.store import Store

START = datetime(2026, 1, 1, 12, tzinfo=UTC)


def ran(after: float, seconds: float, *, killed: bool = False) -> CampaignRow:
    begin, end = START + timedelta(seconds=after), START + timedelta(seconds=after + seconds)
    ending = {"finished": None, "ended": None} if killed else {"finished": end, "ended": "budget"}
    return CampaignRow(id=1, started=begin, last_heard=end, **ending)


def test_pauses_do_not_count_and_what_runs_at_once_counts_once():
    campaigns = [ran(100, 50), ran(0, 60), ran(30, 40, killed=True)]
    assert campaign_seconds(campaigns) == 70 + 50
    assert moment_at(campaigns, 20) == START + timedelta(seconds=20)
    assert moment_at(campaigns, 80) == START + timedelta(seconds=110)
    assert moment_at(campaigns, 121) is None and moment_at([], 1) is None


@pytest.fixture
def store(tmp_path):
    """Two campaigns of a minute an hour apart; each was first to reach something, and a case outside was too."""
    path = tmp_path / "corpus.db"
    other = replace(examples.FIRED, rewrite="second"), replace(examples.FIRED, rewrite="outside")
    with Store.open(path) as store:
        for number, source in enumerate(("first\n", "second\n")):
            campaign = store.start_campaign(examples.campaign())
            seen = [examples.FIRED] if number == 0 else [examples.FIRED, other[0]]
            store.record(campaign, examples.case(source), examples.ENVIRONMENT, examples.report(), seen)
            store.finish_campaign(campaign, {}, "budget")
        store.record(None, examples.case("outside\n"), examples.ENVIRONMENT, examples.report(), [other[1]])
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        for number in (0, 1):
            begin = START + timedelta(hours=number)
            times = {"id": number + 1, "begin": f"{begin:%Y-%m-%d %H:%M:%S.%f}"}
            times["end"] = f"{begin + timedelta(minutes=1):%Y-%m-%d %H:%M:%S.%f}"
            times["case"] = f"{begin + timedelta(seconds=30):%Y-%m-%d %H:%M:%S.%f}"
            connection.execute(
                text("update campaigns set started=:begin, last_heard=:end, finished=:end where id=:id"), times
            )
            connection.execute(text("update runs set created=:case where campaign_id=:id"), times)
        connection.execute(text("update runs set created='2026-01-01 11:00:00.000000' where campaign_id is null"))
    engine.dispose()
    with Store.open(path) as store:
        yield store


@pytest.mark.parametrize(
    ("seconds", "rewrites", "cases"),
    [(20, set(), 0), (45, {"_sfdp_pattern_28_inference"}, 1), (100, {"_sfdp_pattern_28_inference", "second"}, 2)],
)
def test_what_was_reached_until_a_moment(store, seconds, rewrites, cases):
    until = moment_at(store.campaigns(), seconds)
    assert {row.rewrite for row in store.coverage(until=until)} == rewrites
    assert store.counters(until=until).cases == cases


def test_without_a_moment_everything_counts(store):
    assert {row.rewrite for row in store.coverage()} == {"_sfdp_pattern_28_inference", "second", "outside"}
    assert store.counters().cases == 3
    assert store.counters(compiler=examples.TORCH).cases == 3 and store.counters(compiler="1.0").cases == 0
