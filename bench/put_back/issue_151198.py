"""#151198: a distance between two halves of a padded tensor reads the wrong elements. Mended by #152993.

Undone: the check for negative terms in torch/utils/_sympy/functions.py, ModularIndexing.eval.
"""

CASE = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.pad = torch.nn.ReflectionPad3d(1)
        self.dist = torch.nn.PairwiseDistance(p=2)

    def forward(self, x):
        x = self.pad(x)
        x = torch.chunk(x.view(x.size(0), -1), 2, dim=1)
        return self.dist(x[0], x[1])


def make():
    torch.manual_seed(0)
    return Model().eval(), (torch.randn(2, 3, 4, 4, 4),)
"""
STAGES = ("lowering",)
NAMES = ("ModularIndexing", "reflection_pad3d", "view")
