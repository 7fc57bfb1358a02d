"""Programs that the probes of the patches compile, and passes that leave a mark in their graphs."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import fx, nn


class Trained(nn.Module):
    """A sine with a parameter and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((5,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        return torch.sin(x) * self.weight * torch.ones(5)


class Frozen(nn.Module):
    """A convolution, whose weights have a layout, and arithmetic on a parameter, which can be folded."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.scale = nn.Conv2d(2, 4, 3), nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        result: torch.Tensor = torch.sin(self.convolution(x)) * (self.scale * 2)
        return result


def inference(x: torch.Tensor) -> torch.Tensor:
    """Sine, cosine and a constant."""
    return torch.cos(torch.sin(x) * torch.ones(5))


def first_probe(graph: fx.Graph) -> None:
    """A user's pass that marks the graph before its gradients with a multiplication by one."""
    _times_one(graph, torch.sin, torch.mul)


def last_probe(graph: fx.Graph) -> None:
    """A user's pass that marks a graph after its gradients, and leaves dead code behind."""
    _times_one(graph, torch.ops.aten.sin.default, torch.ops.aten.mul.Tensor)


def dead_probe(graph: fx.Graph) -> None:
    """A user's pass that runs another one over the module, and leaves dead code behind."""
    observer = importlib.import_module("torch.fx.passes.graph_transform_observer").GraphTransformObserver
    observer(graph.owning_module, "module_probe").apply_gm_pass(module_probe)
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default):
        with graph.inserting_after(node):
            graph.call_function(torch.ops.aten.neg.default, (node,)).meta.update(node.meta)


def module_probe(module: fx.GraphModule) -> None:
    """A pass over a module that marks its graph with a multiplication by one."""
    _times_one(module.graph, torch.ops.aten.sin.default, torch.ops.aten.mul.Tensor)


def fusion_probe(nodes: object) -> object:
    """A user's pass over the scheduler's nodes that leaves them as they are."""
    return nodes


def _times_one(graph: fx.Graph, sine: Any, times: Any) -> None:
    for node in graph.find_nodes(op="call_function", target=sine):
        with graph.inserting_after(node):
            new = graph.call_function(times, (node, 1.0))
        new.meta.update(node.meta)
        node.replace_all_uses_with(new, delete_user_cb=lambda user, new=new: user is not new)


def doubled_sine(match: Any, x: fx.Node) -> None:
    """Handler of the planted pattern: it makes every sine twice as large."""
    match.replace_by_example(lambda x: torch.sin(x) * 2, [x])


def pattern_probe(graph: fx.Graph) -> None:
    """A user's pass that runs a table of patterns of its own."""
    matcher = importlib.import_module("torch._inductor.pattern_matcher")
    table = matcher.PatternMatcherPass()
    pattern = matcher.CallFunction(torch.ops.aten.sin.default, matcher.KeywordArg("x"))
    matcher.register_graph_pattern(pattern, pass_dict=table)(doubled_sine)
    table.apply(graph)


def activated(x: torch.Tensor) -> torch.Tensor:
    """The same with an activation that has a decomposition."""
    return nn.functional.silu(inference(x))


def several_kernels(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Two loops that can be fused, a reduction, an activation and a matrix product."""
    return torch.exp(x), torch.cos(x), x.sum(-1), nn.functional.silu(x), x @ x


def joint_probe(module: fx.GraphModule, inputs: object) -> fx.GraphModule:
    """A user's pass over the joint graph that marks it with a multiplication by one."""
    _times_one(module.graph, torch.ops.aten.sin.default, torch.ops.aten.mul.Tensor)
    return module
