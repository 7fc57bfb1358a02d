"""One sampled step and its runs, trajectories, case files: without processes."""

from __future__ import annotations

import json
import math
import random

import pytest
import torch
from torch import nn

from fuzzcompile.analyses.watch.sidecar import StepRuns, confirms, judged, reported
from fuzzcompile.analyses.watch.step_graphs import Graphs, layer_at
from fuzzcompile.analyses.watch.step_records import compared
from fuzzcompile.analyses.watch.step_values import MOST_ELEMENTS, StepValues
from fuzzcompile.compiler.operators.graph_capture import make_watching_backend
from fuzzcompile.programs.casefiles.case_module import load_case


def values(weight: torch.Tensor, factor: float = 1.0, *, draws: int = 0) -> StepValues:
    """A step with one output and one gradient; the gradient is off by ``factor``."""
    made = StepValues.begun()
    torch.rand(draws)
    made.add_outputs("", weight.sin())
    weight.grad = weight.cos() * factor
    made.add_gradients({"parameter w": weight}, "")
    made.end()
    return made


def runs(factor: float, *, draws: int = 0) -> StepRuns:
    torch.manual_seed(3)
    weight = torch.randn(16, 16)
    state = torch.get_rng_state()
    made = []
    for case, off, drawn in ((weight, factor, draws), (weight, 1.0, 0), (weight.double(), 1.0, 0)):
        torch.set_rng_state(state)
        made.append(values(case.clone(), off, draws=drawn))
    noisy = [values(weight * (1 + 1e-7 * torch.randn(16, 16)), 1.0) for _ in range(3)]
    return StepRuns(*made, noisy)


def test_a_wrong_gradient_is_not_explained_by_rounding():
    wrong = runs(1.001)
    report = reported(7, wrong, judged(wrong))
    assert report.unexplained and report.verdict == "wrong_gradient" and "gradient of parameter w" in report.detail
    assert report.made["gradients"] == pytest.approx(1e-3, rel=2) and report.made["outputs"] < 1e-6


@pytest.mark.parametrize(
    ("verdict", "necessary", "expected"),
    [("wrong_gradient", True, True), ("wrong_gradient", None, False), ("metadata", True, False)],
)
def test_what_is_suspicious_takes_wrong_values_with_a_proved_culprit(verdict, necessary, expected):
    assert confirms({"is_bug": True, "verdict": verdict, "culprit": {"necessary": necessary}}) is expected


def test_rounding_is():
    report = reported(7, runs(1 + 1e-7), judged(runs(1 + 1e-7)))
    assert not report.unexplained and report.verdict in ("equal", "rounding")


def test_a_step_that_drew_other_numbers_is_told_by_the_generators():
    torch.manual_seed(0)
    drew = values(torch.ones(4), draws=2)
    torch.manual_seed(0)
    did_not = values(torch.ones(4))
    assert not drew.draws_alike(did_not) and drew.draws_alike(drew)


def test_a_run_that_ended_early_is_compared_as_far_as_it_went():
    torch.manual_seed(0)
    whole = StepValues.begun()
    short = StepValues.begun()
    for made in (whole, short):
        made.add_outputs("", torch.ones(3))
    short.end("the script goes on with os.fork")
    torch.rand(1)
    random.random()
    whole.add_outputs("call2.", torch.ones(3))
    whole.end()
    assert short.draws_alike(whole)
    report = reported(1, StepRuns(whole, short), judged(StepRuns(whole, short)))
    assert report.verdict == "equal" and any("os.fork" in unseen for unseen in report.unseen)


def test_of_a_large_tensor_rows_are_kept_the_same_in_every_run():
    large = torch.arange(3 * MOST_ELEMENTS).view(3, -1)
    first, second = StepValues(), StepValues()
    first.add("outputs", "out0", large)
    second.add("outputs", "out0", large.double())
    kept, again = first.values["out0"][1], second.values["out0"][1]
    assert isinstance(kept, torch.Tensor) and kept.numel() <= MOST_ELEMENTS
    assert first.sampled == 1 and torch.equal(kept.double(), again)


def test_values_survive_their_file(tmp_path):
    made = runs(1.0).compiled
    made.save(tmp_path / "v.pt")
    read = StepValues.load(tmp_path / "v.pt")
    assert read.streams == made.streams and list(read.values) == list(made.values)
    assert torch.equal(read.values["out0"][1], made.values["out0"][1])


# -- trajectories -----------------------------------------------------------------------------------


def parting(start: float, growth: float, steps: int = 40) -> dict[int, float]:
    return {step: 2.0 * (1 + min(0.3, start * growth**step)) for step in range(10, 10 + steps)}


EAGER = dict.fromkeys(range(10, 50), 2.0)


def test_two_trajectories_that_part_alike_are_chaos():
    seen = compared({"compiled": parting(3e-7, 1.35), "eager": EAGER, "perturbed": parting(1e-7, 1.35)})
    assert seen is not None and seen.chaotic and seen.said.startswith("Chaos alone")
    assert seen.compiled_growth == pytest.approx(1.35, rel=0.02) == seen.perturbed_growth


def test_a_compiled_trajectory_that_parts_alone_is_not():
    seen = compared({"compiled": parting(3e-7, 1.35), "eager": EAGER, "perturbed": parting(1e-7, 1.0)})
    assert seen is not None and seen.parted and not seen.chaotic and "Sample more steps" in seen.said


def test_trajectories_that_stay_together_have_not_parted():
    seen = compared({"compiled": parting(3e-7, 1.0), "eager": EAGER, "perturbed": parting(1e-7, 1.0)})
    assert seen is not None and not seen.parted and not seen.chaotic


def test_a_loss_that_is_nan_in_one_trajectory_alone_has_parted():
    broken = {**EAGER, 49: math.nan}
    seen = compared({"compiled": broken, "eager": EAGER, "perturbed": EAGER})
    assert seen is not None and seen.parted and not seen.chaotic
    json.dumps(seen.to_json(), allow_nan=False)


# -- case files --------------------------------------------------------------------------------------


def written(tmp_path, state_bytes):
    graphs = Graphs()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 5), nn.ReLU())
    x = torch.randn(5, 6).t().contiguous().t()
    torch._dynamo.reset()
    torch.compile(lambda x: net(x) * 2, backend=make_watching_backend(graphs.captured))(x)
    (path,) = graphs.write(tmp_path, {"CONFIG": {"inductor": {"max_autotune": False}}}, state_bytes)
    return path, net, x


def test_a_case_holds_the_state_of_the_step(tmp_path):
    path, net, x = written(tmp_path, 2**20)
    case = load_case(path)
    program, inputs = case.make()
    (output,) = program(*inputs)[:1] if isinstance(program(*inputs), tuple) else (program(*inputs),)
    assert torch.equal(output, net(x) * 2) and case.backward
    assert x.stride() in [tensor.stride() for tensor in inputs]
    assert case.settings.inductor == {"max_autotune": False}
    text = path.read_text()
    assert "fuzzcompile" not in text and "safetensors" in text
    (line,) = [number for number, line in enumerate(text.splitlines(), start=1) if "F.linear" in line]
    assert layer_at(path, line) == "0" and layer_at(path, 1) is None


def test_a_case_is_bounded(tmp_path):
    path, _, _ = written(tmp_path, 40)
    _, inputs = load_case(path).make()
    assert path.with_suffix(".safetensors").stat().st_size < 40 + 200
    assert sorted(tuple(tensor.shape) for tensor in inputs) == [(5,), (5, 6), (5, 6)]
