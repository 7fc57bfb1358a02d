"""What is assigned to a slice is lost in a folded graph: the node that writes it has no users and is removed as dead.

Mended by pull request 145714 (`operator.setitem` has a side effect). Undone in torch/fx/node.py,
`_side_effectful_functions`. The report folds dynamo's graph by hand; here a backend does.
"""

import operator

from torch.fx import node

CASE = """
import torch
from torch._inductor.constant_folding import constant_fold


def BACKEND(gm, inputs):
    constant_fold(gm)
    return gm.forward


def model(x):
    y = x.clone()
    y[:, 0] = 5.0
    return y + 1


def make():
    torch.manual_seed(0)
    return model, (torch.randn(2, 3),)
"""
STAGES = ("pre_grad", "lowering")
NAMES = ("setitem", "eliminate_dead_code", "constant_fold")

node._side_effectful_functions.discard(operator.setitem)
