"""On how many machines a finding was seen, and what machines that did not show it say."""

from __future__ import annotations

from pathlib import Path

import pytest
from corpus_examples import ENVIRONMENT, bug, campaign, case, report, reproducer

from fuzzcompile.corpus.records import Finding
from fuzzcompile.corpus.store import Store
from fuzzcompile.corpus.transfer import opened
from fuzzcompile.model.hints import CommandSubject
from fuzzcompile.report.circumstances import seen_on, seen_on_and_next

XEON = ENVIRONMENT | {"cpu": "Xeon", "machine": "aaaaaaaa"}
SAME_TYPE = XEON | {"machine": "bbbbbbbb"}
EPYC = ENVIRONMENT | {"cpu": "EPYC", "machine": "cccccccc"}


def finding(store: Store) -> Finding:
    """The first finding, of which lists say the same."""
    found = store.finding("F1")
    (summary,) = [listed for listed in store.summaries() if listed.id == found.id]
    assert summary.machines == found.machines
    return found


def test_a_finding_of_one_machine_waits_for_a_second(store: Store) -> None:
    store.record(None, case("a\n"), XEON, bug())
    store.record(None, case("b\n"), XEON | {"threads": 1}, bug())
    machines = finding(store).machines
    assert (machines.count, machines.second_machine, machines.processors) == (1, "pending", ("Xeon",))
    assert machines.waits_for(EPYC) and machines.waits_for(SAME_TYPE) and not machines.waits_for(XEON)
    assert not machines.waits_for(EPYC | {"torch": "2.15.0"}) and not machines.waits_for(ENVIRONMENT)
    assert seen_on(machines) == "seen on one machine (Xeon)"
    said = seen_on_and_next(machines, CommandSubject("F1"))
    assert said.startswith("Seen on one machine (Xeon); ") and said.endswith("replay --confirm --select F1`.")


@pytest.mark.parametrize("by", ["hit", "reproducer"])
def test_a_hit_or_a_confirmed_reproducer_of_another_machine_confirms_it(by: str, store: Store) -> None:
    store.record(None, case("a\n"), XEON, bug())
    if by == "hit":
        store.record(None, case("b\n"), EPYC, bug())
    else:
        store.add_reproducer("F1", reproducer("r\n", environment=EPYC, report=bug()))
    machines = finding(store).machines
    assert (machines.count, machines.second_machine) == (2, "confirmed")
    assert seen_on(machines) == "confirmed on 2 machines (Xeon, EPYC)"
    assert not machines.waits_for(EPYC | {"machine": "dddddddd"})


def test_a_reproducer_that_was_not_confirmed_confirms_nothing(store: Store) -> None:
    store.record(None, case("a\n"), XEON, bug())
    store.add_reproducer("F1", reproducer("r\n", environment=EPYC, report=bug(), confirmed=False))
    assert finding(store).machines.count == 1


def test_a_machine_of_another_type_that_finds_it_right_says_so(store: Store) -> None:
    store.record(None, case("a\n"), XEON, bug())
    store.record(None, case("a\n"), EPYC, report())
    machines = finding(store).machines
    assert (machines.second_machine, machines.clean, machines.clean_processors) == (
        "not reproduced", {"cccccccc"}, ("EPYC",)
    )  # fmt: skip
    assert seen_on(machines) == ("seen on one machine; shows on one type of processor only (Xeon), not on EPYC")
    store.record(None, case("c\n"), SAME_TYPE, bug())
    assert seen_on(finding(store).machines) == (
        "confirmed on 2 machines; shows on one type of processor only (Xeon), not on EPYC"
    )
    store.record(None, case("d\n"), EPYC | {"machine": "dddddddd"}, bug())
    assert seen_on(finding(store).machines) == (
        "confirmed on 3 machines (Xeon, EPYC); 1 other machine judged the same program and did not show it"
    )


def test_the_reproducer_judged_as_a_case_says_the_same_as_the_case(store: Store) -> None:
    store.record(None, case("a\n"), XEON, bug())
    store.add_reproducer("F1", reproducer("r\n", report=bug(), environment=XEON))
    store.record(None, case("r\n"), SAME_TYPE, report())
    assert seen_on(finding(store).machines) == (
        "seen on one machine (Xeon); 1 other machine judged the same program and did not show it"
    )


@pytest.mark.parametrize(
    ("environment", "told", "screened"),
    [
        (EPYC, report(verdict="crash"), False),
        (EPYC, report(), True),
        (EPYC | {"torch": "2.15.0"}, report(), False),
        (EPYC | {"device": "cuda:0"}, report(), False),
        (EPYC | {"target": "cuda:sm_90"}, report(), False),
    ],
    ids=["no judgement", "a screen", "another torch", "another device", "another target"],
)
def test_what_says_nothing_of_the_finding_is_not_held_against_it(
    environment: dict[str, object], told: dict[str, object], screened: bool, store: Store
) -> None:
    store.record(None, case("a\n"), XEON, bug())
    store.record(None, case("a\n"), environment, told, screened=screened)
    assert finding(store).machines.second_machine == "pending"


def test_machines_that_are_not_known_count_as_one(store: Store) -> None:
    for number in range(3):
        store.record(None, case(f"{number}\n"), ENVIRONMENT | {"cores": number}, bug())
    assert finding(store).machines.count == 1 and not finding(store).machines.waits_for(XEON)
    store.record(None, case("a\n"), XEON, bug())
    assert finding(store).machines.count == 1, "the unknown one may be this"
    store.record(None, case("b\n"), EPYC, bug())
    assert finding(store).machines.count == 2


def test_a_gpu_is_the_processor_that_counts_where_one_ran(store: Store) -> None:
    store.record(None, case("a\n"), XEON | {"device": "cuda:0", "device_name": "H100"}, bug())
    assert finding(store).machines.processors == ("H100",)


@pytest.mark.parametrize("changed", [{"plants": {"p": "0"}}, {"vetoes": ["v"]}, {"custom": ["pass"]}])
def test_another_compiler_confirms_nothing(changed: dict[str, object], store: Store) -> None:
    store.record(None, case("a\n"), XEON, bug())
    store.record(store.start_campaign(campaign(settings=changed)), case("b\n"), EPYC, bug())
    machines = finding(store).machines
    assert (machines.count, machines.second_machine, machines.processors) == (1, "pending", ("Xeon",))
    assert machines.waits_for(EPYC)
    store.record(store.start_campaign(campaign()), case("c\n"), EPYC, bug())
    assert finding(store).machines.second_machine == "confirmed"


@pytest.mark.parametrize("other", [{"torch": "2.15.0"}, {"device": "cuda:0"}, {"target": "cuda:sm_90"}])
def test_machines_under_other_conditions_do_not_confirm_each_other(other: dict[str, object], store: Store) -> None:
    store.record(None, case("a\n"), XEON, bug())
    store.record(None, case("b\n"), EPYC | other, bug())
    machines = finding(store).machines
    assert (machines.count, machines.second_machine) == (1, "pending")
    assert machines.waits_for(EPYC) and machines.waits_for(XEON | other) and not machines.waits_for(EPYC | other)
    store.record(None, case("c\n"), SAME_TYPE | other, bug())
    assert finding(store).machines.count == 2


@pytest.mark.parametrize("known", [True, False], ids=["a case of ours", "another case"])
@pytest.mark.parametrize("trusted", [True, False])
def test_a_corpus_that_is_not_trusted_adds_no_machine(
    known: bool, trusted: bool, file_store: Store, tmp_path: Path
) -> None:
    file_store.record(None, case("a\n"), XEON, bug())
    with Store.open(tmp_path / "theirs.db") as theirs:
        theirs.record(None, case("a\n" if known else "b\n"), EPYC, bug())
        theirs.add_reproducer("F1", reproducer("r\n", environment=SAME_TYPE, report=bug()))
    with opened(str(tmp_path / "theirs.db"), None) as source:
        assert isinstance(source, Store)
        list(file_store.copy(source, lambda *_: None, trusted=trusted))
    assert finding(file_store).machines.count == (3 if trusted else 1)


def test_a_finding_of_a_corpus_that_is_not_trusted_was_seen_on_one_machine(file_store: Store, tmp_path: Path) -> None:
    with Store.open(tmp_path / "theirs.db") as theirs:
        for name, where in (("a\n", XEON), ("b\n", EPYC)):
            theirs.record(None, case(name), where, bug())
    with opened(str(tmp_path / "theirs.db"), None) as source:
        assert isinstance(source, Store)
        list(file_store.copy(source, lambda *_: None, trusted=False))
    assert seen_on(finding(file_store).machines) == "seen on one machine (Xeon)"
    file_store.trust(None)
    assert finding(file_store).machines.count == 2
