"""`i in range(0, 10)` is asked of the three numbers that make up the range, not of its elements.

Mended by pull request 122751 (the range is unpacked first). Undone in torch/_dynamo/variables/lists.py,
`RangeVariable.sq_contains`.
"""

from torch._dynamo.variables import ConstantVariable
from torch._dynamo.variables.lists import RangeVariable

CASE = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.indices = [i for i in range(0, 10)]

    def forward(self, x):
        split_tensors = torch.split(x, 1, 0)
        chosen_tensors = [split_tensors[i] for i in self.indices if i in range(0, 10)]
        return torch.cat(chosen_tensors, 0)


def make():
    torch.manual_seed(0)
    return Model(), (torch.randn(10, 3, 4, 4),)
"""
STAGES = ("dynamo",)
NAMES = ("range", "RangeVariable", "contains", "__contains__", "CONTAINS_OP")


def sq_contains(self, tx, item):
    return ConstantVariable.create(any(item.is_python_equal(part) for part in self.items))


RangeVariable.sq_contains = sq_contains
