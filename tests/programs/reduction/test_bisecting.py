"""Torch's own bisector on a reproducer: its answer as it gives it, and none where it has none."""

from __future__ import annotations

import pytest

from fuzzcompile.programs.scripts.clean_process import bisect_compiler

WRONG = """
import torch
from torch._inductor import lowering

right = lowering.lowerings[torch.ops.aten.erf.default]
lowering.lowerings[torch.ops.aten.erf.default] = lambda x: lowering.mul(right(x), 1.5)
x = torch.linspace(-1, 1, 9)
raise SystemExit(not torch.allclose(torch.compile(torch.erf)(x), torch.erf(x)))
"""


@pytest.mark.slow
def test_the_bisector_names_a_lowering():
    answer = bisect_compiler(WRONG, 240.0)
    assert answer is not None and "backend='inductor', subsystem='lowerings'" in answer and "erf" in answer


@pytest.mark.parametrize("source", ["raise SystemExit(0)", "import os; os._exit(3)"])
def test_no_answer_is_none(source: str):
    """A script that is right under every backend, and one that ends the process."""
    assert bisect_compiler(source, 60.0) is None
