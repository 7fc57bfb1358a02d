"""What a finding was drawn from: the corpus says it, and an export keeps it."""

import json
from dataclasses import replace
from pathlib import Path

from corpus_examples import ENVIRONMENT, bug, case

from fuzzcompile.corpus.store import Store
from fuzzcompile.corpus.transfer import opened


def recorded(store: Store, *features: tuple[str, ...]) -> str | None:
    for number, names in enumerate(features):
        store.record(None, replace(case(f"x = {number}\n"), features=names), ENVIRONMENT, bug())
    return store.findings()[0].drawn_from


def test_a_form_that_all_cases_have_is_named_with_its_report(store: Store) -> None:
    assert recorded(store, ("counted", "dtype_float32"), ("softmax_axis",)) == "the form of #189518"


def test_one_case_of_general_parts_is_enough(store: Store) -> None:
    assert recorded(store, ("counted",), ("scan", "dtype_float32")) == "general parts"


def test_a_case_that_no_generator_drew_says_nothing(store: Store) -> None:
    assert recorded(store, ()) is None


def test_an_export_keeps_it(store: Store, tmp_path: Path) -> None:
    recorded(store, ("counted",))
    store.export("F1", tmp_path / "out")
    summary = json.loads((tmp_path / "out" / "finding.json").read_text())
    assert (summary["drawn_from"], summary["features"]) == ("the form of #189518", ["counted"])
    with Store.open(tmp_path / "second.db") as second:
        with opened(str(tmp_path / "out"), tmp_path / "second.db") as found:
            assert not isinstance(found, Store)
            assert [arrived.how for arrived in second.take(found)] == ["new"]
        assert second.findings()[0].drawn_from == "the form of #189518"
