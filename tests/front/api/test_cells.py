"""``%%triage`` and ``%triage``, with a stand-in for IPython's shell; a real one runs in the slow tests."""

from __future__ import annotations

import linecache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import fuzzcompile
from fuzzcompile.front.api.notebook import judge_line, run_to_first_call
from fuzzcompile.model.errors import UsageError
from fuzzcompile.programs.capture.interception import CompiledModule


class FakeShell:
    """What the magics use of IPython's shell."""

    def __init__(self, **names: Any) -> None:
        self.user_ns: dict[str, Any] = {"torch": torch, **names}
        self.magics: dict[str, Any] = {}
        self.compile = SimpleNamespace(cache=self.cache)

    def cache(self, text: str) -> str:
        linecache.cache["/tmp/cell.py"] = (len(text), None, text.splitlines(keepends=True), "/tmp/cell.py")
        return "/tmp/cell.py"

    def transform_cell(self, text: str) -> str:
        return text

    def register_magic_function(self, function: Any, kind: str, name: str) -> None:
        self.magics[name] = function


def test_a_cell_stops_at_its_first_compiled_call():
    shell = FakeShell()
    call = run_to_first_call(shell, "f = torch.compile(torch.sin, dynamic=True)\nx = torch.ones(2)\ny = f(x)\nz = 1\n")
    assert call is not None and call.target is torch.sin and call.settings.dynamic is True
    assert "x" in shell.user_ns and not {"y", "z"} & set(shell.user_ns)
    assert not hasattr(shell.user_ns["f"], "_intercepted")  # compiled for real afterwards
    assert shell.user_ns["f"]._torchdynamo_orig_callable is not None


def test_what_earlier_cells_compiled_counts_and_stays():
    model = nn.Linear(2, 2)
    compiled = torch.compile(model, fullgraph=True)
    shell = FakeShell(compiled=compiled, x=torch.ones(2))
    call = run_to_first_call(shell, "with torch.no_grad():\n    compiled(x)\n")
    assert call is not None and call.target is model and call.settings.fullgraph and call.ambient.grad == "no_grad"
    assert shell.user_ns["compiled"] is compiled


def test_a_module_compiled_in_place_in_the_cell_is_compiled_for_real():
    model = nn.Linear(2, 2)
    assert run_to_first_call(FakeShell(model=model), "model.compile()\nmodel(torch.ones(2))\n") is not None
    assert not isinstance(model, CompiledModule) and model._compiled_call_impl._torchdynamo_orig_callable is not None
    assert not hasattr(model._compiled_call_impl, "_intercepted")


def test_an_error_in_the_cell_is_the_users():
    with pytest.raises(ZeroDivisionError):
        run_to_first_call(FakeShell(), "1 / 0\n")


def test_a_cell_that_compiles_nothing_says_what_to_do(capsys):
    shell = FakeShell()
    fuzzcompile.load_ipython_extension(shell)
    assert shell.magics["triage"]("", "torch.ones(2)\n") is None
    assert "%triage model(x)" in capsys.readouterr().out


@pytest.mark.parametrize("line", ["model", "model(", ""])
def test_a_line_that_is_no_call_says_what_to_do(line):
    with pytest.raises(UsageError, match="%triage takes a call"):
        judge_line(FakeShell(), line)
