"""Operators beside their decompositions and fake tensors: clean programs stay clean, and nothing stays patched."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import programs
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._inductor import compile_fx, decomposition, lowering
from watching import watch

from fuzzcompile.compiler.functional_run import load_functional_tools, run_eagerly
from fuzzcompile.compiler.operators.decompositions import (
    ChosenOperators,
    find_functional_form,
    find_operator,
    get_operator_family,
    keep_undecomposed,
    read_decomposition_table,
)
from fuzzcompile.compiler.operators.operator_application import forget_metadata, run_fake
from fuzzcompile.compiler.watch import patch_table
from fuzzcompile.compiler.watch.ledger import Ledger
from fuzzcompile.compiler.watch.torch_patch import install_patches
from fuzzcompile.diagnosis.stages.graph_ways import METADATA
from fuzzcompile.diagnosis.stages.operator_ways import OperatorCheck, check_operators
from fuzzcompile.diagnosis.stages.ways import Pair, Sides

aten = torch.ops.aten
DTYPES = (torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow), torch.float16)


def drop_strides(metadata: object) -> str:
    return str(metadata).partition(" strides")[0]


def checked(target: Callable[..., Any], *inputs: torch.Tensor, backward: bool = False) -> OperatorCheck:
    watched = watch(target, inputs, backward=backward, screen=True)
    assert watched.ledger.unseen == []
    (found,) = check_operators(watched.ledger)
    assert found.watched.raised is None
    assert found.watched.unseen == []
    divergence: Any = SimpleNamespace(trial=SimpleNamespace(ledger=watched.ledger))
    pairs: list[Pair[Any]] = []
    for sides in METADATA.sides(divergence):
        assert isinstance(sides, Sides)
        sides.walk(lambda pair: bool(pairs.append(pair)))
    assert [pair for pair in pairs if drop_strides(pair.left) != drop_strides(pair.right)] == []
    return found


class Zoo(nn.Module):
    """Operators of many kinds, most of which Inductor decomposes, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.group, self.table = nn.GroupNorm(2, 4), nn.Embedding(7, 6)

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        y = self.group(self.norm(self.convolution(x)))
        y = F.interpolate(F.avg_pool2d(y, 2), scale_factor=2, mode="bilinear")
        y = F.elu(y) + F.silu(y) * F.softplus(y) + F.gelu(y, approximate="tanh")
        rows = y.flatten(2).mean(-1) @ y.new_ones(4, 6) + self.table(index)
        loss = F.cross_entropy(rows, index) + F.smooth_l1_loss(rows, rows.roll(1)) + rows.logsumexp(-1).std()
        return loss + (rows.cumsum(0).clamp(-1, 1) * rows.softmax(-1)).var() + F.dropout(rows, 0.5).norm()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "training"])
def test_block_has_no_fault(training: bool, dtype: torch.dtype):
    target, inputs = programs.block(training=training, dtype=dtype)
    assert checked(target, *inputs, backward=training).faults == []


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)], ids=str)
def test_zoo_has_no_fault(dtype: torch.dtype):
    torch.manual_seed(0)
    inputs = torch.randn(3, 2, 8, 8, dtype=dtype), torch.tensor([0, 4, 1])
    found = checked(Zoo().to(dtype), *inputs, backward=True)
    named = {(fault.culprit.rewrite, fault.culprit.details["kind"]) for fault in found.faults}
    # Batch norm's decomposition computes what goes into bfloat16 buffers in float32; the copy into them casts it.
    buffers = {("aten._native_batch_norm_legit_functional.default", "dtype")}
    assert named == (set() if dtype is torch.float32 else buffers)


def unstable(x: torch.Tensor) -> torch.Tensor:
    """What rounding decides is nobody's fault."""
    return (x * 10).floor() + torch.div(x, 0.1, rounding_mode="floor") + (x - x.mean()).sign()


def extreme(x: torch.Tensor) -> torch.Tensor:
    return torch.logsumexp(x * 1e30, -1) + F.softplus(x * 1e4).sum(-1) + F.log_softmax(x * 1e20, -1).sum(-1)


def drawing(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x, 0.3) + torch.rand_like(x) + torch.bernoulli(x.sigmoid()) + x.new_empty(4, 4).zero_()


def writing(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y.t()[1:].mul_(2)
    y[0] = y[1]
    return F.leaky_relu_(y).clamp_(max=1)


@pytest.mark.parametrize("program", [unstable, extreme, drawing, writing])
def test_hard_programs_have_no_fault(program: Callable[..., torch.Tensor]):
    (x,) = programs.tensors((4, 4))
    assert checked(program, x).faults == []


def test_the_random_stream_and_the_dispatcher_are_as_they_were():
    before = {key: id(kernel) for key, kernel in aten.dropout.default.py_kernels.items()}
    checked(drawing, *programs.tensors((4, 4)))
    assert {key: id(kernel) for key, kernel in aten.dropout.default.py_kernels.items()} == before
    assert torch._C._len_torch_dispatch_stack() == 0


def test_a_graph_that_raises_inside_a_transform_leaves_it():
    def program(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return torch.func.vmap(lambda row: torch.index_select(row, 0, index))(x)

    watched = watch(program, (torch.ones(3, 4), torch.tensor([0, 1])), screen=True)
    (frame,) = watched.ledger.frames
    snapshot = frame.records[0].snapshots[0]
    wrong = [torch.tensor([0, 9]) if value.dtype is torch.int64 else value for value in frame.dynamo_calls[0]]
    run = run_eagerly(snapshot, wrong, double=False)
    assert isinstance(run.error, (IndexError, RuntimeError))
    assert not torch._C._functorch.get_interpreter_stack()


@pytest.mark.parametrize("double", [False, True])
def test_writes_made_functional_are_the_same_writes(double: bool):
    watched = watch(writing, programs.tensors((4, 4)), screen=True)
    (frame,) = watched.ledger.frames
    snapshot, inputs = frame.records[0].snapshots[-1], frame.dynamo_calls[0]
    plain, functional = (
        run_eagerly(snapshot, inputs, double=double),
        run_eagerly(snapshot, inputs, double=double, tools=load_functional_tools(), by_node=False),
    )
    assert plain.error is None and functional.error is None
    assert torch.equal(plain.outputs[0], functional.outputs[0])
    written = {str(operator) for node in plain.operators.values() for operator in node if operator._schema.is_mutable}
    assert "aten.mul_.Tensor" in written


# -- names, and compiles without ----------------------------------------------------------------------


def test_names():
    assert find_operator("aten.gelu.default") is aten.gelu.default
    assert find_operator("aten.no_such_operator.default") is None
    assert find_functional_form(aten.add_.Tensor) is aten.add.Tensor
    assert find_functional_form(aten.mm.out) is aten.mm.default
    assert find_functional_form(aten.bernoulli_.float) is aten.bernoulli.p  # by its arguments
    assert find_functional_form(aten.add.Tensor) is None
    assert (
        find_functional_form(aten._native_batch_norm_legit.default) is aten._native_batch_norm_legit_functional.default
    )
    assert get_operator_family("aten.celu_.default") == "celu"
    assert get_operator_family("aten.native_layer_norm_backward.default") == "native_layer_norm_backward"


def test_without_takes_out_and_puts_back():
    assert read_decomposition_table()
    before, lowered = read_decomposition_table(), set(lowering.lowerings)
    kernels = dict(aten.dropout.default.py_kernels)
    removal = ChosenOperators(["aten.gelu_.default", "aten.dropout.default", "aten.no_such_operator.default"], Ledger())
    with install_patches(removal, patch_table.DECOMPOSITIONS), keep_undecomposed(removal):
        table = compile_fx.select_decomp_table()
        assert aten.gelu.default not in table and aten.gelu.default in before
        assert len(before) - len(table) <= 3
        assert torch._C.DispatchKey.Autograd not in aten.dropout.default.py_kernels
    assert read_decomposition_table() == before
    assert aten.gelu.default in decomposition.decompositions
    assert dict(aten.dropout.default.py_kernels) == kernels
    assert set(lowering.lowerings) == lowered


def test_without_a_decomposition_the_operator_reaches_the_passes():
    def program(x: torch.Tensor) -> torch.Tensor:
        return F.hardswish(x) + 1

    x = programs.tensors((3, 5))
    for names, calls in (((), False), (("aten.hardswish.default",), True)):
        watched = watch(program, x, screen=True, without_decompositions=names)
        record = watched.ledger.frames[0].find_record("joint_graph")
        assert record is not None
        assert ("aten.hardswish.default" in record.snapshots[0].operator_names) is calls


@pytest.mark.parametrize("ci", [None, "true"])
def test_an_operator_without_decomposition_and_lowering_is_called_as_it_is(
    ci: str | None, monkeypatch: pytest.MonkeyPatch
):
    if ci is None:
        monkeypatch.delenv("CI", raising=False)
    else:
        monkeypatch.setenv("CI", ci)

    def program(x: torch.Tensor) -> torch.Tensor:
        return F.hardswish(x) * 2

    (x,) = programs.tensors((3, 5))
    lowered = set(lowering.lowerings)
    watched = watch(program, (x,), without_decompositions=("aten.hardswish.default",))
    torch.testing.assert_close(watched.values[0], program(x))
    assert set(lowering.lowerings) == lowered
    assert os.environ.get("CI") == ci


# -- fake tensors -------------------------------------------------------------------------------------


def test_fake_run_says_what_it_can():
    x = torch.randn(3, 4)
    run = run_fake(aten.mm.default, (x, x.t()), {})
    assert run is not None and run.error is None
    assert tuple(run.results[0].shape) == (3, 3)
    assert run_fake(aten.nonzero.default, (x,), {}) is None
    refused = run_fake(aten.mm.default, (x, x), {})
    assert refused is not None and isinstance(refused.error, RuntimeError)


def test_metadata_from_kernels_is_what_kernels_give():
    fake_tensor = torch._subclasses.fake_tensor
    original = fake_tensor.FakeTensorMode._dispatch_impl
    metadata = ChosenOperators(["aten.cumprod.default"], Ledger())
    with install_patches(metadata, patch_table.METADATA), forget_metadata():
        x = torch.randn(4, 3).t()
        with fake_tensor.FakeTensorMode() as mode:
            result = torch.cumprod(mode.from_tensor(x), 0)
        assert result.stride() == torch.cumprod(x, 0).stride()
    assert fake_tensor.FakeTensorMode._dispatch_impl is original
