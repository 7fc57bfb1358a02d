"""Graph inputs that are sizes of other inputs."""

from __future__ import annotations

import torch
from torch import fx


def sizes_of(graph: fx.Graph) -> dict[fx.Node, tuple[fx.Node, int]]:
    """For each input that is a symbolic size, the tensor input and dimension that have this size."""
    places = [node for node in graph.nodes if node.op == "placeholder"]
    values = {node: node.meta.get("example_value", node.meta.get("val")) for node in places}
    tensors = [(node, value) for node, value in values.items() if isinstance(value, torch.Tensor)]
    sizes: dict[fx.Node, tuple[fx.Node, int]] = {}
    for node, size in values.items():
        if not isinstance(size, torch.SymInt):
            continue
        for tensor, value in tensors:
            # As text: comparing symbols would make guards.
            at = next((d for d, length in enumerate(value.shape) if str(length) == str(size)), None)
            if at is not None:
                sizes[node] = (tensor, at)
                break
    return sizes
