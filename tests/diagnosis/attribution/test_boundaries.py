"""Wrong decompositions show between dynamo's graph and the first one of Inductor's passes, however small they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import decomposition

from fuzzcompile.compiler.session import Compilation
from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.stages.graph_ways import Boundary, find_boundaries
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.programs.casefiles.case_module import load_case

pytestmark = pytest.mark.usefixtures("no_workarounds")

aten = torch.ops.aten
CASE = """
import torch
from torch import nn
from torch.nn import functional as F

BACKWARD = {backward}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        hidden = self.up(self.norm(x))
        hidden = F.gelu(hidden)
        return x + self.down(hidden)


def make():
    torch.manual_seed(0)
    return Block().to(torch.{dtype}), (torch.randn(2, 8, 16, dtype=torch.{dtype}, requires_grad={backward}),)
"""


@contextmanager
def off(operator: Any, error: float) -> Iterator[None]:
    """The decomposition of an operator makes its (first) result wrong by a relative error."""
    original: Callable[..., Any] = decomposition.decompositions[operator]

    def wrong(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if isinstance(result, tuple):
            return (result[0] * (1 + error), *result[1:])
        return result * (1 + error)

    decomposition.decompositions[operator] = wrong
    try:
        yield
    finally:
        decomposition.decompositions[operator] = original


def borders(folder: Path, dtype: str, *, backward: bool = False, source: str = CASE) -> list[Boundary]:
    path = folder / "case.py"
    path.write_text(source.format(dtype=dtype, backward=backward))
    experiments = Experiments(load_case(path), torch.device("cpu"))
    trial = experiments.trial(Compilation(screen=True))
    assert trial.ledger.frames
    return find_boundaries(trial.ledger)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("backward", [False, True])
def test_right_decompositions_show_nothing(tmp_path: Path, dtype: str, backward: bool):
    assert borders(tmp_path, dtype, backward=backward) == []


@pytest.mark.parametrize(("dtype", "error"), [("float32", 1e-5), ("bfloat16", 1e-3), ("float16", 1e-4)])
def test_a_wrong_decomposition_is_seen_and_named(tmp_path: Path, dtype: str, error: float):
    with off(aten.gelu.default, error):
        (found,) = borders(tmp_path, dtype)
    assert error / 100 < found.step < error
    assert not found.gradient
    assert found.operator == "gelu"
    culprit = found.culprit
    assert (culprit.rewrite, culprit.site) == ("aten.gelu.default", "case.py:16 #1")
    assert culprit.signature == "decomposition:test_boundaries.py:gelu"


@pytest.mark.parametrize("operator", [aten.gelu_backward.default, aten.native_layer_norm_backward.default])
def test_a_wrong_backward_decomposition_is_seen(tmp_path: Path, operator: Any):
    if operator not in decomposition.decompositions:
        pytest.skip("this torch does not decompose it")
    with off(operator, 1e-4):
        (found,) = borders(tmp_path, "float32", backward=True)
    assert found.gradient
    assert 1e-6 < found.step < 1e-2
    assert found.culprit.rewrite == str(operator)
    assert found.culprit.details["backward"] is True


# Writes to inputs: of one that needs no gradient in the traced graph, of one that does behind it.
WRITING = """
import torch
from torch.nn import functional as F

BACKWARD = {backward}


def run(model, inputs):
    x, state = inputs[0] * 1, inputs[1]
    return model(x, state) + x + state


def model(x, state):
    state.mul_(0.5).add_(F.gelu(x.detach()))
    x.mul_(2)
    return F.silu(x)


def make():
    torch.manual_seed(0)
    return model, (torch.randn(8, dtype=torch.{dtype}, requires_grad={backward}), torch.randn(8, dtype=torch.{dtype}))
"""


@pytest.mark.parametrize("backward", [False, True])
def test_what_a_graph_writes_to_its_inputs_is_compared(tmp_path: Path, backward: bool):
    assert borders(tmp_path, "float32", backward=backward, source=WRITING) == []
    with off(aten.gelu.default, 1e-4):
        (found,) = borders(tmp_path, "float32", backward=backward, source=WRITING)
    assert (found.operator, found.gradient) == ("gelu", False)
    assert 1e-6 < found.step < 1e-3


def test_gradients_of_what_was_written_are_compared(tmp_path: Path):
    with off(aten.silu_backward.default, 1e-4):
        (found,) = borders(tmp_path, "float32", backward=True, source=WRITING)
    assert found.gradient and 1e-6 < found.step < 1e-2


@pytest.mark.slow
def test_triage_calls_it_a_bug_and_names_the_operator(tmp_path: Path):
    path = tmp_path / "case.py"
    path.write_text(CASE.format(dtype="bfloat16", backward=False))
    with off(aten.gelu.default, 1e-3):
        report = triage(load_case(path), torch.device("cpu"))
    assert report.verdict is Verdict.MISCOMPILE
    assert report.attribution.culprit is not None
    assert (report.attribution.culprit.stage, report.attribution.culprit.family) == ("decomposition", "gelu")
    assert "decomposition of gelu" in report.detail
    assert report.attribution.culprit.necessary
    assert report.confidence == "high"


@pytest.mark.slow
def test_a_gross_error_is_named_by_the_border_as_well(tmp_path: Path):
    path = tmp_path / "case.py"
    path.write_text(CASE.format(dtype="float32", backward=False))
    with off(aten.gelu.default, 0.3):
        report = triage(load_case(path), torch.device("cpu"))
    culprit = report.attribution.culprit
    assert culprit is not None
    assert (culprit.stage, culprit.family, culprit.site) == ("decomposition", "gelu", "case.py:16 #1")


def test_a_write_through_a_cast_that_does_nothing_is_no_change_of_meaning(tmp_path: Path):
    path = tmp_path / "case.py"
    path.write_text(
        """
import torch

def program(x):
    x = x * 1.5
    same = x.to(x.dtype)
    same += 0.5
    return x * 2 + same

def make():
    torch.manual_seed(0)
    return program, (torch.randn(3, 5, dtype=torch.float16),)
"""
    )
    report = triage(load_case(path), torch.device("cpu"))
    assert not report.verdict.is_bug, report.detail
