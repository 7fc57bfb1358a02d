"""Replays are kept up to a size, and made again where they are asked for again."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from fuzzcompile.compiler.graph_replay import GraphReplayer, replay_graph
from fuzzcompile.compiler.watch.ledger import (
    GraphRecord,
    Label,
    Rewrite,
    take_snapshot,
)
from fuzzcompile.diagnosis.attribution import steps
from fuzzcompile.diagnosis.attribution import steps as replays


def module(program) -> fx.GraphModule:
    return fx.symbolic_trace(program)


def record(moved: tuple[int, ...], length: int = 9) -> GraphRecord:
    """A graph after each of several rewrites, of which those in ``moved`` change its meaning."""
    made = GraphRecord("post_grad", "inference")
    value = 1
    for index in range(length):
        value += index in moved
        made.snapshots.append(take_snapshot(module(lambda x, w, v=value: (x * v, w.t())), {}))
        if index:
            made.rewrites.append(Rewrite(Label("post_grad", None, f"rule{index}"), (), None, index - 1, index))
    return made


def measured(kept: int, moved: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> tuple[list[steps.Step], int]:
    monkeypatch.setattr(replays, "_KEPT_BYTES", kept)
    made, before = record(moved), GraphReplayer.replays
    measured_steps = list(steps._measure_record(0, made, [torch.arange(6.0), torch.ones(2, 3)]))
    return [s for s in measured_steps if s.is_semantic], GraphReplayer.replays - before


@pytest.mark.parametrize("moved", [(), (3,), (1, 8), (2, 3, 7)], ids=str)
def test_what_is_forgotten_changes_no_result(moved: tuple[int, ...], monkeypatch: pytest.MonkeyPatch):
    bounded, often = measured(0, moved, monkeypatch)
    unbounded, once = measured(2**30, moved, monkeypatch)
    assert [s.rewrite.after for s in bounded] == [s.rewrite.after for s in unbounded] == list(moved)
    assert [(s.float64, s.native) for s in bounded] == [(s.float64, s.native) for s in unbounded]
    assert once <= often <= 3 * once


def test_no_more_than_one_comparison_is_kept_beyond_the_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(replays, "_KEPT_BYTES", 0)
    runs = replays.SnapshotReplays(record(()).snapshots, [torch.arange(6.0), torch.ones(2, 3)])
    for index in range(6):
        runs.at(index, double=False)
    assert list(runs._done) == [(index, False) for index in range(2, 6)]
    assert {size for _, size in runs._done.values()} == {6 * 4}  # the view of an input is the input's memory


def test_outputs_that_are_views_of_inputs_are_no_copies():
    x, w = torch.arange(6.0), torch.ones(2, 3)
    for double in (False, True):
        run = replay_graph(record(()).snapshots[0], [x, w], double=double)
        assert run.outputs[1].untyped_storage().data_ptr() == w.untyped_storage().data_ptr()
        assert run.outputs[1].shape == (3, 2) and run.outputs[1].stride() == (1, 3)
    written = take_snapshot(module(lambda x, w: (x, w.mul_(2))), {})
    run = replay_graph(written, [x, w], double=False)
    assert run.outputs[1].sum() == 12 and w.sum() == 6
    assert run.outputs[0].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
