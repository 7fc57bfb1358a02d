"""Reinplacing turns an all_reduce into all_reduce_ although its input is read afterwards."""

import torch
from torch._inductor.fx_passes import post_grad

right = post_grad.reinplace_inplaceable_ops
collectives = torch.ops._c10d_functional


def reinplace_inplaceable_ops(updater, graph):
    right(updater, graph)
    for node in graph.nodes:
        if node.target is collectives.all_reduce.default and node.args[0].op != "placeholder":
            node.target = collectives.all_reduce_.default


post_grad.reinplace_inplaceable_ops = reinplace_inplaceable_ops
