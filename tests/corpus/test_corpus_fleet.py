"""What a fleet does, as its corpus tells it: campaigns, speeds, disagreements, confirmations."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from corpus_examples import ENVIRONMENT, bug, campaign, case, report

from fuzzcompile.corpus import transactions
from fuzzcompile.corpus.fleet import Fleet
from fuzzcompile.corpus.store import Store
from fuzzcompile.front.cli.fleet import fleet_text


def machine(name: str, **fields: Any) -> dict[str, Any]:
    return {**ENVIRONMENT, "cpu": f"type {name}", "machine": name * 8, **fields}


def after(store: Store, **passed: float) -> Fleet:
    return store.fleet(datetime.now(UTC) + timedelta(**passed))


def said(store: Store, fleet: Fleet) -> str:
    return "\n".join(fleet_text(fleet, store.summaries(), store.location))


def begin(store: Store, environment: dict[str, Any], **settings: Any) -> int:
    return store.start_campaign(campaign(environment=environment, settings={"workers": 4, **settings}))


def judge(store: Store, number: int, environment: dict[str, Any], cases: int, seconds: float, **how: Any) -> None:
    for index in range(cases):
        source = f"# {number} {index} {seconds}\n"
        store.record(number, case(source), environment, report(cost={"seconds": seconds}), **how)


def test_an_empty_corpus_has_no_campaign(store: Store) -> None:
    assert "No campaign was heard of in the last day." in said(store, after(store))


def test_a_campaign_runs_goes_silent_or_ends_and_is_forgotten_after_a_day(store: Store) -> None:
    lives, ends = begin(store, machine("a")), begin(store, machine("b"))
    store.heartbeat(lives, {"cases": 12, "new_findings": 2})
    store.finish_campaign(ends, {"cases": 3}, "budget")
    assert [(c.state, c.ended, c.cases, c.workers) for c in after(store).campaigns] == [
        ("runs", None, 12, 4), ("ended", "budget", 3, 4)
    ]  # fmt: skip
    later = after(store, minutes=4)
    assert [c.state for c in later.campaigns] == ["silent", "ended"]
    assert "1 silent, 1 ended; 0 workers" in said(store, later)
    assert f"Went silent: campaign {lives} on machine aaaaaaaa, last heard 4 min ago" in said(store, later)
    assert not after(store, hours=25).campaigns


def test_a_machine_that_falls_behind_is_named_with_its_numbers(store: Store) -> None:
    for name, seconds in {"a": 1.0, "b": 1.2, "c": 5.0}.items():
        judge(store, begin(store, machine(name)), machine(name), 12, seconds)
    fleet = after(store)
    assert {m.machine[0]: m.speed.full for m in fleet.machines} == {
        "a": pytest.approx(60.0), "b": pytest.approx(50.0), "c": pytest.approx(12.0)
    }  # fmt: skip
    assert [m.machine for m in fleet.machines if m.behind] == ["cccccccc"]
    text = said(store, fleet)
    assert "Falls behind: machine cccccccc (type c) judges 12.0 cases in full a minute and worker; the median" in text
    assert "the 3 machines under torch 2.13.0+cpu for cpu is 50.0" in text and "machine aaaaaaaa (" not in text


def test_only_machines_that_do_the_same_are_compared(store: Store) -> None:
    fast, other = machine("a"), machine("b", torch="2.15.0")
    judge(store, begin(store, fast), fast, 12, 1.0)
    judge(store, begin(store, other), other, 12, 9.0)
    screens = machine("c")
    judge(store, begin(store, screens), screens, 12, 0.1, screened=True)
    few = machine("d")
    judge(store, begin(store, few), few, 5, 60.0)
    fleet = after(store)
    assert not [m for m in fleet.machines if m.behind]
    assert {m.machine[0]: m.cases for m in fleet.machines} == {"a": 12, "b": 12, "c": 12, "d": 5}


def test_speeds_are_those_of_the_last_hour(store: Store) -> None:
    number = begin(store, machine("a"))
    judge(store, number, machine("a"), 30, 1.0)
    assert [m.cases for m in after(store).machines] == [30]
    assert not after(store, hours=2).machines


def test_machines_that_judge_one_case_differently_are_named(store: Store) -> None:
    store.record(None, case("a\n"), machine("a"), bug())
    store.record(None, case("a\n"), machine("b"), report())
    store.record(None, case("b\n"), machine("a"), report(verdict="equal"))
    store.record(None, case("b\n"), machine("b"), report(verdict="rounding"))
    (different,) = after(store).disagreements
    assert (different.case, different.finding) == (case("a\n").sha256, "F1")
    assert [(j.machine, j.verdict) for j in different.judgements] == [("a" * 8, "miscompile"), ("b" * 8, "rounding")]
    assert "of F1: miscompile on aaaaaaaa (type a), rounding on bbbbbbbb (type b)" in said(store, after(store))


def test_what_was_judged_under_other_conditions_is_no_disagreement(store: Store) -> None:
    store.record(None, case("a\n"), machine("a"), bug())
    for other in (
        machine("b", torch="2.15.0"), machine("b", device="cuda:0"), machine("b", target="cuda:sm_90"), machine("a"),
        {**machine("b"), "machine": None},
    ):  # fmt: skip
        store.record(None, case("a\n"), other, report())
    planted = begin(store, machine("b"), plants=["p.py"])
    store.record(planted, case("a\n"), machine("b"), report())
    store.record(None, case("a\n"), machine("b"), report(), screened=True)
    store.record(None, case("a\n"), machine("b"), report(verdict="timeout"))
    assert not after(store).disagreements


def test_new_and_confirmed_findings_are_counted(store: Store) -> None:
    for number in range(3):
        store.record(None, case(f"{number}\n"), machine("a"), bug(f"post_grad:p{number}.py:fold"))
    store.record(None, case("0\n"), machine("b"), bug("post_grad:p0.py:fold"))
    store.record(None, case("1\n"), machine("b"), report())
    fleet = after(store)
    assert (fleet.new_in_hour, fleet.new_in_day, after(store, hours=2).new_in_hour) == (3, 3, 0)
    assert "1 confirmed on a second machine, 1 waiting for one, 1 that did not show on one; `" in said(store, fleet)


def test_the_present_is_that_of_the_server(server_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    server_store.start_campaign(campaign())
    monkeypatch.setattr(transactions, "now", lambda: datetime(2000, 1, 1, tzinfo=UTC))
    now = server_store.fleet()
    assert abs(now.at - datetime.now(UTC)) < timedelta(minutes=2)
    assert [each.state for each in now.campaigns] == ["runs"]
