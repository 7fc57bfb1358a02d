"""Each definition beside the function of torch that it defines, and a function that is wrong."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from fuzzcompile.compiler.operators.second_reference import SecondReference
from fuzzcompile.run.reference.definitions import DEFINITIONS


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


X, Y, PLUS = numbers(3, 4), numbers(3, 4, seed=1), numbers(3, 4, seed=2).abs() + 0.1
SIGNS = Y.sign()
Q, K, V = numbers(2, 3, 5, 4), numbers(2, 3, 6, 4, seed=1), numbers(2, 3, 6, 2, seed=2)
INF = float("inf")
CALLS = {
    "lp_pool1d": [(numbers(2, 3, 9), 2, 3), (numbers(2, 3, 9), INF, 3, 2), (numbers(2, 3, 9), -INF, 2), (PLUS, 3, 2)],
    "lp_pool2d": [(numbers(2, 3, 6, 7), 2, 3), (numbers(2, 3, 6, 7), INF, (2, 3), (1, 2))],
    "lp_pool3d": [(numbers(2, 4, 6, 7), 2, 2), (numbers(1, 2, 4, 6, 7), INF, (2, 3, 1), 2)],
    "scaled_dot_product_attention": [
        (Q, K, V), (Q, K, V, numbers(5, 6) > -0.5), (Q, K, V, numbers(5, 6)), (Q, K, V, None, 0.0, True),
    ],
    "cosine_similarity": [(X, Y), (X, Y, 0), (X * 0, Y)],
    "pairwise_distance": [(X, Y), (X, Y, 1.0, 1e-3, True)],
    "normalize": [(X,), (X, 1.0, 0), (X * 0,)],
    "huber_loss": [(X, Y), (X, Y, "sum", 0.3)],
    "smooth_l1_loss": [(X, Y), (X, Y, None, None, "none", 0.3), (X, Y, None, None, "mean", 0.0)],
    "poisson_nll_loss": [(X, PLUS), (PLUS, PLUS * 3, False, True), (X, PLUS * 3, True, True, None, 1e-8, None, "sum")],
    "gaussian_nll_loss": [(X, Y, PLUS), (X, Y, PLUS, True, 0.5, "sum")],
    "kl_div": [(X, PLUS), (X, Y, None, None, "batchmean", True), (X, PLUS * 0, None, None, "sum")],
    "margin_ranking_loss": [(X, Y, SIGNS), (X, Y, SIGNS, 0.5, None, None, "none")],
    "hinge_embedding_loss": [(X, SIGNS), (X, SIGNS, 0.3, None, None, "sum")],
    "soft_margin_loss": [(X, SIGNS), (X, SIGNS, None, None, "none")],
}  # fmt: skip


def test_every_definition_is_called():
    assert set(CALLS) == set(DEFINITIONS)


@pytest.mark.parametrize("name", DEFINITIONS)
def test_function_and_definition_agree_in_every_form(name: str, monkeypatch: pytest.MonkeyPatch):
    applied = []
    definition = DEFINITIONS[name]
    monkeypatch.setitem(DEFINITIONS, name, lambda call: applied.append(definition(call)) or applied[-1])
    with SecondReference(native=torch.float64) as mode:
        for args in CALLS[name]:
            before = len(applied)
            getattr(functional, name)(*args)
            assert len(applied) == before + 1 and applied[-1] is not None, "the definition was asked, and had an answer"
    assert mode.contested == []


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_definition_contests_a_result_that_is_off(name: str, monkeypatch: pytest.MonkeyPatch):
    definition = DEFINITIONS[name]
    monkeypatch.setitem(DEFINITIONS, name, lambda call: definition(call) * 1.01 + 0.01)
    with SecondReference(native=torch.float64) as mode:
        getattr(functional, name)(*CALLS[name][0])
    (contested,) = mode.contested
    assert contested.kernel_is_wrong and name in str(contested.operator)
