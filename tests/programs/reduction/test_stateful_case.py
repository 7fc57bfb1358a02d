"""A case whose ``run`` changes Python state is minimised as ordinary code, and confirmed with the plant."""

from __future__ import annotations

from pathlib import Path

import pytest
from calling import call

# Numbers and equal constants are no longer guarded: the graph of the first call runs in the later ones.
PLANT = """
import torch._dynamo.guards as guards

guards.GuardBuilder.EQUALS_MATCH = lambda self, guard, *arguments, **options: None
guards.GuardBuilder.CONSTANT_MATCH = lambda self, guard, *arguments, **options: None
"""
CASE = """
import torch
from torch import nn


def make_window(window):
    def get():
        return window

    def put(value):
        nonlocal window
        window = value

    return get, put


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.depth = 2
        self.get_window, self.put_window = make_window(2.0)
        self.proj = nn.Linear(16, 16)
        self.factors = [0.5, 2.0]

    def forward(self, x, y):
        x = self.proj(x)
        for factor in self.factors:
            x = x * factor + 0.25
        for step in range(self.depth):
            x = x.tanh() + 0.5
        try:
            x = x * self.get_window()
        except TypeError:
            x = x.cos()
        return x, y.exp()


def run(model, inputs):
    first = model(*inputs)
    model.factors.append(3.0)
    second = model(*inputs)
    with torch.no_grad():
        model.depth = 3
    third = model(*inputs)
    model.put_window(None)
    fourth = model(*inputs)
    return first, second, third, fourth


def make():
    torch.manual_seed(3)
    return Model().eval(), (torch.randn(2, 5, 16), torch.randn(3, 4))
"""


@pytest.mark.slow
def test_a_stale_graph_is_minimised_to_the_change_that_no_guard_notices(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plant.py").write_text(PLANT)
    (tmp_path / "case.py").write_text(CASE)
    status = call(
        "minimize",
        "case.py",
        "--plant",
        "plant.py",
        "--device",
        "cpu",
        "--out",
        "small.py",
        "--budget",
        "6m",
        "--compiles",
        "1000",
    )
    said, small = capsys.readouterr().out, (tmp_path / "small.py").read_text()
    assert status == 0 and "does not show" not in said, said
    program = small.partition("if __name__")[0]
    assert "def run(model, inputs):" in program and "model.depth = 3" in program
    assert not any(text in program for text in ("window", "factors", "no_grad", "proj", "exp()", "fourth"))
    assert len([line for line in program.splitlines() if line.strip()]) <= 20
