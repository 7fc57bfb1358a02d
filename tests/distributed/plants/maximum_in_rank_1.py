"""The graph of every process but the first has a maximum where it should have a sum."""

import os

from torch._inductor import compile_fx

right = compile_fx.post_grad_passes


def post_grad_passes(module, *rest):
    made = right(module, *rest)
    for node in module.graph.nodes if os.environ.get("RANK") == "1" else ():
        if "all_reduce" in str(node.target):
            node.args = (node.args[0], "max", *node.args[2:])
    return made


compile_fx.post_grad_passes = post_grad_passes
