"""A submodule judged alone gets what it really gets in the whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from fuzzcompile.front.cli.main import main
from fuzzcompile.model.errors import CaseError
from fuzzcompile.programs.capture.case_loader import load, submodule_case
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run.case import Arguments
from fuzzcompile.run.case_program import build
from fuzzcompile.run.runs import run_eager, run_float64

CPU = torch.device("cpu")
MODEL = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, *, mask=None, cache=None):
        self.calls += 1
        if cache is not None:
            cache.append(x)
        x = self.proj(x) * len(cache or "1")
        return x if mask is None else x * mask


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn, self.unused = Attention(), nn.Linear(4, 4)

    def forward(self, x):
        {body}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x + 1)
        return x


def make():
    torch.manual_seed(0)
    return Model().eval(), (torch.arange(8.0).view(2, 4),)
"""
PLAIN = "return self.attn(x * 2, mask=x > 0)"
SCRIPT_END = """
model, (x,) = make()
del make
torch.compile(model)(x)
"""
Write = Callable[..., Path]


def source(body: str = PLAIN) -> str:
    return MODEL.replace("{body}", body)


def called(path: Path, name: str) -> tuple[nn.Module, Arguments]:
    program = build(submodule_case(load_case(path), name, CPU), CPU)
    (arguments,) = program.calls
    assert isinstance(arguments, Arguments)
    return program.model, arguments


def test_the_submodule_gets_its_real_inputs(write_case: Write):
    path = write_case(source())
    module, arguments = called(path, "layers.1.attn")
    model, (x,) = load_case(path).make()
    middle = model.layers[0](x + 1) + 1
    assert torch.equal(arguments.args[0], middle * 2)
    assert torch.equal(arguments.kwargs["mask"], middle > 0) and arguments.kwargs.keys() == {"mask"}
    assert type(module).__name__ == "Attention" and torch.equal(module.proj.weight, model.layers[1].attn.proj.weight)


def test_state_is_that_of_the_moment_of_the_call(write_case: Write):
    shared = source("self.attn(x); self.attn(x)\n        return self.attn(x)").replace(
        "Layer() for _ in range(2)", "[Layer()] * 2"
    )
    module, _ = called(write_case(shared), "layers.0.attn")
    assert module.calls == 0 and not module._forward_pre_hooks


def test_views_of_one_buffer_stay_views_of_one_buffer(write_case: Write):
    _, arguments = called(write_case(source("return self.attn(x[:1], mask=x[1:])")), "layers.0.attn")
    first, second = arguments.args[0], arguments.kwargs["mask"]
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert second.storage_offset() == 4


def test_every_run_gets_fresh_inputs_and_objects(write_case: Write):
    case = submodule_case(load_case(write_case(source("return self.attn(x, cache=[])"))), "layers.0.attn", CPU)
    values = [run_eager(case, CPU).index_by_name()["out0"].value for _ in range(3)]
    assert all(torch.equal(values[0], value) for value in values)
    wide, _ = run_float64(case, CPU)
    assert wide.failure is None and wide.index_by_name()["out0"].value.dtype == torch.float64


def test_what_is_in_force_around_the_submodule_is_kept(write_case: Write):
    body = "with torch.autocast('cpu', torch.bfloat16), torch.no_grad():\n            return self.attn(x).float() + x"
    case = load_case(write_case("BACKWARD = True\n" + source(body)))
    inner = submodule_case(case, "layers.0.attn", CPU)
    assert (inner.grad, inner.backward) == ("no_grad", False)
    assert run_eager(inner, CPU).index_by_name()["out0"].value.dtype == torch.bfloat16


def test_gradients_of_inner_inputs_are_compared(write_case: Write):
    case = load_case(write_case("BACKWARD = True\n" + source()))
    inner = submodule_case(case, "layers.1.attn", CPU)
    seen = run_eager(inner, CPU)
    assert seen.failure is None
    names = {value.name for value in seen.values if value.kind == "gradient"}
    assert {"gradient of input0", "gradient of parameter proj.weight", "gradient of parameter proj.bias"} <= names


def test_inference_tensors_become_ordinary_ones(write_case: Write):
    case = load_case(write_case("GRAD = 'inference_mode'\n" + source()))
    inner = submodule_case(case, "layers.1.attn", CPU)
    assert inner.grad == "inference_mode" and not build(inner, CPU).calls[0].args[0].is_inference()
    assert run_eager(inner, CPU).failure is None


def test_further_calls_of_the_case_are_further_calls_of_the_submodule(write_case: Write):
    calls = "\nCALLS = [(torch.ones(3, 4),), (torch.ones(5, 4),)]\n"
    inner = submodule_case(load_case(write_case(source() + calls)), "layers.0.attn", CPU)
    assert [len(call.args[0]) for call in build(inner, CPU).calls] == [2, 3, 5]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("layers.0.attention", "close to it are layers.0.attn"),
        ("attn", "close to it are layers.0.attn"),
        ("", "it has layers, layers.0"),
        ("zzz", "it has layers, layers.0"),
        ("layers.0.unused", "never calls layers.0.unused"),
        ("layers", "never calls layers"),
    ],
)
def test_a_module_that_cannot_be_judged_is_explained(name, says, write_case):
    with pytest.raises(CaseError, match=says):
        submodule_case(load_case(write_case(source())), name, CPU)


def test_a_callable_has_no_submodules(write_case: Write):
    with pytest.raises(CaseError, match="no submodules"):
        submodule_case(load_case(write_case("def make(): return abs, (1,)")), "layer", CPU)


def test_a_program_that_raises_before_is_explained(write_case: Write):
    with pytest.raises(CaseError, match="raises in eager before it calls"):
        submodule_case(load_case(write_case(source("raise KeyError('k')"))), "layers.0.attn", CPU)


def test_a_module_of_a_script_is_found_as_well(write_case: Write):
    script = source().replace("def make", "def build") + SCRIPT_END.replace("make", "build").replace("del build\n", "")
    inner = load(write_case(script), CPU, module="layers.1.attn")
    assert inner.name == "case:layers.1.attn" and run_eager(inner, CPU).failure is None


@pytest.mark.slow
def test_triage_judges_the_module_that_is_named(write_case, capsys):
    with pytest.raises(SystemExit) as ending:
        main(["triage", str(write_case(source())), "--module", "layers.1.attn", "--json"])
    printed = capsys.readouterr()
    assert not ending.value.code, printed.err
    report = json.loads(printed.out)
    assert report["case"] == "case:layers.1.attn"
    assert report["verdict"] in ("equal", "rounding") and "layers.1.attn" in report["evidence"]["notes"][-1]
