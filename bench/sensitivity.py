"""How small a planted semantic error may be and still be found: fuzzcompile beside torch.allclose and same().

    python bench/sensitivity.py [--dtypes float32 bfloat16 float16] [--errors 1e-1 1e-5]

One transformer block is compiled with one of its operators made wrong by a relative error: by a rewrite of the
post-grad stage, by its decomposition, or by its lowering. ``allclose`` is ``torch.allclose`` of compiled and eager
at its defaults, ``same`` is ``torch._dynamo.utils.same`` with the float64 reference; both find the error where they
say that the two are apart. The last row of each table has no error planted: anything found there is a false alarm.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from plants import before, behind, planting
from torch._inductor.fx_passes import post_grad

from fuzzcompile.compiler.torch_api import check_torch_same
from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.triage_report import TriageReport
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.programs.casefiles.case_module import load_case

aten = torch.ops.aten
_CASE = """
import math

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.qkv, self.out = nn.LayerNorm(64), nn.Linear(64, 192), nn.Linear(64, 64)
        self.norm2, self.up, self.gate, self.down = nn.LayerNorm(64), *(nn.Linear(64, 64) for _ in range(3))

    def forward(self, x):
        q, k, v = (t.view(2, 16, 4, 16).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(16), -1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(2, 16, 64))
        hidden = self.norm2(x)
        return self.down(F.gelu(self.up(hidden)) * torch.sigmoid(self.gate(hidden)))


def make():
    torch.manual_seed(0)
    return Block().eval().to(torch.DTYPE), (torch.randn(2, 16, 64).to(torch.DTYPE),)
"""


def in_rewrite(error: float) -> AbstractContextManager[None]:
    """A pattern of the post-grad stage replaces ``sigmoid(x)`` by ``sigmoid(x) * (1 + error)``."""

    def sigmoid_off(match: Any, x: Any) -> None:
        match.replace_by_example(lambda x: torch.sigmoid(x) * (1 + error), [x])

    return planting.handler(post_grad.pass_patterns[1], aten.sigmoid.default, sigmoid_off)


PLACES: dict[str, Callable[[float], AbstractContextManager[None]]] = {
    "rewrite": in_rewrite,
    "decomposition": lambda error: before.decomposition_off(aten.gelu.default, error),
    "lowering": lambda error: behind.lowering_off(aten.sigmoid.default, error),
}


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16", "float16"])
    parser.add_argument("--errors", nargs="+", type=float, default=[1e-1, 2e-2, 1e-2, 1e-3, 1e-4, 1e-5, 0.0])
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("| dtype | relative error | " + " | ".join(PLACES) + " |")
    print("|---" * (2 + len(PLACES)) + "|", flush=True)
    for dtype in given.dtypes:
        for error in given.errors:
            cells = [_cell(dtype, place, error) for place in (PLACES if error else ["nothing planted"])]
            cells += ["–"] * (len(PLACES) - len(cells))
            print(f"| {dtype} | {error:.0e} | " + " | ".join(cells) + " |", flush=True)


def _cell(dtype: str, place: str, error: float) -> str:
    planted = PLACES[place](error) if error else contextlib.nullcontext()
    with tempfile.TemporaryDirectory() as folder, planted:
        path = Path(folder) / "block.py"
        path.write_text(_CASE.replace("DTYPE", dtype), encoding="utf-8")
        report = triage(load_case(path), torch.device("cpu"), deadline=time.monotonic() - 1)
        close, same = _others(path)
    step = "" if report.float64_step is None else f" ({report.float64_step:.0e})"
    return f"{_shown(report)}{step} / {'-' if close else 'found'} / {'-' if same else 'found'}"


def _shown(report: TriageReport) -> str:
    return f"**{report.verdict}**" if report.is_bug else str(report.verdict)


def _others(path: Path) -> tuple[bool, bool]:
    """What torch.allclose and same say of the compiled output."""
    experiments = Experiments(load_case(path), torch.device("cpu"))
    compiled = experiments.trial().observation.values[0].value
    eager, exact = experiments.runs.eager.values[0].value, experiments.runs.reference.values[0].value
    assert math.isfinite(float(eager.double().abs().max()))
    return torch.allclose(compiled, eager), check_torch_same(eager, compiled, exact)


if __name__ == "__main__":
    main()
