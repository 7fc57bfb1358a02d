"""Which calls of a graph draw random numbers, at torch level and at ATen level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch._inductor import inductor_prims

from fuzzcompile.compiler.graph_replay import list_random_calls
from fuzzcompile.compiler.watch.ledger import Snapshot

ATEN = torch.ops.aten
FLASH = ATEN._scaled_dot_product_flash_attention_for_cpu.default


def draws(target: Callable[..., Any] | str, *arguments: object, **options: object) -> bool:
    graph = fx.Graph()
    x = graph.placeholder("x")
    create = graph.call_method if isinstance(target, str) else graph.call_function
    create(target, tuple(x if argument == "x" else argument for argument in arguments), options)
    return bool(list_random_calls(Snapshot(graph, {}, {})))


@pytest.mark.parametrize(
    "call",
    [
        (torch.rand, 3), (torch.rand_like, "x"), (torch.randperm, 3), (torch.bernoulli, "x"), (torch.normal, "x", "x"),
        (torch.multinomial, "x", 3), (F.dropout, "x", 0.1, True), (F.dropout2d, "x"), (F.alpha_dropout, "x"),
        ("uniform_", "x"), ("normal_", "x"), ("exponential_", "x"), ("cauchy_", "x"), ("bernoulli", "x"),
        (ATEN.rand.default, [3]), (ATEN.native_dropout.default, "x", 0.1, True), (ATEN.bernoulli.p, "x", 0.5),
        (FLASH, "x", "x", "x", 0.1),
        (inductor_prims.seed, torch.device("cpu")), (inductor_prims.random, [3], "x", "rand"),
    ],
    ids=lambda call: f"{getattr(call[0], '__name__', call[0])}-{len(call)}",
)  # fmt: skip
def test_a_random_call_is_recognised(call):
    assert draws(*call)


@pytest.mark.parametrize(
    "call",
    [
        (torch.relu, "x"), ("add", "x", 1), ("view", "x", -1), (F.rrelu, "x"), (ATEN.add.Tensor, "x", "x"),
        (F.scaled_dot_product_attention, "x", "x", "x"), (FLASH, "x", "x", "x"), (FLASH, "x", "x", "x", 0.0),
        (ATEN.rrelu_with_noise.default, "x", "x"), (inductor_prims.lookup_seed, "x", 0),
    ],
    ids=lambda call: f"{getattr(call[0], '__name__', call[0])}-{len(call)}",
)  # fmt: skip
def test_a_call_that_draws_nothing_is_not(call):
    assert not draws(*call)


def test_attention_draws_where_it_drops_out():
    assert draws(F.scaled_dot_product_attention, "x", "x", "x", dropout_p=0.1)
    assert draws(ATEN.scaled_dot_product_attention.default, "x", "x", "x", None, 0.1)
