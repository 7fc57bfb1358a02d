"""Bugs planted before the graph passes are found without a compile, and proved by one without what is at fault."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._decomp.decompositions import embedding_dense_backward
from torch._dynamo.variables.tensor import TensorVariable
from torch._functorch import partitioners
from torch._inductor import compile_fx, decomposition, lowering
from torch._subclasses import fake_impls

from fuzzcompile.compiler.rule_catalogue import initialise_patterns
from fuzzcompile.diagnosis.attribution.culprit import Ablator, Attribution
from fuzzcompile.diagnosis.attribution.steps import measure_steps
from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.stages.stage_table import Shows, look_in_order
from fuzzcompile.diagnosis.trials.case_runs import Trial
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.programs.casefiles.case_module import load_case

pytestmark = pytest.mark.usefixtures("no_workarounds")

aten = torch.ops.aten
CPU = torch.device("cpu")
Plant = Callable[[], AbstractContextManager[Any]]


def before_the_graphs(ablator: Ablator) -> Attribution | None:
    return look_in_order(ablator, Shows.CERTAINLY) or look_in_order(ablator, Shows.IN_GRAPHS)


def attribute(folder: Path, source: str, plant: Plant = contextlib.nullcontext) -> tuple[Trial, Attribution | None]:
    path = folder / "case.py"
    path.write_text(source)
    initialise_patterns(CPU)
    with plant():
        experiments = Experiments(load_case(path), CPU)
        trial = experiments.trial()
        ablator = Ablator(experiments, trial, measure_steps(trial.ledger))
        found = before_the_graphs(ablator)
        if found is not None:
            found.ablations = ablator.ablations
    return trial, found


# -- plants -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def entry(table: Any, key: Any, make: Callable[[Any], Any]) -> Iterator[None]:
    """``table[key]`` is ``make(what it was, or None)`` inside the block."""
    kept = table.get(key)
    table[key] = make(kept)
    try:
        yield
    finally:
        if kept is None:
            del table[key]
        else:
            table[key] = kept


def decomposed(operator: Any, make: Callable[[Any], Any]) -> Plant:
    return lambda: entry(decomposition.decompositions, operator, make)


def scaled(by: float, position: int | None = None) -> Callable[[Any], Any]:
    def make(function: Any) -> Any:
        def wrong(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if position is None:
                return result * by
            return tuple(r * by if n == position else r for n, r in enumerate(result))

        return wrong

    return make


def through(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], Any]:
    return lambda function: lambda *args, **kwargs: change(function(*args, **kwargs))


def in_channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


def raising(function: Any) -> Any:
    def wrong(*args: Any) -> Any:
        raise ValueError("planted")

    return wrong


def fake(operator: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Plant:
    """The fake result of an operator that keeps the shape of its first argument goes through ``change``."""

    def make(kept: Any) -> Any:
        return lambda mode, func, x, *args, **kwargs: mode.from_tensor(
            change(torch.empty(tuple(x.shape))), static_shapes=True
        )

    return lambda: entry(fake_impls.op_implementations_dict, operator, make)


@contextlib.contextmanager
def forgets_alpha() -> Iterator[None]:
    kept = TensorVariable.method_add_

    def add(self: Any, tx: Any, other: Any, *, alpha: Any = None) -> Any:
        return None if alpha is None else self.call_method(tx, "add_", [other], {})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TensorVariable, "method_add_", add)
        yield
    assert TensorVariable.method_add_ is kept


@contextlib.contextmanager
def loses_writes() -> Iterator[None]:
    """Functionalization takes ``mul_`` for an operator that does nothing."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("mul_.Tensor", lambda self, other: self, "Functionalize", allow_override=True)
    try:
        yield
    finally:
        library._destroy()


@contextlib.contextmanager
def swaps_saved() -> Iterator[None]:
    """The partitioner hands two saved tensors of one shape to the backward graph in the wrong order."""
    original = compile_fx.min_cut_rematerialization_partition

    def partition(module: Any, inputs: Any, **kwargs: Any) -> Any:
        forward, backward = original(module, inputs, **kwargs)
        output = next(iter(reversed(forward.graph.nodes)))
        results = list(output.args[0])
        saved = range(kwargs["num_fwd_outputs"], len(results))
        shapes = [getattr(node.meta.get("val"), "shape", None) for node in results]
        one, other = next(
            (i, j) for i in saved for j in saved if i < j and shapes[i] is not None and shapes[i] == shapes[j]
        )
        results[one], results[other] = results[other], results[one]
        output.args = (tuple(results),)
        forward.recompile()
        return forward, backward

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compile_fx, "min_cut_rematerialization_partition", partition)
        yield


@contextlib.contextmanager
def draws_again() -> Iterator[None]:
    """Whatever partitioner cuts the graph, its backward part draws once more what the forward part drew."""

    def drawing(partition: Any) -> Any:
        def cut(*args: Any, **kwargs: Any) -> Any:
            forward, backward = partition(*args, **kwargs)
            (drawn,) = (node for node in forward.graph.nodes if str(node.target).startswith("aten.rand"))
            with backward.graph.inserting_before(next(n for n in backward.graph.nodes if n.op == "call_function")):
                again = backward.graph.call_function(aten.rand.default, ([4, 16],))
            again.name, again.meta = drawn.name, {**drawn.meta}
            backward.recompile()
            return forward, backward

        return cut

    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((compile_fx, "min_cut_rematerialization_partition"), (partitioners, "default_partition")):
            patch.setattr(module, name, drawing(getattr(module, name)))
        yield


def draws_more(function: Any) -> Any:
    """The numbers are right, and the generator has moved on further than the kernel's."""
    return lambda x, **kwargs: function(x, **kwargs) + 0 * torch.rand(3).sum()


@contextlib.contextmanager
def dispatched(
    operator: Any, make: Callable[[Any], Any], key: Any = torch._C.DispatchKey.CompositeImplicitAutograd
) -> Iterator[None]:
    """A decomposition of the Python dispatcher is another function, or what stands there under another key."""
    kept = operator.py_kernels[key]
    operator.py_kernels[key] = make(kept)
    operator._dispatch_cache.clear()
    try:
        yield
    finally:
        operator.py_kernels[key] = kept
        operator._dispatch_cache.clear()


def case(body: str, inputs: str, settings: str = "") -> str:
    return f"""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
{settings}
def f(x, *more):
    {body}
def make():
    torch.manual_seed(0)
    return f, ({inputs},)
"""


X = "torch.randn(4, 16)"
TRAINED = "torch.randn(4, 16, requires_grad=True)"
BACKWARD = "BACKWARD = True"
EAGER_NUMBERS = 'OPTIONS = {"fallback_random": True}'
NORM = """
import torch
from torch import nn
BACKWARD = {backward}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.{norm}
    def forward(self, x):
        return torch.tanh(self.norm(x * 2))
def make():
    torch.manual_seed(0)
    return Model().train(), (torch.randn(4, 16),)
"""


TWO_LINEARS = """
import torch
from torch import nn
BACKWARD = True
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(16, 16), nn.Linear(16, 16)
    def forward(self, x):
        return torch.sin(self.one(x)) * torch.exp(torch.cos(self.other(x)))
def make():
    torch.manual_seed(0)
    return Model(), (torch.randn(4, 16),)
"""


@dataclass(frozen=True)
class Planted:
    name: str
    plant: Plant
    case: str
    rewrite: str
    stage: str = "decomposition"
    kind: str = "values"
    verdict: Verdict = Verdict.MISCOMPILE
    line: int | None = 8
    necessary: bool | None = True
    slow: bool = False

    def __str__(self) -> str:
        return self.name


def bn_forgets(function: Any) -> Any:
    """Batch norm's running mean stays as it was."""
    return lambda x, w, b, mean, *rest: (lambda r: (*r[:3], mean, r[4]))(function(x, w, b, mean, *rest))


HARDSWISH = "aten.hardswish.default"
PLANTED = [
    Planted(
        "forward", decomposed(aten.hardswish.default, scaled(1.01)), case("return F.hardswish(x) + 1", X), HARDSWISH
    ),
    Planted(
        "written in place",
        decomposed(aten.hardswish.default, scaled(1.01)),
        case("y = x + 1; F.hardswish(y, inplace=True); return y * 2", X),
        HARDSWISH,
    ),
    Planted(
        "in bfloat16 alone",
        decomposed(aten.hardswish.default, lambda f: lambda x: f(x) * (1.2 if x.dtype == torch.bfloat16 else 1)),
        case("return F.hardswish(x) + 1", X + ".bfloat16()"),
        HARDSWISH,
    ),
    Planted(
        "dynamic shapes",
        decomposed(aten.hardswish.default, scaled(1.01)),
        case("return F.hardswish(x).sum(0) * x.shape[0]", X, "DYNAMIC = True"),
        HARDSWISH,
    ),
    Planted(
        "inside a checkpoint",
        decomposed(aten.hardswish.default, scaled(1.01)),
        case("return checkpoint(lambda y: F.hardswish(y.sin()) * 2, x, use_reentrant=False)", TRAINED, BACKWARD),
        HARDSWISH,
        slow=True,
    ),
    Planted(
        "inside vmap",
        decomposed(aten.hardswish.default, scaled(1.01)),
        case("return torch.func.vmap(lambda y: F.hardswish(y.sin()).sum())(x)", X),
        HARDSWISH,
        slow=True,
    ),
    Planted(
        "inside grad",
        decomposed(aten.hardswish_backward.default, scaled(1.01)),
        case("return torch.func.grad(lambda y: F.hardswish(y.sin()).sum())(x)", X),
        "aten.hardswish_backward.default",
        slow=True,
    ),
    Planted(
        "layer norm",
        decomposed(aten.native_layer_norm.default, scaled(1.01, 0)),
        NORM.format(backward=False, norm="LayerNorm(16)"),
        "aten.native_layer_norm.default",
        line=None,
    ),
    Planted(
        "backward of layer norm",
        decomposed(aten.native_layer_norm_backward.default, scaled(1.01, 1)),
        NORM.format(backward=True, norm="LayerNorm(16)"),
        "aten.native_layer_norm_backward.default",
        verdict=Verdict.WRONG_GRADIENT,
        line=None,
        slow=True,
    ),
    Planted(
        "backward of gelu",
        decomposed(aten.gelu_backward.default, scaled(1.01)),
        case("return F.gelu(x) * 2", TRAINED, BACKWARD),
        "aten.gelu_backward.default",
        verdict=Verdict.WRONG_GRADIENT,
    ),
    Planted(
        "backward of an embedding",
        decomposed(aten.embedding_dense_backward.default, lambda f: scaled(1.01)(f or embedding_dense_backward)),
        case("return F.embedding(more[0], x) * 2", TRAINED + ", torch.tensor([1, 2, 2, 0])", BACKWARD),
        "aten.embedding_dense_backward.default",
        verdict=Verdict.WRONG_GRADIENT,
        slow=True,
    ),
    Planted(
        "another dtype",
        decomposed(aten.hardswish.default, through(lambda r: r.double())),
        case("return F.hardswish(x)", X),
        HARDSWISH,
        kind="dtype",
        verdict=Verdict.METADATA,
    ),
    Planted(
        "another layout",
        decomposed(aten.hardswish.default, through(lambda r: r.t().contiguous().t())),
        case("return F.hardswish(x)", X),
        HARDSWISH,
        kind="stride",
        verdict=Verdict.METADATA,
    ),
    Planted(
        "lost update",
        decomposed(aten._native_batch_norm_legit_functional.default, bn_forgets),
        NORM.format(backward=False, norm="BatchNorm1d(16)") + "GRAD = 'no_grad'\n",
        "aten._native_batch_norm_legit_functional.default",
        verdict=Verdict.ALIASING,
        line=None,
    ),
    Planted(
        "raises",
        decomposed(aten.hardswish.default, raising),
        case("return F.hardswish(x)", X),
        HARDSWISH,
        kind="raises",
        verdict=Verdict.COMPILE_ERROR,
    ),
    Planted(
        "another state of the generator",
        decomposed(aten.bernoulli.default, draws_more),
        case("return torch.bernoulli(x.sigmoid())", X, EAGER_NUMBERS),
        "aten.bernoulli.default",
        kind="numbers",
    ),
    Planted(
        "lost check",
        contextlib.nullcontext,
        case("return torch.index_select(x, 0, torch.tensor([0, -1]))", X),
        "aten.index_select.default",
        kind="check",
        verdict=Verdict.ACCEPTS_INVALID,
    ),
    Planted(
        "dispatcher",
        lambda: dispatched(aten.upsample_nearest2d.vec, scaled(1.01)),
        case("return F.interpolate(x, scale_factor=2) + 1", "torch.randn(1, 2, 4, 4)"),
        "aten.upsample_nearest2d.vec",
    ),
    Planted(
        "dropout that is a copy",
        contextlib.nullcontext,
        case("y = F.dropout(x, 0.5, False); y += 1; return x * 2", X),
        "aten.dropout.default",
        kind="alias",
    ),
    Planted(
        "fake result of another dtype",
        fake(aten.cumprod.default, lambda r: r.int()),
        case("return torch.cumprod(x, 0) + 1", X),
        "aten.cumprod.default",
        stage="fake_tensor",
        kind="dtype",
    ),
    Planted(
        "fake result of another layout, which dynamo cannot view",
        fake(aten.cumprod.default, lambda r: r.t().contiguous().t()),
        case("return torch.cumprod(x, 0).view(-1)", X),
        "aten.cumprod.default",
        stage="fake_tensor",
        kind="stride",
        verdict=Verdict.COMPILE_ERROR,
    ),
    Planted(
        "fake result of another layout and of sizes that are symbols",
        lambda: dispatched(aten.avg_pool2d.default, through(in_channels_last), torch._C.DispatchKey.Meta),
        case("return F.avg_pool2d(x, 2)", "torch.randn(2, 3, 8, 6)", "DYNAMIC = True"),
        "aten.avg_pool2d.default",
        stage="fake_tensor",
        kind="stride",
        verdict=Verdict.METADATA,
    ),
    Planted(
        "capture",
        forgets_alpha,
        case("z = torch.sin(x); z.add_(x, alpha=more[0]); return z * 2", X + ", torch.tensor(0.5)"),
        "add_",
        stage="dynamo",
    ),
    Planted(
        "functionalization",
        loses_writes,
        case("y = x + 1; y.view(-1)[:4].mul_(3); return y * 2", X),
        "aten.mul_.Tensor",
        stage="functionalization",
    ),
    Planted(
        "partition",
        swaps_saved,
        TWO_LINEARS,
        "min_cut_rematerialization_partition",
        stage="partition",
        verdict=Verdict.WRONG_GRADIENT,
        line=None,
    ),
    Planted(
        "draw in both parts",
        draws_again,
        case("return x.sin() * torch.rand_like(x)", TRAINED, f"{BACKWARD}\n{EAGER_NUMBERS}"),
        "min_cut_rematerialization_partition",
        stage="partition",
        kind="numbers",
        line=None,
    ),
]


def marked(planted: Planted) -> Any:
    return pytest.param(planted, id=str(planted), marks=[pytest.mark.slow] if planted.slow else [])


@pytest.mark.parametrize("planted", [marked(planted) for planted in PLANTED])
def test_planted_bug_is_named_and_proved(planted: Planted, tmp_path: Path):
    trial, found = attribute(tmp_path, planted.case, planted.plant)
    assert trial.judgement.verdict is planted.verdict, trial.judgement.detail
    assert found is not None and found.culprit is not None
    culprit = found.culprit
    assert (culprit.stage, culprit.rewrite) == (planted.stage, planted.rewrite)
    assert culprit.details["kind"] == planted.kind
    assert culprit.necessary is planted.necessary
    assert len(found.ablations) <= 2
    if planted.line is not None:
        assert culprit.site is not None and culprit.site.split(" ")[0] == f"case.py:{planted.line}"
    if planted.stage in ("decomposition", "fake_tensor"):
        assert culprit.source is not None and culprit.line is not None and culprit.line > 0
        assert [ablation.repairs for ablation in found.ablations] == [True]


ROWS = """
import torch

CONFIG = {"dynamo": {"capture_dynamic_output_shape_ops": True}}
OPTIONS = {"size_asserts": ASSERTS}

def f(x):
    rows = torch.argwhere(x > 0)
    return rows[:, 0] * 2 - rows[:, 1]

def make():
    torch.manual_seed(0)
    return f, (torch.randn(3, 5),)
"""


@pytest.mark.parametrize(("asserts", "verdict"), [("True", "runtime_error"), ("False", "miscompile")])
def test_a_fake_result_of_another_layout_is_named_where_its_size_hangs_on_values(
    tmp_path: Path, asserts: str, verdict: str
):
    def rowwise(kept: Any) -> Any:
        return lambda *given, **named: kept(*given, **named).contiguous()

    path = tmp_path / "case.py"
    path.write_text(ROWS.replace("ASSERTS", asserts))
    with entry(fake_impls.op_implementations_dict, aten.nonzero.default, rowwise):
        report = triage(load_case(path), torch.device("cpu")).to_json()
    culprit = report["culprit"]
    assert (report["verdict"], culprit["stage"], culprit["rewrite"]) == (verdict, "fake_tensor", "aten.nonzero.default")
    assert culprit["necessary"] and culprit["details"]["got"].endswith("strides (2, 1)")


@contextlib.contextmanager
def gather_takes_the_nearest() -> Iterator[None]:
    """The lowering of ``gather`` takes another index for one that is out of range."""

    def make(kept: Any) -> Any:
        remainder = lowering.lowerings[aten.remainder.Scalar]
        return lambda x, dim, index, **kwargs: kept(x, dim, remainder(index, 4), **kwargs)

    with entry(lowering.lowerings, aten.gather.default, make):
        yield


def test_a_check_that_is_lost_behind_the_graphs_is_of_its_operator(tmp_path: Path):
    source = case("return torch.gather(x, 0, torch.tensor([[9]])) + 1", X)
    trial, found = attribute(tmp_path, source, gather_takes_the_nearest)
    assert trial.judgement.verdict is Verdict.ACCEPTS_INVALID
    assert found is not None and found.culprit is not None
    culprit = found.culprit
    assert (culprit.stage, culprit.rewrite, culprit.site) == ("lowering", "aten.gather.default", "case.py:8 #1")
    assert (culprit.necessary, culprit.confidence) == (None, "low")
    assert "out of bounds" in culprit.details["expected"]


def test_only_the_decomposition_that_is_wrong_by_itself_is_blamed(tmp_path: Path):
    """That of ``hardswish_`` runs that of ``hardswish``, and ``gelu`` beside them is right."""
    source = case("y = F.gelu(x) + 1; F.hardswish(y, inplace=True); return F.gelu(y)", X)
    _, found = attribute(tmp_path, source, decomposed(aten.hardswish.default, scaled(1.01)))
    assert found is not None and found.culprit is not None
    assert found.culprit.rewrite == HARDSWISH
    assert found.contributors == []


def test_two_wrong_decompositions_are_both_named(tmp_path: Path):
    @contextlib.contextmanager
    def both() -> Iterator[None]:
        with decomposed(aten.hardswish.default, scaled(1.01))(), decomposed(aten.gelu.default, scaled(1.01))():
            yield

    _, found = attribute(tmp_path, case("return F.hardswish(x), F.gelu(x)", X), both)
    assert found is not None and found.culprit is not None
    named = [found.culprit.rewrite, *(other.rewrite for other in found.contributors)]
    assert named == [HARDSWISH, "aten.gelu.default"]
    assert [ablation.repairs for ablation in found.ablations] == [False, False, True]


def test_the_ordinal_tells_uses_on_one_line_apart(tmp_path: Path):
    big = decomposed(aten.hardswish.default, lambda f: lambda x: f(x) * (1.01 if x.shape[0] == 2 else 1))
    _, found = attribute(tmp_path, case("return F.hardswish(x), F.hardswish(x[:2])", X), big)
    assert found is not None and found.culprit is not None
    assert found.culprit.site == "case.py:8 #2"
    assert found.culprit.nodes == ("hardswish_1",)


UNDECLARED = """
import torch

@torch.library.custom_op("fuzzcompile_tests::bump", mutates_args=())
def bump(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2

@bump.register_fake
def _(x):
    return torch.empty_like(x)

def model(x):
    y = torch.sin(x)
    z = bump(y)
    return y + z

def make():
    torch.manual_seed(0)
    return model, (torch.randn(5),)
"""


def test_write_that_an_operators_schema_hides_is_named(tmp_path):
    path = tmp_path / "case.py"
    path.write_text(UNDECLARED)
    report = triage(load_case(path), torch.device("cpu"))
    assert report.is_bug
    culprit = report.attribution.culprit
    assert culprit is not None
    assert (culprit.stage, culprit.rewrite) == ("functionalization", "fuzzcompile_tests.bump.default")
    assert (culprit.necessary, culprit.details["got"]) == (None, "argument 0 written to")


def test_a_check_that_is_lost_while_lowering_is_not_the_fake_tensors(write_case):
    """``aot_eager``, which has the same fake tensors, raises as eager mode does."""
    source = case("return torch.trunc(x > 0)", X)
    with entry(lowering.lowerings, aten.trunc.default, lambda kept: lambda x: x):
        report = triage(load_case(write_case(source)), torch.device("cpu"))
    culprit = report.attribution.culprit
    assert report.verdict is Verdict.ACCEPTS_INVALID and culprit is not None
    assert (culprit.stage, culprit.rewrite, culprit.necessary) == ("lowering", "aten.trunc.default", True)
    assert report.confidence == "high" and not any("not watched" in note for note in report.notes)
