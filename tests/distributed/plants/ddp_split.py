"""The part of a model of DDP behind a split gets what comes before without its history: earlier gradients are lost."""

import torch
from torch._dynamo.backends.distributed import SubmodCompiler

right = SubmodCompiler.compile_submod


def compile_submod(self, module, arguments, options):
    compiled = right(self, module, arguments, options)
    own = compiled.forward

    def forward(*values):
        return own(*(value if isinstance(value, torch.nn.Parameter) else _detach(value) for value in values))

    compiled.forward = forward
    return compiled


def _detach(value):
    return value.detach() if isinstance(value, torch.Tensor) and not value.is_leaf else value


SubmodCompiler.compile_submod = compile_submod
