"""A mode of the program's own that the compiled program does not honour is named, and no kernel in its place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch._dynamo import convert_frame
from torch._dynamo.variables.torch_function import SymbolicTorchFunctionState

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.report.proof import format_shown

SOURCE = """
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class Counting(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {{}}))


class Flipping({base}):
    def {handler}(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {{}}))
        return -out if function is {target} else out


def make():
    torch.manual_seed(0)
    return (lambda x, y: torch.tanh(x) * y.exp()), (torch.randn(4, 9), torch.randn(4, 9))


def run(model, inputs):
    with Counting(), Flipping():
        return model(*inputs)
"""


@contextlib.contextmanager
def dispatch_modes_ignored() -> Iterator[None]:
    with (
        mock.patch.object(convert_frame, "is_in_any_mode_without_ignore_compile_internals", lambda: False),
        mock.patch.object(convert_frame, "any_torch_dispatch_mode_on_stack", lambda: False, create=True),
    ):
        yield


def function_modes_ignored() -> contextlib.AbstractContextManager[Any]:
    return mock.patch.object(SymbolicTorchFunctionState, "in_torch_function_mode", lambda state: False)


@pytest.mark.parametrize(
    ("base", "target", "plant"),
    [
        ("TorchDispatchMode", "torch.ops.aten.tanh.default", dispatch_modes_ignored),
        ("TorchFunctionMode", "torch.tanh", function_modes_ignored),
    ],
)
def test_a_mode_that_the_compiled_program_ignores_is_named(write_case, base, target, plant):
    handler = "__torch_dispatch__" if base == "TorchDispatchMode" else "__torch_function__"
    path = write_case(SOURCE.format(base=base, handler=handler, target=target))
    with plant():
        report = triage(load_case(path), torch.device("cpu")).to_json()
    culprit = report["culprit"]
    assert (culprit["stage"], culprit["rewrite"], culprit["necessary"]) == ("dynamo", "Flipping", True)
    assert report["confidence"] == "high"
    assert {entry["toggle"] for entry in report["ablations"] if entry["repairs"]} >= {"eager mode without Flipping"}
    assert "eager mode without it agrees with the compiled program" in format_shown(culprit)


def test_a_mode_that_is_traced_is_no_bug(write_case):
    path = write_case(SOURCE.format(base="TorchFunctionMode", handler="__torch_function__", target="torch.tanh"))
    assert not triage(load_case(path), torch.device("cpu")).is_bug
