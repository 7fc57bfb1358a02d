"""What is kept of a compile behind the graph passes: its IR evaluates to the right values, its kernels wrote them."""

from __future__ import annotations

from pathlib import Path

import programs
import pytest
import sympy
import torch
from watching import eager, make_compilation, run

from fuzzcompile.compiler.kernels import kernel_patches
from fuzzcompile.compiler.kernels.ir_evaluation import GraphEvaluation
from fuzzcompile.compiler.kernels.kernel_loops import check_dependences
from fuzzcompile.compiler.kernels.lowering_control import Control
from fuzzcompile.compiler.rule_catalogue import initialise_patterns
from fuzzcompile.compiler.session import Compilation, open_session
from fuzzcompile.compiler.watch.compiler_errors import find_raise_place, list_given, list_raise_frames
from fuzzcompile.diagnosis.kernels.watched_graph import watch_graphs
from fuzzcompile.run.case import CompileSettings


def everything():
    """Reductions, indexing, concatenation, casts, integers, masks, and writes to an input."""

    def program(x, y, rows):
        scores = torch.softmax(x @ y.T, -1)
        picked = torch.gather(scores, 1, rows) + scores.argmax(-1, keepdim=True)
        joined = torch.cat([picked, torch.where(x > 0, x.exp(), y.abs().sqrt())], 1)
        table = y[rows % 3].to(torch.bfloat16).float().var(-1)
        x.add_(joined[:, :1])
        return joined.cumsum(1), table, joined.amax(0), (rows // 3).sum(), x.flip(0) * 2

    x, y = programs.tensors((4, 9), (4, 9))
    return program, (x, y, torch.tensor([[0, 1], [3, 2], [1, 1], [2, 0]]))


def bits():
    """Values read as integers of their bits, and back."""

    def program(x, y):
        bits = (x * y).view(torch.int32)
        return (bits & -256).view(torch.float32) + 1, bits >> 3, (y.to(torch.bfloat16) * 2).view(torch.int16)

    return program, programs.tensors((4, 9), (4, 9))


def watched(program, *, backward: bool = False, calls: int = 1, dynamic: bool | None = None, **how):
    function, inputs = program
    initialise_patterns(torch.device("cpu"))
    with open_session(CompileSettings(dynamic=dynamic), make_compilation(kernels=True, **how)) as session:
        results = run(session.compile(function), function, *[inputs] * calls, backward=backward)
    return session.ledger, results


CLEAN = {
    "block": lambda: watched(programs.block()),
    "block trained": lambda: watched(programs.block(training=True), backward=True),
    "dropout": lambda: watched(programs.block(training=True, dropout=0.5), backward=True),
    "everything": lambda: watched(everything()),
    "bits": lambda: watched(bits()),
    "symbolic sizes": lambda: watched(programs.sine_and_exponential(), dynamic=True),
}


SLOW = ("block", "block trained", "dropout")  # the others have all that these have


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in CLEAN],
)
def clean(request):
    ledger, results = CLEAN[request.param]()
    return ledger, results, watch_graphs(ledger)


def test_nothing_is_wrong_with_a_clean_program(clean):
    ledger, _, looks = clean
    assert looks
    assert not ledger.unseen
    for look in looks:
        assert look.find_first_refused() is None
        assert look.find_wrong_operators() == []
        assert look.find_wrong_kernel() is None
        assert look.find_wrong_outputs() == []


def test_what_is_fused_keeps_its_dependences(clean):
    for look in clean[2]:
        fused = [kernel for kernel in look.lowered.kernels if not kernel.extern]
        assert fused
        assert "broken" not in [check_dependences(look.lowered, kernel.scheduled) for kernel in fused]


def test_most_of_it_was_looked_at(clean):
    for look in clean[2]:
        nodes = [
            name for name in look.lowered.labels if isinstance(look.interpret(double=True).get(name), torch.Tensor)
        ]
        followed = [name for name in nodes if torch.is_tensor(value_of(look.evaluate(double=True), name))]
        if any("view.dtype" in label for label in look.lowered.labels.values()):
            followed = [name for name in nodes if torch.is_tensor(value_of(look.evaluate(double=False), name))]
        assert len(followed) >= 0.9 * len(nodes)
        assert look.call.written


def value_of(ir: GraphEvaluation, name: str):
    try:
        return ir.evaluate_node(name)
    except Exception:
        return None


def test_bits_are_evaluated():
    ledger, _ = watched(bits())
    (look,) = watch_graphs(ledger)
    read = [name for name, label in look.lowered.labels.items() if "view.dtype" in label]
    assert len(read) == 3
    for name in read:
        assert torch.equal(look.evaluate(double=False).evaluate_node(name), look.interpret(double=False)[name])


def test_kernels_know_their_operators_and_source(clean):
    for look in clean[2]:
        fused = [kernel for kernel in look.lowered.kernels if not kernel.extern]
        for kernel in fused:
            assert kernel.nodes
            assert set(kernel.nodes) <= set(look.lowered.labels)
            assert 'extern "C"' in look.lowered.sources[kernel.name]


def test_watching_changes_no_bit():
    function, inputs = programs.block()
    with open_session(CompileSettings(), Compilation(record=False)) as session:
        plain = run(session.compile(function), function, inputs)
    _, seen = watched(programs.block())
    assert all(torch.equal(one, other) for one, other in zip(plain, seen, strict=True))


def test_an_operator_falls_back_by_label():
    function, inputs = programs.sine_and_exponential()
    ledger, results = watched((function, inputs), control=Control(fallbacks=("aten.exp.default",)))
    (graph,) = ledger.lowered
    assert {kernel.nodes[-1] for kernel in graph.kernels if kernel.extern} == {"exp"}
    assert torch.allclose(results[0], eager(function, inputs)[0])


def test_nothing_is_fused_where_everything_stays_apart():
    ledger, _ = watched(programs.sine_and_exponential(), control=Control(realised=("*",), apart=("*",), separate=True))
    (graph,) = ledger.lowered
    assert [kernel.nodes for kernel in graph.kernels] == [("sin",), ("exp",), ("mul",), ("add",)]


@pytest.mark.slow
def test_an_operator_of_vectors_is_done_in_scalars():
    function, inputs = programs.exponential()
    source = {}
    for names in ((), ("exp",), ("sub",)):
        ledger, results = watched((function, [i.repeat(4, 4) for i in inputs]), control=Control(scalarised=names))
        (source[names],) = ledger.lowered[0].sources.values()
        assert torch.allclose(results[0], eager(function, [i.repeat(4, 4) for i in inputs])[0])
    assert "std::exp" not in source[()]
    assert "std::exp" in source[("exp",)]
    assert "tmpbuf" in source[("sub",)]


def test_an_error_is_placed_where_the_compiler_raised_it():
    from torch._inductor.index_propagation import SymPyOps, TypedExpr

    nothing, one = (TypedExpr(sympy.Float(value), torch.float32) for value in ("nan", "1"))
    try:
        SymPyOps.maximum(nothing, one)
    except ValueError as raised:
        error = raised
    try:
        raise RuntimeError("told again") from error
    except RuntimeError as outer:
        outer_error = outer
        source, line, function = find_raise_place(outer)
    assert (source, function) == ("torch/_inductor/index_propagation.py", "maximum")
    assert "Max(" in (Path(torch.__file__).parents[1] / source).read_text().splitlines()[line - 1]
    assert list_raise_frames(outer_error)[0] == (source, line, function)
    assert list_given(outer_error) == ()  # expressions, which no text is kept of
    assert find_raise_place(ValueError("never raised")) == (None, None, None)
    assert list_raise_frames(ValueError("never raised")) == list_given(ValueError("never raised")) == ()


def test_an_operator_that_a_generated_program_calls_raises_for_no_code_of_the_compilers():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: torch.linalg.cholesky(x.sin()) + 1)
    with pytest.raises(RuntimeError, match="positive-definite") as raised:
        compiled(-torch.eye(3))
    assert list_raise_frames(raised.value) == ()


def test_what_the_function_that_raises_was_given_is_kept():
    from torch._meta_registrations import meta__pdist_forward

    try:
        meta__pdist_forward(torch.ones(3, 4).T, p=1.5)
    except RuntimeError as raised:
        assert list_given(raised) == ("self: float32 (4, 3) with strides (1, 4)", "p: 1.5")
    else:
        pytest.fail("it takes contiguous inputs alone")


def test_an_error_of_the_watching_is_written_down_and_leaves_the_program_alone(monkeypatch):
    def broken(value, kept):
        raise ValueError("planted")

    monkeypatch.setattr(kernel_patches, "_has_same_bits", broken)
    function, inputs = programs.sine_and_exponential()
    apart = Control(realised=("*",), apart=("*",), separate=True)
    ledger, results = watched((function, inputs), control=apart)
    assert torch.allclose(results[0], eager(function, inputs)[0])
    assert "planted" in str(list(ledger.unseen))
