"""Buffers that are written in place, and random operators."""

from __future__ import annotations

import planting
import programs
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._inductor.fx_passes import joint_graph, post_grad
from watching import apart, eager, watch

from fuzzcompile.compiler.graph_replay import list_random_calls


class Cache(nn.Module):
    """A key-value cache: written by index, counted with add_, and shifted with copy_."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, 6, 4))
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("last", torch.zeros(1, 2, 4))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.keys.index_copy_(1, position, torch.sin(x))
        self.count.add_(1)
        self.last.copy_(x)
        return (self.keys * 2).sum(1) + self.count


def calls() -> list[tuple[torch.Tensor, ...]]:
    (first, second) = programs.tensors((1, 2, 4), (1, 2, 4))
    return [(first, torch.tensor([0, 1])), (second, torch.tensor([2, 3]))]


def buffers(model: nn.Module) -> list[torch.Tensor]:
    return [buffer.clone() for buffer in model.buffers()]


def test_mutated_buffers_end_as_in_eager():
    one, other = Cache(), Cache()
    watched = watch(one, *calls())
    assert apart(watched.values, eager(other, *calls())) < 1e-6
    assert all(torch.allclose(a, b) for a, b in zip(one.buffers(), other.buffers(), strict=True))


def test_buffers_are_captured_as_they_were_before_the_call():
    watched = watch(Cache(), *calls())
    (frame,) = watched.ledger.frames
    first, second = frame.forward_calls
    empty = [t for t in first if isinstance(t, torch.Tensor) and t.shape == (1, 6, 4)]
    filled = [t for t in second if isinstance(t, torch.Tensor) and t.shape == (1, 6, 4)]
    assert len(empty) == len(filled) == 1
    assert not empty[0].any()
    assert filled[0][:, :2].any()
    assert not filled[0][:, 2:].any()


def test_clean_mutation_has_no_semantic_step():
    watched = watch(Cache(), *calls())
    assert "reinplace_inplaceable_ops" in watched.fired
    assert [s.label.rewrite for s in watched.steps if s.is_semantic] == []
    assert all(step.float64 is not None for step in watched.steps)


def only_buffers(model: Cache) -> nn.Module:
    """The cache without an output that depends on what it writes."""

    class Writer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cache = model

        def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
            self.cache(x, position)
            return x + 1

    return Writer()


@pytest.mark.parametrize("table", [joint_graph.patterns, post_grad.pass_patterns[1]], ids=["joint", "post-grad"])
def test_rewrite_that_spoils_only_a_buffer_is_a_semantic_step(table):
    model = Cache()
    with planting.handler(table, planting.aten.sin.default, planting.sin_off):
        watched = watch(only_buffers(model), calls()[0])
    assert watched.step("sin_off").is_semantic
    right = Cache()
    right(*calls()[0])
    assert not torch.allclose(model.keys, right.keys)

    model = Cache()
    with planting.handler(table, planting.aten.sin.default, planting.sin_off):
        watch(only_buffers(model), calls()[0], vetoes=["sin_off"])
    assert torch.allclose(model.keys, right.keys)


def test_input_that_is_mutated_in_place_is_compared():
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        x.add_(torch.sin(x))
        return y

    (x,) = programs.tensors((3, 5))
    with planting.handler(post_grad.pass_patterns[1], planting.aten.sin.default, planting.sin_off):
        watched = watch(program, (x.clone(),))
    assert watched.step("sin_off").is_semantic


# -- dropout ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fallback_random", [True, False])
def test_rewrites_that_change_what_is_drawn_are_random_and_none_is_semantic(fallback_random: bool):
    target, inputs = programs.block(training=True, dropout=0.2)
    watched = watch(target, inputs, backward=True, fallback_random=fallback_random, screen=True)
    assert watched.ledger.unseen == []
    assert watched.fired
    assert not [s.label.rewrite for s in watched.steps if s.is_semantic or s.moves_natively]
    assert any(step.random for step in watched.steps) is not fallback_random


def test_random_modes_let_different_rewrites_fire():
    target, inputs = programs.block(training=True, dropout=0.2)
    own = watch(target, inputs, backward=True, fallback_random=False, screen=True)
    eagers = watch(target, inputs, backward=True, fallback_random=True, screen=True)
    assert [n for n in own.fired if n.startswith("_sfdp")]
    assert not [n for n in eagers.fired if n.startswith("_sfdp")]
    assert "replace_random" in own.fired
    assert "replace_random" not in eagers.fired


@pytest.mark.parametrize("fallback_random, name", [(False, "_sfdp"), (True, "div_softmax_pattern")])
def test_vetoes_work_with_dropout(fallback_random: bool, name: str):
    target, inputs = programs.block(training=True, dropout=0.2)
    how = {"backward": True, "fallback_random": fallback_random, "screen": True}
    assert [n for n in watch(target, inputs, **how).fired if n.startswith(name)]
    assert not [n for n in watch(target, inputs, vetoes=[name], **how).fired if n.startswith(name)]


class Dropped(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(torch.sin(x), 0.5, self.training)


def test_eager_random_stream_gives_the_same_mask_compiled():
    (x,) = programs.tensors((8, 9))
    model = Dropped().train()
    watched = watch(model, (x,), fallback_random=True)
    assert apart(watched.values, eager(model, (x,))) < 1e-6


def test_compilers_own_random_stream_keeps_the_scale_of_what_is_kept():
    (x,) = programs.tensors((8, 9))
    watched = watch(Dropped().train(), (x,), fallback_random=False)
    kept = watched.values[0] != 0
    assert 0.2 < kept.float().mean() < 0.8
    assert torch.allclose(watched.values[0][kept], 2 * torch.sin(x)[kept])


@pytest.mark.parametrize("fallback_random", [True, False])
def test_planted_rewrite_beside_dropout_is_recorded_and_vetoed(fallback_random: bool):
    (x,) = programs.tensors((8, 9))
    table = post_grad.pass_patterns[1]
    with planting.handler(table, planting.aten.sin.default, planting.sin_off):
        watched = watch(Dropped().train(), (x,), fallback_random=fallback_random, screen=True)
        vetoed = watch(Dropped().train(), (x,), fallback_random=fallback_random, vetoes=["sin_off"], screen=True)
    assert watched.step("sin_off").is_semantic
    assert "sin_off" not in vetoed.fired


def test_dropout_in_eval_mode_is_not_random():
    (x,) = programs.tensors((8, 9))
    with planting.handler(joint_graph.patterns, planting.aten.sin.default, planting.sin_off):
        watched = watch(Dropped().eval(), (x,), screen=True)
    assert watched.step("sin_off").is_semantic
    snapshots = [s for f in watched.ledger.frames for r in f.records for s in r.snapshots if r.stage != "pre_grad"]
    assert not any(list_random_calls(snapshot) for snapshot in snapshots)
