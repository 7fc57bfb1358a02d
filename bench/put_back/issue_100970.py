"""`F.batch_norm` with a weight of shape (3, 1, 1, 1) gives a result of another shape, (3, 3, 2, 2).

Mended by pull request 101059 (weight and bias are flattened). Undone in torch/_decomp/decompositions.py,
`native_batch_norm_helper`.
"""

import inspect

from torch._decomp import decompositions

CASE = """
import torch


def model(x, mean, var, weight, bias):
    return torch.nn.functional.batch_norm(x, mean, var, weight, bias)


def make():
    torch.manual_seed(420)
    return model, (torch.randn(1, 3, 2, 2), torch.zeros(3), torch.ones(3), torch.randn(3, 1, 1, 1), torch.randn(3))
"""
STAGES = ("decomposition",)
NAMES = ("batch_norm", "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional")

source = inspect.getsource(decompositions.native_batch_norm_helper)
source = source.replace("weight = weight.flatten()", "pass").replace("bias = bias.flatten()", "pass")
exec(compile(source, decompositions.__file__, "exec"), vars(decompositions))
