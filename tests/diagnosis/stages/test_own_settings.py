"""A fault that shows under a setting of the case's own alone is named by the setting, with the stage that heeds it."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.compiled_autograd import AutogradCompilerInstance

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.programs.casefiles.case_module import load_case

HOOKED = """
import torch

GRAD = "enabled"
CONFIG = {"dynamo": {"compiled_autograd": True}}

def program(x):
    y = x.sin()
    y.sum().backward()
    return y.detach()

def make():
    torch.manual_seed(0)
    return program, (torch.randn(4),)

def run(model, inputs):
    x = inputs[0].clone().requires_grad_()
    x.register_hook(lambda gradient: gradient * 3)
    return model(x), x.grad
"""


@pytest.mark.slow
def test_the_setting_is_named(write_case, monkeypatch: pytest.MonkeyPatch) -> None:
    case = load_case(write_case(HOOKED))
    assert not triage(case, torch.device("cpu")).is_bug
    monkeypatch.setattr(AutogradCompilerInstance, "tensor_pre_hook", lambda self, inputs, *_: inputs)
    culprit = triage(case, torch.device("cpu")).to_json()["culprit"]
    assert (culprit["stage"], culprit["rewrite"], culprit["necessary"]) == ("dynamo", "compiled_autograd", True)


PACKAGED = """
import torch

PATH = "aoti"

class Model(torch.nn.Module):
    def forward(self, x):
        x.transpose(-1, -2).mul_(-1)
        return x[..., :-1]

def make():
    torch.manual_seed(0)
    return Model().eval(), (torch.randn(3, 4),)
"""


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="what packages copy hangs on the torch")
def test_what_a_package_alone_does_is_named_by_its_path(write_case) -> None:
    report = triage(load_case(write_case(PACKAGED)), torch.device("cpu")).to_json()
    culprit = report["culprit"]
    assert (report["verdict"], culprit["rewrite"], culprit["necessary"]) == ("aliasing", "AOTInductor", True)
