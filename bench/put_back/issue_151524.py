"""#151524: random numbers that nobody uses are not drawn, so that later ones are others. Mended by #151917.

Undone: graphs keep calls that draw (torch/fx/node.py, is_impure).
"""

from torch.fx import Node

CASE = """
import torch

OPTIONS = {"fallback_random": True}


def f(x):
    torch.rand(3)
    return x + torch.rand(3)


def make():
    torch.manual_seed(0)
    return f, (torch.zeros(3),)
"""
STAGES = ("dynamo", "functionalization", "joint_graph", "post_grad", "decomposition", "partition")
NAMES = ("rand", "is_impure", "eliminate_dead_code", "dce")

is_impure = Node.is_impure
Node.is_impure = lambda self, impure_random=True: is_impure(self, False)
