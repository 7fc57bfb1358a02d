"""Training steps whose optimizer is compiled too: what torch means them to compute in another way is no bug."""

from __future__ import annotations

import json

import pytest
from calling import call

STEP = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3))
optimizer = torch.optim.{optimizer}(model.parameters(), lr=1e-2{settings})


@torch.compile
def step(x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss


step(torch.randn(6, 4))
"""
# The lowering of tanh returns a value that is 5 % off.
WRONG_TANH = """
import torch
from torch._inductor import lowering

tanh = lowering.lowerings[torch.ops.aten.tanh.default]
lowering.lowerings[torch.ops.aten.tanh.default] = lambda x: lowering.mul(tanh(x), 1.05)
"""


SCALED = (
    STEP.replace("@torch.compile", 'scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)\n\n\n@torch.compile')
    .replace("loss.backward()", "scaler.scale(loss).backward()")
    .replace("optimizer.step()", "scaler.step(optimizer)\n    scaler.update()")
)


@pytest.fixture
def judged(write_case, capsys):
    def judge(optimizer: str, *options: str, script: str = STEP, settings: str = ""):
        path = write_case(script.format(optimizer=optimizer, settings=settings))
        status = call("triage", path, "--json", *options)
        return status, json.loads(capsys.readouterr().out)

    return judge


@pytest.mark.slow
def test_a_bias_correction_in_float32_is_by_design(judged):
    status, report = judged("AdamW")
    culprit = report["culprit"]
    assert (status, report["verdict"], report["is_bug"]) == (0, "by_design", False)
    assert (report["severity"], report["confidence"], report["signature"]) == ("by_design", "high", None)
    assert (culprit["stage"], culprit["rewrite"], culprit["necessary"]) == ("dynamo", "_set_capturable", True)
    assert culprit["source"].startswith("torch/_dynamo/") and "capturable" in culprit["details"]["design_source"]
    assert f"{culprit['source']}:{culprit['line']}" in report["detail"] and "of that change" in report["detail"]


@pytest.mark.slow
def test_it_counts_where_that_is_asked_for(judged):
    assert judged("NAdam", "--fail-on", "by_design")[0] == 1
    assert judged("NAdam", "--fail-on", "accepts_invalid")[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["Adadelta", "NAdam"])
def test_a_check_that_compiled_steps_leave_out_is_by_design(judged, optimizer):
    status, report = judged(optimizer, settings=", capturable=True, foreach=True")
    culprit = report["culprit"]
    assert (status, report["verdict"], report["confidence"]) == (0, "by_design", "high")
    assert (culprit["source"], culprit["rewrite"]) == (
        f"torch/optim/{optimizer.lower()}.py",
        f"_multi_tensor_{optimizer.lower()}",
    )
    assert "capturable" in culprit["details"]["design_source"] and "eager raises AssertionError" in report["detail"]


@pytest.mark.slow
def test_a_branch_that_eager_mode_cannot_take_without_its_setting_is_by_design(judged):
    status, report = judged("Adamax", settings=", foreach=True")
    assert status == 0 and report["verdict"] in ("by_design", "rounding")
    assert report["verdict"] == "rounding" or report["culprit"]["rewrite"] == "_set_capturable"


@pytest.mark.slow
def test_gradients_that_are_scaled_have_a_reference_in_float64(judged):
    status, report = judged("SGD", script=SCALED)
    assert status == 0 and report["verdict"] in ("equal", "rounding")
    assert report["confidence"] == "high" and not any("no float64 reference" in x for x in report["evidence"]["notes"])


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["SGD", "RMSprop", "Adagrad", "Adadelta", "Rprop", "ASGD"])
def test_an_optimizer_without_such_a_branch_gives_no_finding(judged, optimizer):
    status, report = judged(optimizer)
    assert status == 0 and report["verdict"] in ("equal", "rounding")


@pytest.mark.slow
def test_a_bug_in_such_a_step_is_a_bug(judged, write_case):
    status, report = judged("AdamW", "--plant", str(write_case(WRONG_TANH, "plant.py")))
    assert (status, report["is_bug"]) == (1, True)
    assert (report["culprit"]["stage"], report["culprit"]["family"]) == ("lowering", "tanh")


@pytest.mark.slow
def test_a_branch_of_the_program_itself_is_named_with_its_line(write_case, capsys):
    path = write_case("""
import torch


def scale(x):
    if torch.compiler.is_compiling():
        return x * 2
    return x * 3


@torch.compile
def program(x):
    return scale(x).sin()


program(torch.randn(4, 4))
""")
    status, report = call("triage", path, "--json"), json.loads(capsys.readouterr().out)
    culprit = report["culprit"]
    assert (status, report["verdict"], report["confidence"]) == (0, "by_design", "high")
    assert (culprit["source"], culprit["line"], culprit["rewrite"]) == (path.name, 6, "scale")
