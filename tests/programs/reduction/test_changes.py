"""What is changed, and in which words: no compile is needed to see that."""

from __future__ import annotations

import pytest
import torch

from fuzzcompile.diagnosis.causes.search import (
    ScreenResult,
    find_cause,
    generate_windows,
    shrink_window,
)
from fuzzcompile.programs.edits.changes import generate_changes, list_arguments, name_operation
from fuzzcompile.programs.ir.case_source import write_source
from fuzzcompile.programs.ir.program import Form, Input, Program, Ref, Statement

X, Y = Ref("x"), Ref("y")


def drawn(name: str, *shape: int, **given: torch.dtype) -> Input:
    return Input.from_tensor(name, torch.randn(shape, **given))


def program(*statements: Statement, **given: object) -> Program:
    inputs = given.pop("inputs", (drawn("x", 2, 3, 3), drawn("y", 2, 3, 3)))
    return Program(inputs, statements, Ref(statements[-1].name), **given)


def offered(*statements: Statement, **given: object) -> list[tuple[str, str, str]]:
    return [
        (change.fingerprint, change.before, change.after) for change in generate_changes(program(*statements, **given))
    ]


@pytest.mark.parametrize(
    ("form", "target", "args", "kwargs", "named"),
    [
        ("method", "softmax", (X, -2), {}, ("softmax", "dim", -2)),
        ("function", "F.softmax", (X,), {"dim": -2}, ("softmax", "dim", -2)),
        ("function", "torch.softmax", (X, 1), {}, ("softmax", "dim", 1)),
        ("method", "cumsum", (X,), {"axis": 1}, ("cumsum", "dim", 1)),
        ("function", "torch.add", (X, Y), {"alpha": 0.5}, ("add", "alpha", 0.5)),
        ("method", "add_", (X, Y), {"alpha": 2}, ("add", "alpha", 2)),
        ("operator", "*", (X, 0.5), {}, ("mul", "other", 0.5)),
        ("function", "F.gelu", (X,), {"approximate": "tanh"}, ("gelu", "approximate", "tanh")),
        ("function", "torch.cat", ([X, Y], 1), {}, ("cat", "dim", 1)),
        ("method", "movedim", (X, 1, 2), {}, ("permute", "destination", 2)),
    ],
)
def test_spellings_of_one_call_are_one_operation(form, target, args, kwargs, named):
    statement = Statement("out", form, target, args, kwargs)
    last = list_arguments(statement)[-1]
    assert (name_operation(statement), last.name, last.value) == named


def test_the_usual_comes_first_and_equal_dimensions_are_equal():
    found = offered(Statement("out", "method", "softmax", (X, 1)))
    assert found[0] == ("softmax(dim)", "x.softmax(1)", "x.softmax(-1)")
    assert offered(Statement("out", "method", "softmax", (X, 2)))[0][0] != "softmax(dim)"
    found = offered(Statement("out", "function", "torch.add", (X, Y), {"alpha": 0.5}))
    assert found[0] == ("add(alpha)", "alpha=0.5", "alpha=1")


def test_gradients_are_required_where_they_are_recorded_and_nothing_requires_one():
    statement = Statement("out", "method", "sin", (X,))
    wanted = ("no gradient required", "x", "x.requires_grad_()")
    assert wanted in offered(statement, settings={"GRAD": "enabled"})
    changes = generate_changes(program(statement, settings={"BACKWARD": True}))
    (changed,) = (change.program for change in changes if change.kind == "gradient")
    assert all(each.requires_grad for each in changed.inputs)
    required = (Input("x", (2,), (1,), torch.float32, requires_grad=True, values=torch.randn(2)),)
    assert wanted not in offered(statement)
    assert wanted not in offered(statement, settings={"GRAD": "enabled"}, inputs=required)


def test_a_permutation_is_taken_apart_only_where_it_swaps_the_last_two_among_others():
    inputs = (drawn("x", 2, 3, 4, 5),)
    assert offered(Statement("out", "method", "permute", (X, 0, 2, 3, 1)), inputs=inputs)[0] == (
        "permute(dims)", "x.permute(0, 2, 3, 1)", "x.permute(0, 2, 1, 3).transpose(-2, -1)",
    )  # fmt: skip
    for usual in ((0, 2, 1, 3), (0, 1, 3, 2)):
        found = offered(Statement("out", "method", "permute", (X, *usual)), inputs=inputs)
        assert "permute(dims)" not in {fingerprint for fingerprint, _, _ in found}


@pytest.mark.parametrize(
    ("statement", "inputs", "fingerprint"),
    [
        (Statement("out", "operator", "*", (X, X)), (drawn("x", 3, dtype=torch.float16),), "dtype"),
        (Statement("out", "method", "sin", (X,)), (Input.from_tensor("x", torch.randn(3, 2).T),), "layout"),
        (Statement("out", "operator", "*", (X, X)), (drawn("x", 3),), "sharing"),
        (Statement("out", "method", "sin", (X,)), (drawn("x", 1, 3),), "size of 1"),
        (Statement("out", "method", "sin", (X,)), (drawn("x", 0, 3),), "size of 0"),
        (Statement("out", "method", "sin", (X,)), (drawn("x"),), "no dimension"),
        (Statement("out", "function", "torch.full", ((), 5.0)), (), "no dimension"),
        (
            Statement("out", "function", "torch.index_select", (X, 0, Ref("index"))),
            (drawn("x", 3), Input.from_tensor("index", torch.tensor([2]))),
            "index_select(index)",
        ),
    ],
)
def test_tensors_are_changed_in_every_respect(statement, inputs, fingerprint):
    assert fingerprint in {found for found, _, _ in offered(statement, inputs=inputs)}


def test_one_change_is_made_in_all_statements_that_need_it():
    halves = [Statement(name, "function", "torch.sub", (X, Y), {"alpha": 2}) for name in ("a", "b")]
    first = next(generate_changes(program(*halves, Statement("out", "operator", "+", (Ref("a"), Ref("b"))))))
    assert "alpha=2" not in write_source(first.program) and write_source(first.program).count("alpha=1") == 2


# -- windows --------------------------------------------------------------------------------------


def lined(name: str, form: Form, target: str, args: tuple[object, ...], line: int) -> Statement:
    return Statement(name, form, target, args, line=line)


LAYERS = program(
    lined("a", "method", "relu", (X,), 1),
    lined("s", "method", "softmax", (Ref("a"), 1), 7),
    lined("b", "operator", "@", (Ref("s"), Y), 8),
    lined("c", "method", "relu", (Ref("b"),), 2),
    lined("s2", "method", "softmax", (Ref("c"), 1), 7),
    lined("d", "operator", "@", (Ref("s2"), Y), 8),
    lined("out", "method", "sin", (Ref("d"),), 3),
)


def test_a_window_holds_the_lines_of_the_match_and_the_values_that_they_got():
    window = next(generate_windows([LAYERS], {7, 8}, 8, 2))
    assert [statement.target for statement in window.statements] == ["softmax", "@"]
    assert [input_.shape for input_ in window.inputs] == [(2, 3, 3)] * 2
    assert not window.is_recorded
    both = [w for w in generate_windows([LAYERS], {7, 8}, 8, 2) if len(w.statements) == 4]
    assert both, "all matches of the lines come after the one that was asked for"


def test_a_window_shrinks_from_its_ends():
    window = next(generate_windows([LAYERS], {7, 8}, 8, 1))
    assert [[s.target for s in part.statements] for part in shrink_window(window)] == [["@"]]


# -- the search -----------------------------------------------------------------------------------


class Rules:
    """Stands in for compiles: a scaled softmax is wrong, unless a rule for a part of its text says otherwise."""

    def __init__(self, *rules: tuple[str, bool]) -> None:
        self.rules, self.asked = rules, 0

    def __call__(self, candidate: Program) -> ScreenResult:
        self.asked += 1
        text = write_source(candidate)
        for part, fires in self.rules:
            if part in text:
                return ScreenResult(False, True, fires)
        return ScreenResult("softmax" in text and " * " in text, False, True)


REPORT = {
    "is_bug": True,
    "verdict": "miscompile",
    "culprit": {"stage": "joint_graph", "family": "rule", "source": "rules.py", "site": "model.py:7 #1"},
}
ATTENTION = program(Statement("s", "method", "softmax", (X, 1)), Statement("out", "operator", "*", (Ref("s"), 3.0)))


def test_a_change_that_keeps_the_culprit_from_firing_is_no_cause():
    hides = ("softmax(-1)", False)
    assert find_cause(REPORT, [ATTENTION], Rules(hides)) is None
    found = find_cause(REPORT, [ATTENTION], Rules(hides, ("float64", True)))
    assert (found["fingerprint"], found["still"]) == ("dtype", "fires")
    assert find_cause(REPORT, [ATTENTION], Rules(("softmax(-1)", True)))["fingerprint"] == "softmax(dim)"


def test_nothing_that_mends_it_is_no_cause_and_the_cost_is_bounded():
    rules = Rules()
    assert find_cause(REPORT, [ATTENTION], rules) is None
    assert 2 < rules.asked <= 28


def test_a_known_cause_is_tried_first():
    rules = Rules(("float64", True), ("softmax(-1)", True))
    assert find_cause(REPORT, [ATTENTION], rules, known={"dtype"})["fingerprint"] == "dtype"
    assert rules.asked == 2


@pytest.mark.parametrize("change", [{"is_bug": False}, {"culprit": None}, {"culprit": {"stage": "codegen"}}])
def test_nothing_is_looked_for_where_no_fingerprint_belongs(change):
    rules = Rules(("softmax(-1)", True))
    assert find_cause({**REPORT, **change}, [ATTENTION], rules) is None and not rules.asked
