"""Python state that changes between calls: eager mode runs it, alike each time, and notices the change."""

from __future__ import annotations

import random
import subprocess
import sys
from itertools import count
from typing import Any

import pytest
import torch

from fuzzcompile.fuzz.generation.cases import GeneratedCase, draw_case_at, from_choices
from fuzzcompile.fuzz.generation.profile import Profile, list_names
from fuzzcompile.fuzz.stateful_programs import grammar
from fuzzcompile.fuzz.stateful_programs.source import list_definitions, list_imports
from fuzzcompile.run.runs import enter_grad_mode
from fuzzcompile.run.tensors import name_leaves

STATEFUL = Profile().steer({"stateful": 10_000, "plain": 0})


def drawn(amount: int, seed: int = 0, profile: Profile = STATEFUL) -> list[GeneratedCase]:
    cases = (draw_case_at(seed, index, profile) for index in count())
    stateful = (case for case in cases if case.spec.state is not None)
    return [next(stateful) for _ in range(amount)]


@pytest.fixture(scope="module")
def programs() -> list[GeneratedCase]:
    return drawn(150)


def load(case: GeneratedCase, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of a case's file, whose functions find their module."""
    module = type(sys)("stateful_case")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(case.source, "case.py", "exec"), module.__dict__)
    return module.__dict__


def call(names: dict[str, Any]) -> list[list[object]]:
    """What each call of ``run`` returned, leaf by leaf."""
    torch.manual_seed(0)
    random.seed(0)
    model, inputs = names["make"]()
    with enter_grad_mode(names.get("GRAD", "enabled" if "BACKWARD" in names else "no_grad")):
        made = names["run"](model, inputs)
    return [[leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for _, leaf in name_leaves("", m)] for m in made]


def equal(left: list[object], right: list[object]) -> bool:
    return len(left) == len(right) and all(map(_same, left, right))


def _same(left: object, right: object) -> bool:
    if not (isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor)):
        return left == right
    return left.dtype == right.dtype and torch.equal(left.nan_to_num(), right.nan_to_num())


def test_make_sets_everything_back_and_most_calls_differ(programs, monkeypatch) -> None:
    differ = 0
    for case in programs:
        names = load(case, monkeypatch)
        first, again = call(names), call(names)
        assert len(first) == len(again) >= 2
        assert all(map(equal, first, again)), case.source
        differ += not all(equal(first[0], later) for later in first[1:])
    assert differ > 0.7 * len(programs)  # what a forward pass calls besides operators changes nothing


def test_a_program_is_compiled_whole_and_called_in_ways_that_eager_mode_takes(programs) -> None:
    for case in programs:
        how = case.spec.compile
        assert (how.path, how.mode, how.fullgraph, how.calls) == ("compile", None, False, ())
        assert "stateful" in case.features and set(case.spec.states) <= set(case.features)
        assert from_choices(case.choices, STATEFUL) == case


def test_rows_have_names_of_their_own_and_can_be_ruled_out() -> None:
    names = [name.name for name in list_names()]
    assert len(names) == len(set(names))
    rows = [row.name for row in grammar.load_rows("carriers")]
    ruled_out = {name: 0 for name in rows if name != "carrier_closure"}
    only = Profile().steer({"stateful": 10_000, "plain": 0, "stateful_function": 0, **ruled_out})
    carried = {name for case in drawn(40, profile=only) for name in case.spec.states if name in rows}
    assert carried == {"carrier_closure"}


@pytest.fixture(scope="module")
def every_row() -> list[GeneratedCase]:
    """Programs in which each row is drawn."""
    return drawn(1800, seed=1)


@pytest.mark.slow
def test_every_carrier_change_and_effect_is_drawn(every_row) -> None:
    names = {name for case in every_row for name in case.spec.states}
    rows = {row.name for table in ("carriers", *grammar.ROW_TABLES) for row in grammar.load_rows(table)}
    assert rows <= names


@pytest.mark.slow
def test_each_row_is_formatted(tmp_path, every_row) -> None:
    pytest.importorskip("ruff")
    for index, case in enumerate(every_row):
        if max(map(len, case.source.splitlines())) <= 100:
            (tmp_path / f"case_{index}.py").write_text(case.source)
    arguments = ["format", "--isolated", "--no-cache", "--check", "--line-length", "100"]
    result = subprocess.run([sys.executable, "-m", "ruff", *arguments, tmp_path], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


@pytest.mark.slow
def test_every_way_to_read_a_value_is_drawn() -> None:
    names = {name for case in drawn(4000, seed=1) for name in case.spec.states}
    assert {name.name for name in list_names() if name.kind.startswith("state_")} <= names


@pytest.mark.parametrize("table", grammar.ROW_TABLES)
def test_texts_of_a_row_change_one_program_alone(table: str) -> None:
    for row in grammar.load_rows(table):
        assert row.summary.endswith(".") and row.weight > 0 and row.read


def test_what_a_text_uses_is_defined_and_imported() -> None:
    assert list_imports(["x = OrderedDict(partial(field), deque())", "math.pi"]) == [
        "import math",
        "from collections import OrderedDict, deque",
        "from dataclasses import field",
        "from functools import partial",
    ]
    assert [text.split("(")[0].split(":")[0] for text in list_definitions(["y = Shifted(2)"])][-1].endswith("Shifted")
    assert list_definitions(["self.double()", 'x = "halve"']) == []


def test_a_value_is_drawn_with_another_one_later() -> None:
    for kind in grammar.load_kinds():
        assert len(set(kind.values)) == len(kind.values) >= 2
        assert all("$s" in "".join(lines) for lines in kind.reads.values())


@pytest.mark.slow
def test_two_thousand_programs_run_alike_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    for case in drawn(2000, seed=7):
        names = load(case, monkeypatch)
        assert all(map(equal, call(names), call(names))), case.source
