"""Which outputs of a graph autograd reaches from which others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import fx

from fuzzcompile.compiler.watch.aot_autograd import find_joined_outputs
from fuzzcompile.compiler.watch.ledger import Snapshot


def chained(x):
    y = x * 2
    return y, y.sin(), None


def viewed(x):
    y = x * 2
    return y, y.view(-1)


def given(x):
    return x, x.sin()


def parted(x):
    rows = x.unbind(0)
    return rows[0], rows[1], rows[0] * 2


def twice(x):
    y = x * 2
    return y.exp(), y, y


@pytest.mark.parametrize(
    ("function", "pairs"),
    [(chained, [(1, 0)]), (viewed, []), (given, []), (parted, [(2, 0)]), (twice, [(0, 1)])],
)
def test_the_first_of_what_is_reached_is_told_and_views_are_not(
    function: Callable[..., object], pairs: list[tuple[int, int]]
):
    snapshot = Snapshot(fx.symbolic_trace(function).graph, {}, {})
    x = torch.randn(2, 3, requires_grad=True)
    assert list(find_joined_outputs(snapshot, [x])) == pairs
