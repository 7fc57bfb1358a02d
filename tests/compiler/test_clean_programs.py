"""Programs that torch compiles rightly: no step of theirs is a change of meaning, nor an unexplained move."""

from __future__ import annotations

from collections.abc import Callable

import programs
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from watching import Watched, watch

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def blamed(watched: Watched) -> list[tuple[str, float | None, float | None]]:
    return [
        (step.label.rewrite, step.float64, step.native)
        for step in watched.steps
        if step.is_semantic or step.moves_natively
    ]


def folded_constants(x: torch.Tensor) -> torch.Tensor:
    first = torch.full((4,), 0.1, dtype=x.dtype) * 0.3
    second = torch.full((4,), 0.7, dtype=x.dtype)
    return x * first + second * 0.9 * second + x * 1 + 0


def folded_mask(x: torch.Tensor) -> torch.Tensor:
    mask = torch.full((4, 4), float("-inf"), dtype=x.dtype).triu(1)
    return (x + mask).softmax(-1) * (torch.ones((), dtype=x.dtype) / 3)


def folded_table(x: torch.Tensor) -> torch.Tensor:
    return x * (torch.arange(4, dtype=x.dtype) * 0.1).exp() + torch.tensor(0.3, dtype=x.dtype)


def reassociated(x: torch.Tensor) -> torch.Tensor:
    return (x * 0.3 / 0.7).softmax(-1) + (x / 0.3).softmax(-1) + (x + 1000.0 - 1000.0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("program", [folded_constants, folded_mask, folded_table, reassociated])
def test_folding_and_reassociation_are_rounding(program: Callable, dtype: torch.dtype):
    (x,) = programs.tensors((4, 4))
    watched = watch(program, (x.to(dtype),), screen=True)
    assert watched.fired
    assert watched.ledger.unseen == []
    assert blamed(watched) == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "training"])
def test_block_has_no_semantic_step(training: bool, dtype: torch.dtype):
    target, inputs = programs.block(training=training, dtype=dtype)
    watched = watch(target, inputs, backward=training, screen=True)
    assert any(name.startswith("_sfdp") for name in watched.fired)
    assert watched.ledger.unseen == []
    assert all(step.float64 is not None for step in watched.steps)
    assert blamed(watched) == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_norm_activation_and_embedding_have_no_semantic_step(dtype: torch.dtype):
    torch.manual_seed(2)
    model = nn.Sequential(nn.Embedding(7, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8), nn.GELU("tanh")).to(dtype)
    watched = watch(model, (torch.tensor([[1, 2], [3, 3]]),), backward=True, screen=True)
    assert watched.ledger.unseen == []
    assert blamed(watched) == []


def test_gradient_that_is_zero_by_symmetry_is_no_step():
    """The gradient of the key's bias is rounding and nothing else: softmax does not see a shift of the scores."""
    target, inputs = programs.block(training=True)
    watched = watch(target, inputs, backward=True, screen=True)
    key_bias = target.projections[1].bias
    assert key_bias.grad.abs().max() < 1e-6 < target.projections[0].bias.grad.abs().max()
    step = watched.step("_sfdp_pattern_11_training")
    assert step.float64 < 1e-12
    assert step.native < 1e-4


def with_mask(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return F.softmax(q @ k.transpose(-2, -1) / 2.0 + mask, -1) @ v


def test_huge_numbers_in_a_mask_do_not_hide_a_wrong_rewrite():
    import planting

    _, inputs = programs.attention()
    mask = torch.full((2, 2, 6, 6), torch.finfo(torch.float32).min).triu(1)
    clean = watch(with_mask, (*inputs, mask), screen=True)
    assert any(name.startswith("_sfdp") for name in clean.fired)
    assert blamed(clean) == []
    with planting.attention_scale(planting.SMALL_ERROR):
        wrong = watch(with_mask, (*inputs, mask), screen=True)
    assert [name for name, _, _ in blamed(wrong)] == [n for n in wrong.fired if n.startswith("_sfdp")]


def test_frozen_weights_are_replayed_on_both_sides_of_the_freezing():
    target, inputs = programs.block()
    watched = watch(target, inputs, config={"freezing": True})
    assert watched.ledger.unseen == []
    joint = [step for step in watched.steps if step.label.stage == "joint_graph"]
    assert joint
    assert all(step.float64 is not None for step in joint)
    assert all(step.native is not None for step in watched.steps)
    assert blamed(watched) == []
