"""Functions that the partitioner calls change graphs too: each is named and proved by a compile without it."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from torch import fx
from torch._functorch import partitioners

from fuzzcompile.compiler.rule_catalogue import initialise_patterns
from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.programs.casefiles.case_module import load_case

aten = torch.ops.aten
CPU = torch.device("cpu")
TRAINED = """
import torch
from torch import nn

BACKWARD = True


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return torch.sin(self.inner(x)).tanh()


def make():
    torch.manual_seed(0)
    return Model(), (torch.randn(3, 8, requires_grad=True),)
"""


def off_by_a_percent(graph: fx.Graph, operator: object) -> None:
    for node in graph.find_nodes(op="call_function", target=operator)[:1]:
        with graph.inserting_after(node):
            wrong = graph.call_function(aten.mul.Tensor, (node, 1.01))
        wrong.meta.update(node.meta)
        node.replace_all_uses_with(wrong, delete_user_cb=lambda user, wrong=wrong: user is not wrong)


def changing(function, operator):
    """``function``, and then a wrong factor in the graph that it gives back, or else in the one that it was given."""

    @functools.wraps(function)
    def wrong(graph, *args, **kwargs):
        result = function(graph, *args, **kwargs)
        changed = graph if result is None else result
        off_by_a_percent(changed if isinstance(changed, fx.Graph) else changed.graph, operator)
        if isinstance(changed, fx.GraphModule):
            changed.recompile()
        return result

    return wrong


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "operator"),
    [
        ("force_save_bw_mutation_src", aten.cos.default),  # on the joint graph, in place
        ("fx_graph_cse", aten.cos.default),  # gives back another joint graph
        ("reordering_to_mimic_autograd_engine", aten.cos.default),  # on the backward graph alone
    ],
)
def test_a_function_of_the_partitioner_is_named_and_proved(name, operator, tmp_path: Path, monkeypatch):
    if not hasattr(partitioners, name):
        pytest.skip(f"this torch's partitioner calls no {name}")
    case = tmp_path / "case.py"
    case.write_text(TRAINED)
    initialise_patterns(CPU)
    function = getattr(partitioners, name)
    monkeypatch.setattr(partitioners, name, changing(function, operator))
    report = triage(load_case(case), CPU).to_json()
    assert (report["verdict"], report["confidence"]) == ("wrong_gradient", "high")
    culprit = report["culprit"]
    assert (culprit["stage"], culprit["rewrite"]) == ("partition", name)
    assert (culprit["necessary"], culprit["sufficient"]) == (True, True)
    assert culprit["source"].startswith("torch/_functorch/")
