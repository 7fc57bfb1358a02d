"""The command called in this process, what it says, and small cases to call it with."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzzcompile.front.cli.main import main

KNOWN = Path(__file__).parent / "known_issues"
CLEAN = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    return nn.Linear(4, 4).eval(), (torch.randn(2, 4),)
"""
# Adds where the program subtracts: a wrong rewrite that no torch has.
PLANT = """
import torch
from torch._inductor.fx_passes import joint_graph
from torch._inductor.pattern_matcher import CallFunction, KeywordArg, register_graph_pattern

@register_graph_pattern(
    CallFunction(torch.ops.aten.sub.Tensor, KeywordArg("a"), KeywordArg("b")),
    pass_dict=joint_graph.pass_patterns[1],
)
def planted_sub(match, a, b):
    with match.graph.inserting_before(match.output_node()):
        new = match.graph.call_function(torch.ops.aten.add.Tensor, (a, b))
        new.meta.update(match.output_node().meta)
        match.output_node().replace_all_uses_with(new)
        match.graph.erase_node(match.output_node())
"""
SUBTRACTS = """
import torch

def make():
    torch.manual_seed(0)
    return (lambda a, b: (a - b) * 2), (torch.randn(3, 4), torch.randn(3, 4))
"""


def call(*arguments: object) -> int:
    """The exit status of the command."""
    with pytest.raises(SystemExit) as ending:
        main([str(argument) for argument in arguments])
    return int(ending.value.code or 0)


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    """What an error said: nothing on stdout, no traceback, on stderr one line beside those on what is waited for."""
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err
    return "\n".join(line for line in err.strip().splitlines() if not line.endswith(" ..."))
