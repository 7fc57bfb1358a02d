"""Inputs that a graph only reads are replayed without a copy: which those are."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx

from fuzzcompile.compiler.graph_replay import find_read_only, replay_graph
from fuzzcompile.compiler.watch.ledger import Snapshot
from fuzzcompile.run import case_program

aten = torch.ops.aten


def graph_of(build) -> fx.Graph:
    """A graph of two inputs."""
    graph = fx.Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    graph.output(build(graph.call_function, a, b))
    return graph


def test_inputs_without_writes_are_read_only():
    assert find_read_only(graph_of(lambda call, a, b: (call(aten.add.Tensor, (a, b)),))) == [0, 1]


def through_views(call, a, b):
    parts = call(aten.split.Tensor, (call(aten.t.default, (a,)), 2))
    return (call(aten.mul_.Tensor, (call(operator.getitem, (parts, 1)), b)),)


def test_a_write_through_views_is_one_to_the_input():
    assert find_read_only(graph_of(through_views)) == [1]


def test_a_write_to_a_result_is_none_to_the_input():
    assert find_read_only(
        graph_of(lambda call, a, b: (call(aten.mul_.Tensor, (call(aten.exp.default, (a,)), b)),))
    ) == [
        0,
        1,
    ]


def test_calls_without_a_schema_may_write_anything():
    assert find_read_only(graph_of(lambda call, a, b: (call(torch.add, (a, b)),))) == []


@pytest.mark.parametrize("double", [False, True])
def test_replays_do_not_reach_the_captured_inputs(monkeypatch, double):
    monkeypatch.setattr(case_program, "LEAST_BYTES", 0)
    a, b = torch.randn(4, 4), torch.randn(2, 4)
    kept = a.clone(), b.clone()
    run = replay_graph(Snapshot(graph_of(through_views), {}, {}), [a, b], double=double)
    assert run.error is None and torch.equal(a, kept[0]) and torch.equal(b, kept[1])
    expected = kept[0].clone()
    expected.t()[2:] *= kept[1]
    assert torch.allclose(run.inputs[0], expected.to(run.inputs[0].dtype)) and run.inputs[1] is b


def test_views_of_streamed_inputs_are_views_of_the_captured_ones(monkeypatch):
    monkeypatch.setattr(case_program, "LEAST_BYTES", 0)
    a, b = torch.randn(4, 4), torch.randn(2, 4)
    graph = graph_of(lambda call, a, b: (call(aten.t.default, (a,)), call(aten.mm.default, (b, a))))
    run = replay_graph(Snapshot(graph, {}, {}), [a, b], double=True)
    assert run.outputs[0].data_ptr() == a.data_ptr() and run.outputs[1].dtype == torch.float64
    assert torch.equal(run.outputs[1], b.double() @ a.double())
