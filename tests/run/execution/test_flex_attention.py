"""Flex attention has a float64 reference: it runs operator by operator, not as the graph that it compiles itself."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run.attention_backends import interpret_flex_attention
from fuzzcompile.run.runs import run_eager, run_float64

CPU = torch.device("cpu")
SOURCE = """
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

def make():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 128, 16) for _ in range(3))
    slopes = torch.randn(2)
    causal = create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128, device="cpu")

    def program(q, k, v, slopes):
        def bias(score, b, h, i, j):
            return score * 0.1 + slopes[h] * (i - j)

        return flex_attention(q, k, v, score_mod=bias, block_mask=causal)

    return program, (q, k, v, slopes)
"""


def test_the_reference_is_the_formula_in_float64(write_case):
    case = load_case(write_case(SOURCE))
    _, (q, k, v, slopes) = case.make()
    exact, _ = run_float64(case, CPU)
    noisy = run_eager(case, CPU, noise_seed=1)
    assert exact.failure is None and noisy.failure is None
    i, j = torch.arange(128)[:, None], torch.arange(128)
    scores = q.double() @ k.double().mT / 4 * 0.1 + slopes.double()[:, None, None] * (i - j)
    wanted = scores.masked_fill(i < j, -torch.inf).softmax(-1) @ v.double()
    torch.testing.assert_close(exact.values[0].value, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_a_compiled_score_that_is_wrong_is_told_from_rounding(write_case, monkeypatch):
    """The block of scores is computed by code of its own, in which a difference of positions is planted wrong."""
    from torch._inductor import lowering

    original = lowering.lowerings[torch.ops.aten.sub.Tensor]

    def doubled(a, b, **kwargs):
        return lowering.mul(original(a, b, **kwargs), 2)

    path = write_case(SOURCE)
    assert not triage(load_case(path), CPU).to_json()["is_bug"]
    monkeypatch.setitem(lowering.lowerings, torch.ops.aten.sub.Tensor, doubled)
    report = triage(load_case(path), CPU).to_json()
    assert report["verdict"] == "miscompile" and report["wrong"] == "compiled"


def test_under_autocast_it_computes_as_the_operator_does():
    query, key, value = (torch.randn(1, 2, 128, 16, generator=torch.Generator().manual_seed(n)) for n in range(3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = flex_attention(query, key, value)
        with interpret_flex_attention():
            attended = flex_attention(query, key, value)
    assert attended.dtype == wanted.dtype and torch.equal(attended, wanted)
