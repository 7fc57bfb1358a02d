"""Parameters that a float64 run converts when they are read: the same bits, less memory, writes and all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from fuzzcompile.run import case_program, runs
from fuzzcompile.run.case import Case, CompileSettings
from fuzzcompile.run.case_program import Float64Stream, build, is_streamed, unstream

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stream the smallest tensor, and keep nothing in float64."""
    monkeypatch.setattr(case_program, "LEAST_BYTES", 0)
    monkeypatch.setattr(case_program, "KEPT_BYTES", 0)


class Mixed(nn.Module):
    """Tied, recurrent, convolved and normalised weights, a dtype that is asked for, views and fused attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(12, 8), nn.Linear(8, 12)
        self.head.weight = self.embedding.weight
        self.recurrent, self.convolved = nn.GRU(8, 8, batch_first=True), nn.Conv1d(8, 8, 3, padding=1)
        self.attention, self.norm = nn.MultiheadAttention(8, 2, batch_first=True), nn.RMSNorm(8)
        self.scale = nn.Parameter(torch.randn(4, 8))
        self.register_buffer("table", torch.randn(8, 8))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.recurrent(self.embedding(tokens))[0].to(self.scale.dtype)
        x = self.attention(x, x, x)[0] + self.convolved(x.transpose(1, 2)).transpose(1, 2)
        x = self.norm(x @ self.table) * self.scale.data[1:3].t().reshape(2, 8)[0]
        return self.head(x) + torch.finfo(self.scale.dtype).eps


def case(make, grad: str = "no_grad") -> Case:
    return Case("case", Path("case.py"), "", make, grad, False, CompileSettings(), None, None)


def mixed(dtype: torch.dtype = torch.float32):
    def make():
        torch.manual_seed(0)
        return Mixed().to(dtype).eval(), (torch.randint(0, 12, (2, 5)),)

    return make


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("grad", ["no_grad", "inference_mode"])
def test_streamed_and_converted_runs_have_the_same_bits(monkeypatch, grad, dtype):
    made = case(mixed(dtype), grad)
    read = sum(map(is_streamed, build(made, CPU, double=True, streamed=True).model.parameters()))
    assert read >= 8, "the case streams what it can"
    first = runs.run_float64(made, CPU)[0]
    monkeypatch.setattr(Float64Stream, "swap", lambda self, parameter: False)
    second = runs.run_float64(made, CPU)[0]
    assert first.failure is None and len(first.values) == len(second.values) == 1
    assert first.values[0].value.dtype == torch.float64
    assert torch.equal(first.values[0].value, second.values[0].value)
    assert first.values[0].stride == second.values[0].stride


def test_a_parameter_is_float64_and_takes_its_own_memory():
    program = build(case(mixed()), CPU, double=True, streamed=True)
    tied = program.model.head.weight
    assert tied is program.model.embedding.weight and isinstance(tied, nn.Parameter)
    assert tied.dtype == torch.float64 and unstream(tied).dtype == torch.float32
    assert {parameter.dtype for parameter in program.model.parameters()} == {torch.float64}
    assert program.model.table.dtype == torch.float64 and not is_streamed(program.model.table)


def test_a_case_that_differentiates_is_converted():
    program = build(case(mixed(), "enabled"), CPU, double=True, streamed=True)
    assert not any(map(is_streamed, program.model.parameters()))


class Written(nn.Module):
    """Writes to a parameter through a view, and reads it again."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(12.0).reshape(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.t()[1].mul_(0.5).add_(1 / 3)
        return x @ self.weight.t()


def test_a_write_through_a_view_is_seen_by_later_reads_and_reported(monkeypatch):
    made = case(lambda: (Written(), (torch.ones(2, 4),)))
    first = runs.run_float64(made, CPU)[0].index_by_name()
    monkeypatch.setattr(Float64Stream, "swap", lambda self, parameter: False)
    second = runs.run_float64(made, CPU)[0].index_by_name()
    assert list(first) == list(second) == ["out0", "parameter weight after the call"]
    assert all(torch.equal(first[name].value, second[name].value) for name in first)


def test_values_are_kept_for_the_next_reader_up_to_a_limit(monkeypatch):
    stream, rows = Float64Stream(), [torch.randn(64), torch.randn(64)]
    made = [stream.make_streamed(row) for row in rows]
    converted = []
    to = torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *a, **k: (converted.append(len(self)), to(self, *a, **k))[1])
    for _ in range(3):
        assert torch.equal(made[0] + 1, to(rows[0], torch.float64) + 1)
    assert converted == [64], "the last one read is always there"
    for tensor in (*made, *made):
        _ = tensor + 1
    assert converted == [64] * 4
    monkeypatch.setattr(case_program, "KEPT_BYTES", 2 * 64 * 8)
    for tensor in (*made, *made, *made):
        _ = tensor + 1
    assert converted == [64] * 5


class Branching(nn.Module):
    """Reads a parameter inside a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: self.layer(x), lambda x: self.layer(x).sin(), (x,))


@pytest.mark.parametrize("sign", [1, -1])
def test_a_branch_reads_a_streamed_parameter(sign):
    def make():
        torch.manual_seed(0)
        return Branching(), (sign * torch.ones(4, 4),)

    exact = runs.run_float64(case(make), CPU)[0]
    assert exact.failure is None
    model, (x,) = make()
    expected = model.double().layer(x.double())
    assert torch.equal(exact.values[0].value, expected if sign > 0 else expected.sin())
