"""Reducers, each alone: what they make of a program is what a made-up bug leaves them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fuzzcompile.programs.ir.case_source import CaseText, write_source
from fuzzcompile.programs.ir.case_text import only_difference
from fuzzcompile.programs.ir.program import Input, Program, Ref, Statement
from fuzzcompile.programs.shrink import reducers
from fuzzcompile.programs.shrink.case_reducer import find_unused_statements, leave_out_calls, reduce_text, without_run
from fuzzcompile.programs.shrink.minimize import REPEATS, LostBug, find_passing_neighbour, reduce_programs
from fuzzcompile.programs.shrink.outcome import ProbeResult
from fuzzcompile.programs.shrink.search import CandidateTests, OutOfBudget, ProgramSearch, SearchBudget


class Bug:
    """A compiler whose bug is there wherever the source holds; counts what it was asked."""

    def __init__(self, holds: Callable[[str], bool]) -> None:
        self.holds = holds
        self.asked: list[str] = []

    def probe(self, candidate: CaseText, *, screen: bool) -> ProbeResult:
        self.asked.append(candidate.source)
        shown = self.holds(candidate.source)
        return ProbeResult(shown, shown, "miscompile" if shown else "equal", int(not screen), int(screen))


def search(program: Program, *needs: str, compiles: int = 500) -> ProgramSearch:
    """A search for the smallest program whose source has all of ``needs``."""
    return ProgramSearch(
        program, CandidateTests(Bug(lambda source: all(need in source for need in needs)), SearchBudget(compiles))
    )


def given(*tensors: tuple[str, torch.Tensor]) -> tuple[Input, ...]:
    return tuple(Input.from_tensor(name, tensor) for name, tensor in tensors)


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


def test_operators_before_one_that_wants_a_computed_value_become_a_product():
    """The gradient of a view of an input is computed elsewhere than that of a view of what the program makes."""
    unfold = Statement("c", "method", "unfold", (Ref("b"), -1, 2, 1))
    statements = (call("a", "sin", Ref("x")), call("b", "cos", Ref("a")), unfold)
    found = search(Program(given(("x", torch.randn(3, 4))), statements, Ref("c")))
    found.questions.prober.holds = lambda source: "x.unfold" not in source and ".unfold" in source
    reducers.compute_heads(found)
    assert [statement.form for statement in found.best.statements] == ["operator", "method"]
    assert "* 2" in write_source(found.best) and "sin" not in write_source(found.best)


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 3e38, 1e-40])
def test_values_of_which_one_shows_the_bug_become_that_value_everywhere(value):
    recorded = torch.randn(5, 5)
    recorded[3, 1] = value
    program = Program(given(("x", recorded)), (call("s", "sin", Ref("x")),), Ref("s"))
    needs = f"{value!r})" if math.isfinite(value) else f'float("{value}")'
    bug = Bug(lambda source: "VALUES" in source or needs in source)
    found = ProgramSearch(program, CandidateTests(bug, SearchBudget(20)))
    reducers.plain_values(found)
    reducers.shrink_sizes(found)
    assert write_source(found.best).count(f"torch.full((1, 1), {needs}") == 1


@pytest.mark.parametrize(
    ("shapes", "needs", "expected"),
    [
        ([(1, 1, 2, 1)], (), [(2, 3)]),
        ([(1, 2, 2), (1, 2, 2)], (), [(2, 3), (2, 3)]),
        ([(1, 1, 2), (1, 2)], (), [(1, 3), (3,)]),
        ([(2, 2), (2, 1)], (), [(2, 2), (2, 1)]),
        ([(1, 1, 2)], ("(1, 1",), [(1, 1, 3)]),
        ([(1, 1, 2)], ("2)",), [(2,)]),
    ],
)
def test_inputs_show_whole_rows(shapes, needs, expected):
    names = ("x", "y")[: len(shapes)]
    inputs = tuple(
        replace(Input.from_tensor(name, torch.randn(shape)), fill="randn", values=None)
        for name, shape in zip(names, shapes, strict=True)
    )
    program = Program(
        inputs, tuple(call(f"{name}1", "cos", Ref(name)) for name in names), tuple(Ref(f"{n}1") for n in names)
    )
    found = search(program, *needs)
    reducers.show_rows(found)
    assert [input_.shape for input_ in found.best.inputs] == expected


def test_tail_and_head_are_cut_by_bisection():
    found = search(long_chain(), "torch.tanh")
    reducers.cut_tail(found)
    reducers.cut_head(found)
    assert [s.target for s in found.best.statements] == ["torch.tanh"]
    assert len(found.questions.prober.asked) <= 12  # two bisections of 32


def test_what_is_cut_off_is_given_as_recorded():
    program = long_chain()
    whole = search(program, "torch.tanh").evaluation.values
    found = search(program, "torch.tanh")
    reducers.cut_head(found)
    (one,) = found.best.inputs
    torch.testing.assert_close(one.values, whole["s15"], rtol=0, atol=0)


def test_outputs_are_dropped():
    x = given(("x", torch.randn(2)))
    statements = (call("a", "sin", Ref("x")), call("b", "cos", Ref("x")), call("c", "tanh", Ref("x")))
    found = search(Program(x, statements, (Ref("a"), Ref("b"), Ref("c"))), "cos")
    reducers.drop_outputs(found)
    assert found.best.outputs == Ref("b") and len(found.best.statements) == 1


def test_statements_between_are_bypassed():
    found = search(long_chain(8), "torch.tanh(", "torch.sin(x)")
    reducers.bypass_statements(found)
    assert len(found.best.statements) <= 3


def test_parts_of_a_chunk_become_inputs():
    parts = Statement("parts", "method", "chunk", (Ref("x"), 2, -1))
    first, second = (Statement(f"p{n}", "getitem", "getitem", (Ref("parts"), n)) for n in (0, 1))
    program = Program(given(("x", torch.randn(2, 4))), (parts, first, second, call("y", "tanh", Ref("p1"))), Ref("y"))
    found = search(program, "tanh")
    reducers.cut_head(found)
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
    reducers.cut_tail(found)
    reducers.cut_head(found)
    assert [s.form for s in found.best.statements] == ["enter", "function", "exit"]
    reducers.drop_blocks(found)
    assert found.best.size[0] == 1 and "autocast" not in write_source(found.best)


def test_sizes_shrink_together_with_the_constants_that_name_them():
    view = Statement("split", "method", "view", (Ref("x"), 4, 8, 8, 8))
    swapped = Statement("y", "method", "transpose", (Ref("split"), 1, 2))
    program = Program(given(("x", torch.randn(4, 8, 64))), (view, swapped), Ref("y"))
    found = search(program, "view(")
    reducers.shrink_sizes(found)
    assert max(found.best.inputs[0].shape) <= 2


def test_sizes_that_the_bug_needs_are_kept():
    program = Program(given(("x", torch.randn(6, 5))), (call("y", "tanh", Ref("x")),), Ref("y"))
    bug = Bug(lambda source: True)
    found = ProgramSearch(program, CandidateTests(bug, SearchBudget(100)))
    reducers.plain_values(found)
    bug.holds = lambda source: ", 5)" in source
    reducers.shrink_sizes(found)
    assert found.best.inputs[0].shape == (1, 5)


def test_values_are_written_as_calls_the_plainest_that_holds():
    program = Program(
        given(("x", torch.rand(3)), ("n", torch.tensor([2, 0, 1]))), (call("y", "take", Ref("x"), Ref("n")),), Ref("y")
    )
    found = search(program, "torch.zeros(3, dtype=torch.int64)")
    reducers.plain_values(found)
    assert "VALUES" not in write_source(found.best) or found.questions.tally.tests > 0
    wide = search(program, "torch.take")
    reducers.plain_values(wide)
    assert "VALUES" not in write_source(wide.best) and "torch.randn(3)" in write_source(wide.best)


def test_values_that_matter_are_written_out():
    exact = torch.tensor([0.0, 3.5, -1.0])
    program = Program(given(("x", exact)), (call("y", "sign", Ref("x")),), Ref("y"))
    found = search(program, "sign")
    found.questions.prober.holds = lambda source: "3.5" in source or "VALUES" in source
    reducers.plain_values(found)
    assert "torch.tensor([0.0, 3.5, -1.0])" in write_source(found.best)


def test_strides_dtypes_gradients_and_settings_become_plain():
    odd = torch.randn(3, 2, dtype=torch.bfloat16).t().requires_grad_()
    program = Program(given(("x", odd)), (call("y", "tanh", Ref("x")),), Ref("y"), {"GRAD": "enabled", "DYNAMIC": True})
    found = search(program, "tanh", "DYNAMIC")
    for reducer in (
        reducers.plain_parameters,
        reducers.plain_strides,
        reducers.single_precision,
        reducers.plain_settings,
        reducers.plain_values,
    ):
        reducer(found)
    assert found.best.settings == {"DYNAMIC": True}
    assert "torch.randn(2, 3)" in write_source(found.best) and "requires_grad" not in write_source(found.best)


def test_arguments_are_left_out_and_constants_made_round():
    linear = call("y", "nn.functional.linear", Ref("x"), Ref("w"), Ref("b"))
    scaled = Statement("z", "operator", "*", (Ref("y"), 0.35355339059327373))
    summed = Statement("s", "method", "sum", (Ref("z"),), {"dim": 1, "keepdim": True})
    tensors = given(("x", torch.randn(2, 3)), ("w", torch.randn(4, 3)), ("b", torch.randn(4)))
    found = search(Program(tensors, (linear, scaled, summed), Ref("s")), "linear", "dim=1")
    reducers.drop_arguments(found)
    reducers.round_constants(found)
    source = write_source(found.best)
    assert "* 0.5" in source and "keepdim" not in source and [one.name for one in found.best.inputs] == ["x", "w"]


def test_equal_inputs_are_merged():
    tensor = torch.randn(2)
    program = Program(given(("a", tensor), ("b", tensor.clone())), (call("y", "add", Ref("a"), Ref("b")),), Ref("y"))
    found = search(program, "add")
    reducers.merge_equal(found)
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
        questions = CandidateTests(bug, SearchBudget(most))
        reduced = reduce_programs([long_chain()], questions, screens=False)
        assert not reduced.finished
        assert "torch.tanh" in write_source(reduced.best)
    with pytest.raises(OutOfBudget):
        search(long_chain(), "tanh", compiles=0).holds(long_chain())


def test_a_program_without_the_bug_is_lost():
    with pytest.raises(LostBug):
        reduce_programs([long_chain()], CandidateTests(Bug(lambda source: False), SearchBudget(10)), screens=True)


def test_what_the_screen_alone_shows_is_not_believed():
    class Screened(Bug):
        def probe(self, candidate: CaseText, *, screen: bool) -> ProbeResult:
            probed = super().probe(candidate, screen=screen)
            shown = probed.matches and (screen or "torch.cos" in candidate.source)
            return ProbeResult(shown, shown, "miscompile", int(not screen), int(screen))

    questions = CandidateTests(Screened(lambda source: "torch.tanh" in source), SearchBudget(400))
    reduced = reduce_programs([long_chain(8)], questions, screens=True)
    source = write_source(reduced.best)
    assert source.count("torch.") <= 6 and "torch.cos" in source and "torch.tanh" in source
    assert not reduced.screen and reduced.comes_and_goes is None


def test_a_bug_of_the_interpreted_graph_alone_is_lost():
    class Screened(Bug):
        def probe(self, candidate: CaseText, *, screen: bool) -> ProbeResult:
            probed = super().probe(candidate, screen=screen)
            return ProbeResult(screen and probed.matches, probed.matches, "miscompile", int(not screen), int(screen))

    with pytest.raises(LostBug, match="not in generated code"):
        reduce_programs(
            [long_chain(8)], CandidateTests(Screened(lambda s: "torch.tanh" in s), SearchBudget(400)), screens=True
        )


def test_what_fails_now_and_then_is_not_given_up_as_lost():
    class Shaky(Bug):
        full = 0

        def probe(self, candidate: CaseText, *, screen: bool) -> ProbeResult:
            probed = super().probe(candidate, screen=screen)
            self.full += not screen
            return ProbeResult(probed.matches and (screen or self.full % 3 == 0), True, "miscompile", int(not screen))

    questions = CandidateTests(Shaky(lambda source: "torch.tanh" in source), SearchBudget(400))
    reduced = reduce_programs([long_chain(8)], questions, screens=True)
    shown, of = reduced.comes_and_goes
    assert 0 < shown < of == REPEATS + 1 and questions.repeats == REPEATS
    assert [s.target for s in reduced.best.statements] == ["torch.tanh"]


def test_an_interrupt_leaves_a_program_that_can_be_written_down():
    class Interrupted(Bug):
        def probe(self, candidate: CaseText, *, screen: bool) -> ProbeResult:
            if candidate.values and len(self.asked) > 4:
                raise KeyboardInterrupt
            return super().probe(candidate, screen=screen)

    bug = Interrupted(lambda source: "torch.tanh" in source)
    reduced = reduce_programs([long_chain()], CandidateTests(bug, SearchBudget(400)), screens=False)
    assert reduced.interrupted and not reduced.finished and not reduced.best.is_recorded
    assert reduced.best.size < long_chain().size
    assert len(bug.asked) < 12  # nothing is compiled after it


def test_sizes_do_not_shrink_until_an_index_takes_nothing():
    statements = (Statement("y", "getitem", "getitem", (Ref("x"), slice(2, 8))), call("z", "tanh", Ref("y")))
    program = Program(given(("x", torch.randn(8, 8))), statements, Ref("z"))
    found = search(program, "tanh")
    reducers.shrink_sizes(found)
    assert found.evaluation.values["z"].numel() > 0


def test_the_nearest_neighbour_that_passes_differs_in_one_argument():
    program = Program(given(("x", torch.randn(2, 2))), (call("y", "softmax", Ref("x"), dim=0),), Ref("y"))
    source = find_passing_neighbour(program, lambda candidate: "dim=-1" in write_source(candidate))
    assert source is not None and "dim=-1" in source
    assert find_passing_neighbour(program, lambda candidate: False) is None


NEIGHBOURS = [
    # what is looked for in the one line that differs, a program that has a neighbour with it
    (".contiguous()", "view", (Statement("view", "method", "expand", (Ref("x"), 3, 2)), call("y", "sin", Ref("view")))),
    ("torch.int64", "y", (call("y", "cumsum", Ref("x"), 0, dtype=torch.float32),)),
    ("torch.full((2,)", "y", (call("y", "full", (1,), 5.0),)),
    ("torch.full((1,)", "y", (call("y", "full", (), 5.0),)),
    ("x * x", "y", (Statement("y", "operator", "/", (Ref("x"), Ref("x"))),)),
]


@pytest.mark.parametrize(("wanted", "name", "statements"), NEIGHBOURS, ids=[row[0] for row in NEIGHBOURS])
def test_neighbours_of_many_kinds_are_tried(wanted, name, statements):
    program = Program(given(("x", torch.randn(1, 2))), statements, Ref(statements[-1].name))
    program = Program(program.without_dead_code().inputs, statements, program.outputs)
    source = find_passing_neighbour(program, lambda candidate: wanted in write_source(candidate))
    assert source is not None and only_difference(write_source(program), source) is not None


def test_inputs_have_neighbours_of_other_dtypes_and_sizes():
    one = Input("x", (), (), torch.int8, "ones")
    program = Program((one,), (call("y", "neg", Ref("x")),), Ref("y"))
    seen: list[str] = []
    assert find_passing_neighbour(program, lambda candidate: bool(seen.append(write_source(candidate)))) is None
    assert any("int64" in source for source in seen) and len(seen) == len(set(seen)) > 2


def test_failures_of_another_kind_are_kept():
    class Two(Bug):
        def probe(self, candidate: CaseText, *, screen: bool) -> ProbeResult:
            own = "torch.tanh" in candidate.source
            return ProbeResult(own, True, "miscompile" if own else "crash", 1, 0)

    from dataclasses import replace

    program = long_chain(4)
    plain = replace(program, inputs=tuple(replace(one, fill="randn") for one in program.inputs))
    questions = CandidateTests(Two(lambda source: True), SearchBudget(100))
    assert not ProgramSearch(plain, questions).holds(replace(plain, statements=plain.statements[:1], outputs=Ref("s0")))
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


UNUSED = """import math
import torch

class Unused(torch.nn.Module):
    def forward(self, x):
        y = x
        return x

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = 2.0
        self.left = torch.nn.Linear(2, 2)
    def other(self, x):
        return x
    def forward(self, x):
        a, b = x, x
        return x * self.kept

BACKWARD = False

def make():
    return Model(), (torch.randn(2),)
"""


def test_what_nothing_reads_goes_at_once():
    asked: list[str] = []

    def holds(text: str) -> bool:
        asked.append(text)
        return "self.kept" in text and "forward" in text

    assert [type(node).__name__ for node in find_unused_statements(UNUSED)] == [
        "Import", "ClassDef", "Assign", "FunctionDef", "Assign",
    ]  # fmt: skip
    small = reduce_text(UNUSED, holds)
    first = asked[0]
    assert "math" not in first and "Unused" not in first and "left" not in first and "other" not in first
    assert "BACKWARD" in first and "a, b" not in first and "self.kept = 2.0" in first
    assert len(small) < len(first)


MANY = ", ".join(f"{number}.5" for number in range(20))
SAMPLED = f"""import torch
from math import nan

def program(x, y):
    r = x.cos()
    r1 = y.sin()
    r2 = x.tan()
    return r, r1, r2

def make():
    x = torch.tensor([[{MANY}], [{MANY}]], dtype=torch.float16)
    y = torch.tensor([{MANY}, nan])
    return program, (x, y)
"""


def test_several_samples_and_long_values_go_first():
    """Every candidate costs a compile: one value of several, then all tensors that are written out in many numbers."""
    asked: list[str] = []

    def holds(text: str) -> bool:
        asked.append(text)
        return ".sin()" in text and "nan" in text.rpartition("import")[2]

    small = reduce_text(SAMPLED, holds)
    first = next(text for text in asked if holds(text))
    assert "return r1\n" in first and ".cos()" not in first and ".tan()" not in first
    assert "cos" not in small and len(small) < 200
    asked.clear()
    plain = reduce_text(SAMPLED, lambda text: "y.sin()" in text and "x.cos()" in text)
    assert "torch.tensor" not in plain


CALLS = "import torch\nCALLS = [(torch.ones(1),), (torch.ones(2),), (torch.ones(3),)]\n"
DRIVEN = (
    f"{CALLS}def make():\n    return torch.sin, (torch.ones(4),)\ndef run(model, inputs):\n    return model(*inputs)\n"
)


def test_calls_and_a_way_to_run_of_its_own_go_first():
    assert "CALLS" not in next(leave_out_calls(DRIVEN))
    assert "def run" not in next(without_run(DRIVEN)) and not list(without_run(CALLS))
    small = reduce_text(DRIVEN, lambda text: "torch.ones(2)" in text)
    assert "def run" not in small and "torch.ones(1)" not in small and "torch.ones(3)" not in small
    assert "CALLS = [(torch.ones(2),)]" in small


STATEFUL = """import torch
from torch import nn


def make_depth(depth):
    def get():
        return depth

    def put(value):
        nonlocal depth
        depth = value

    return get, put


class Layer(nn.Module):
    unread = 3
    calls = 0

    def forward(self, x):
        Layer.calls += 1
        return x + Layer.calls


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.get_depth, self.put_depth = make_depth(2)
        self.layer = Layer()
        self.factors = [0.5, 2.0]

    def forward(self, x, y):
        try:
            x = x.sin() if self.get_depth() > 1 else x.cos()
        except ValueError:
            x = x.tanh()
        for factor in self.factors:
            x = x * factor
        x = self.layer(x)
        return x, y


def run(model, inputs):
    first = model(*inputs)
    with torch.no_grad():
        model.put_depth(3)
    model.factors.append(3.0)
    second = model(*inputs)
    model.factors = [1.0]
    third = model(*inputs)
    return first, second, third


def make():
    torch.manual_seed(0)
    Layer.calls = 0
    x = torch.randn(2, 3)
    y = torch.randn(4)
    return Model().eval(), (x, y)
"""


def test_a_run_of_several_statements_keeps_the_change_that_matters_as_ordinary_code():
    def holds(text: str) -> bool:
        """The length of the list changes between two calls, which differ: a graph that ignores it is stale."""
        names: dict[str, object] = {}
        try:
            exec(compile(text, "case", "exec"), names)
            lengths = []
            model, inputs = names["make"]()

            def watched(*arguments: object) -> object:
                lengths.append((len(model.factors), model(*arguments)))
                return lengths[-1][1]

            watched.factors = model.factors
            names["run"](watched, inputs)
            (before, first), (after, second) = lengths[0], lengths[1]
            first, second = (made[0] if isinstance(made, tuple) else made for made in (first, second))
            return before != after and not torch.equal(first, second)
        except Exception:  # a candidate may do anything, and then shows nothing
            return False

    small = reduce_text(STATEFUL, holds)
    assert holds(small)
    assert [line.strip() for line in small.partition("def run")[2].splitlines()[1:4]] == [
        "model(*inputs)",
        "model.factors.append(3.0)",
        "model(*inputs)",
    ]
    gone = ("third", "no_grad", "make_depth", "Layer", "calls", "sin()", "except", "randn(4)", ", y")
    assert not any(text in small for text in gone), small
    assert "for factor in self.factors:" in small and len(small.split()) < 60
    assert reduce_text(small, holds) == small


def test_an_input_goes_with_its_argument_and_a_block_with_its_handlers():
    small = reduce_text(STATEFUL, lambda text: "x.cos()" in text and _runs(text))
    assert "def forward(self, x):" in small and "try" not in small and "if" not in small
    assert "y" not in small.partition("def make")[2]


def _runs(text: str) -> bool:
    names: dict[str, object] = {}
    try:
        exec(compile(text, "case", "exec"), names)
        model, inputs = names["make"]()
        names.get("run", lambda model, inputs: model(*inputs))(model, inputs)
    except Exception:  # a candidate may do anything
        return False
    return True
