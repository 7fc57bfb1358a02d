"""Reducers, each alone: what they make of a program is what a made-up bug leaves them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fuzzcompile.reduction.program import Input, Program, Ref, Statement
from fuzzcompile.reduction.reducers import arguments, cutting, inputs, nodes, settings, shapes
from fuzzcompile.reduction.reducers.neighbours import passing_neighbour
from fuzzcompile.reduction.schedule import LostBug, reduce_programs
from fuzzcompile.reduction.search import Budget, OutOfBudget, Probed, Questions, Search
from fuzzcompile.reduction.statements import reduce_text
from fuzzcompile.reduction.writing import Written, case_source


class Bug:
    """A compiler whose bug is there wherever the source holds; counts what it was asked."""

    def __init__(self, holds: Callable[[str], bool]) -> None:
        self.holds = holds
        self.asked: list[str] = []

    def probe(self, candidate: Written, *, screen: bool) -> Probed:
        self.asked.append(candidate.source)
        shown = self.holds(candidate.source)
        return Probed(shown, shown, "miscompile" if shown else "equal", int(not screen), int(screen))


def search(program: Program, *needs: str, compiles: int = 500) -> Search:
    """A search for the smallest program whose source has all of ``needs``."""
    return Search(program, Questions(Bug(lambda source: all(need in source for need in needs)), Budget(compiles)))


def given(*tensors: tuple[str, torch.Tensor]) -> tuple[Input, ...]:
    return tuple(Input.of(name, tensor) for name, tensor in tensors)


def call(name: str, target: str, *args: object, **kwargs: object) -> Statement:
    return Statement(name, "function", f"torch.{target}", args, kwargs)


def long_chain(count: int = 32) -> Program:
    """sin, cos, sin, cos, ... with one tanh in the middle."""
    statements, last = [], "x"
    for number in range(count):
        target = "tanh" if number == count // 2 else ("sin", "cos")[number % 2]
        statements.append(call(f"s{number}", target, Ref(last)))
        last = f"s{number}"
    return Program(given(("x", torch.randn(4, 4))), tuple(statements), Ref(last))


def test_tail_and_head_are_cut_by_bisection():
    found = search(long_chain(), "torch.tanh")
    cutting.cut_tail(found)
    cutting.cut_head(found)
    assert [s.target for s in found.best.statements] == ["torch.tanh"]
    assert len(found.questions.prober.asked) <= 12  # two bisections of 32


def test_what_is_cut_off_is_given_as_recorded():
    program = long_chain()
    whole = search(program, "torch.tanh").evaluation.values
    found = search(program, "torch.tanh")
    cutting.cut_head(found)
    (one,) = found.best.inputs
    torch.testing.assert_close(one.values, whole["s15"], rtol=0, atol=0)


def test_outputs_are_dropped():
    x = given(("x", torch.randn(2)))
    statements = (call("a", "sin", Ref("x")), call("b", "cos", Ref("x")), call("c", "tanh", Ref("x")))
    found = search(Program(x, statements, (Ref("a"), Ref("b"), Ref("c"))), "cos")
    cutting.drop_outputs(found)
    assert found.best.outputs == Ref("b") and len(found.best.statements) == 1


def test_statements_between_are_bypassed():
    found = search(long_chain(8), "torch.tanh(", "torch.sin(x)")
    nodes.bypass_statements(found)
    assert len(found.best.statements) <= 3


def test_parts_of_a_chunk_become_inputs():
    parts = Statement("parts", "method", "chunk", (Ref("x"), 2, -1))
    first, second = (Statement(f"p{n}", "getitem", "getitem", (Ref("parts"), n)) for n in (0, 1))
    program = Program(given(("x", torch.randn(2, 4))), (parts, first, second, call("y", "tanh", Ref("p1"))), Ref("y"))
    found = search(program, "tanh")
    cutting.cut_head(found)
    assert found.best.size[:2] == (1, 1) and found.best.inputs[0].shape == (2, 2)


def test_a_block_stays_whole_when_it_is_cut_and_goes_when_it_can():
    block = (
        Statement("enter", "enter", 'torch.autocast("cpu", dtype=torch.bfloat16)'),
        call("a", "sin", Ref("x")),
        call("b", "tanh", Ref("a")),
        call("c", "cos", Ref("b")),
        Statement("leave", "exit", ""),
    )
    program = Program(given(("x", torch.randn(2))), block, Ref("c"))
    found = search(program, "tanh")
    cutting.cut_tail(found)
    cutting.cut_head(found)
    assert [s.form for s in found.best.statements] == ["enter", "function", "exit"]
    nodes.drop_blocks(found)
    assert found.best.size[0] == 1 and "autocast" not in case_source(found.best)


def test_sizes_shrink_together_with_the_constants_that_name_them():
    view = Statement("split", "method", "view", (Ref("x"), 4, 8, 8, 8))
    swapped = Statement("y", "method", "transpose", (Ref("split"), 1, 2))
    program = Program(given(("x", torch.randn(4, 8, 64))), (view, swapped), Ref("y"))
    found = search(program, "view(")
    shapes.shrink_sizes(found)
    assert max(found.best.inputs[0].shape) <= 2


def test_sizes_that_the_bug_needs_are_kept():
    program = Program(given(("x", torch.randn(6, 5))), (call("y", "tanh", Ref("x")),), Ref("y"))
    bug = Bug(lambda source: True)
    found = Search(program, Questions(bug, Budget(100)))
    inputs.plain_values(found)
    bug.holds = lambda source: ", 5)" in source
    shapes.shrink_sizes(found)
    assert found.best.inputs[0].shape == (1, 5)


def test_values_are_written_as_calls_the_plainest_that_holds():
    program = Program(
        given(("x", torch.rand(3)), ("n", torch.tensor([2, 0, 1]))), (call("y", "take", Ref("x"), Ref("n")),), Ref("y")
    )
    found = search(program, "torch.zeros(3, dtype=torch.int64)")
    inputs.plain_values(found)
    assert "VALUES" not in case_source(found.best) or found.questions.tally.tests > 0
    wide = search(program, "torch.take")
    inputs.plain_values(wide)
    assert "VALUES" not in case_source(wide.best) and "torch.randn(3)" in case_source(wide.best)


def test_values_that_matter_are_written_out():
    exact = torch.tensor([0.0, 3.5, -1.0])
    program = Program(given(("x", exact)), (call("y", "sign", Ref("x")),), Ref("y"))
    found = search(program, "sign")
    found.questions.prober.holds = lambda source: "3.5" in source or "VALUES" in source
    inputs.plain_values(found)
    assert "torch.tensor([0.0, 3.5, -1.0])" in case_source(found.best)


def test_strides_dtypes_gradients_and_settings_become_plain():
    odd = torch.randn(3, 2, dtype=torch.bfloat16).t().requires_grad_()
    program = Program(given(("x", odd)), (call("y", "tanh", Ref("x")),), Ref("y"), {"GRAD": "enabled", "DYNAMIC": True})
    found = search(program, "tanh", "DYNAMIC")
    for reducer in (
        inputs.plain_parameters,
        inputs.plain_strides,
        arguments.single_precision,
        settings.plain_settings,
        inputs.plain_values,
    ):
        reducer(found)
    assert found.best.settings == {"DYNAMIC": True}
    assert "torch.randn(2, 3)" in case_source(found.best) and "requires_grad" not in case_source(found.best)


def test_arguments_are_left_out_and_constants_made_round():
    linear = call("y", "nn.functional.linear", Ref("x"), Ref("w"), Ref("b"))
    scaled = Statement("z", "operator", "*", (Ref("y"), 0.35355339059327373))
    summed = Statement("s", "method", "sum", (Ref("z"),), {"dim": 1, "keepdim": True})
    tensors = given(("x", torch.randn(2, 3)), ("w", torch.randn(4, 3)), ("b", torch.randn(4)))
    found = search(Program(tensors, (linear, scaled, summed), Ref("s")), "linear", "dim=1")
    arguments.drop_arguments(found)
    arguments.round_constants(found)
    source = case_source(found.best)
    assert "* 0.5" in source and "keepdim" not in source and [one.name for one in found.best.inputs] == ["x", "w"]


def test_equal_inputs_are_merged():
    tensor = torch.randn(2)
    program = Program(given(("a", tensor), ("b", tensor.clone())), (call("y", "add", Ref("a"), Ref("b")),), Ref("y"))
    found = search(program, "add")
    inputs.merge_equal(found)
    assert len(found.best.inputs) == 1


def test_a_candidate_that_does_not_run_costs_nothing():
    program = Program(given(("x", torch.randn(2, 3))), (call("y", "tanh", Ref("x")),), Ref("y"))
    found = search(program, "torch")
    assert not found.attempt(Program(program.inputs, (call("y", "no_such_function", Ref("x")),), Ref("y")))
    assert found.questions.tally.tests == 0


def test_a_source_is_asked_about_once_and_strides_make_another():
    x = torch.randn(3, 3)
    programs = [Program(given(("x", t)), (call("y", "tanh", Ref("x")),), Ref("y")) for t in (x, x, x.t())]
    found = search(programs[0], "tanh")
    assert [found.holds(program) for program in programs] == [True, True, True]
    assert len(found.questions.prober.asked) == 2


def test_the_budget_is_a_bound_and_the_best_so_far_is_kept():
    for most in (1, 4, 9):
        bug = Bug(lambda source: "torch.tanh" in source)
        questions = Questions(bug, Budget(most))
        reduced = reduce_programs([long_chain()], questions, screens=False)
        assert not reduced.finished
        assert "torch.tanh" in case_source(reduced.program)
    with pytest.raises(OutOfBudget):
        search(long_chain(), "tanh", compiles=0).holds(long_chain())


def test_a_program_without_the_bug_is_lost():
    with pytest.raises(LostBug):
        reduce_programs([long_chain()], Questions(Bug(lambda source: False), Budget(10)), screens=True)


def test_what_the_screen_alone_shows_is_not_believed():
    class Screened(Bug):
        def probe(self, candidate: Written, *, screen: bool) -> Probed:
            probed = super().probe(candidate, screen=screen)
            shown = probed.matches and (screen or "torch.cos" in candidate.source)
            return Probed(shown, shown, "miscompile", int(not screen), int(screen))

    questions = Questions(Screened(lambda source: "torch.tanh" in source), Budget(400))
    reduced = reduce_programs([long_chain(8)], questions, screens=True)
    assert "torch.cos" in case_source(reduced.program) and not reduced.screened


def test_the_nearest_neighbour_that_passes_differs_in_one_argument():
    program = Program(given(("x", torch.randn(2, 2))), (call("y", "softmax", Ref("x"), dim=0),), Ref("y"))
    source = passing_neighbour(program, lambda candidate: "dim=-1" in case_source(candidate))
    assert source is not None and "dim=-1" in source
    assert passing_neighbour(program, lambda candidate: False) is None


def test_failures_of_another_kind_are_kept():
    class Two(Bug):
        def probe(self, candidate: Written, *, screen: bool) -> Probed:
            own = "torch.tanh" in candidate.source
            return Probed(own, True, "miscompile" if own else "crash", 1, 0)

    from dataclasses import replace

    program = long_chain(4)
    plain = replace(program, inputs=tuple(replace(one, fill="randn") for one in program.inputs))
    questions = Questions(Two(lambda source: True), Budget(100))
    assert not Search(plain, questions).holds(replace(plain, statements=plain.statements[:1], outputs=Ref("s0")))
    assert len(questions.tally.others) == 1


TEXT = """import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(8, 8)
        self.norm = torch.nn.LayerNorm(8)
    def forward(self, x):
        y = self.norm(x)
        for _ in range(2):
            y = torch.tanh(y) + self.line(x)
        self.last = y
        return y, x
def make():
    return Model(), (torch.randn(8, 8),)
"""


def test_text_is_reduced_to_the_statement_that_matters():
    def holds(text: str) -> bool:
        namespace: dict[str, object] = {}
        try:
            exec(text, namespace)
            model, arguments = namespace["make"]()
            model(*arguments)
        except Exception:
            return False
        return getattr(model, "last", None) is not None

    small = reduce_text(TEXT, holds)
    assert "self.last = " in small and holds(small)
    assert "Linear" not in small and "tanh" not in small and " for " not in small
    assert reduce_text(small, holds) == small


def test_text_keeps_what_makes_a_module_one():
    small = reduce_text(TEXT, lambda text: "class Model" in text)
    assert "super().__init__()" in small or "def __init__" not in small
