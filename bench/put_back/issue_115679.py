"""A compiled step of Adadelta leaves `state["step"]` at one: the number was counted where dynamo runs code once only.

Mended by pull request 122252, for Adadelta (the step is a tensor that is counted with the rest of the computation).
Undone in torch/optim/adadelta.py, `Adadelta._init_group` and `_single_tensor_adadelta`; dynamo's `move_step_if_cpu`,
which came later and is for tensors alone, is off.
"""

import inspect
import sys

import torch
from torch._dynamo.variables.optimizer import OptimizerVariable
from torch.optim import Adadelta

CASE = """
import torch


def model(optimizer):
    optimizer.step()


def make():
    torch.manual_seed(0)
    return model, (torch.optim.Adadelta([torch.nn.Parameter(torch.randn(3))]),)


def run(model, inputs):
    (optimizer,) = inputs
    (weight,) = optimizer.param_groups[0]["params"]
    for _ in range(3):
        weight.grad = torch.ones(3)
        model(optimizer)
    return float(optimizer.state[weight]["step"])
"""
STAGES = ("dynamo",)
NAMES = ("_init_group", "step", "Adadelta", "OptimizerVariable")

init_group = Adadelta._init_group


def count_in_python(self, group, params_with_grad, grads, square_avgs, acc_deltas, state_steps):
    steps = {p: self.state[p].pop("step", 0) for p in group["params"] if p.grad is not None}
    for p in steps:
        self.state[p]["step"] = torch.zeros(())
        if len(self.state[p]) == 1:
            del self.state[p]
    has_complex = init_group(self, group, params_with_grad, grads, square_avgs, acc_deltas, state_steps)
    state_steps[:] = acc_deltas  # any tensors: none is read below
    for p, step in steps.items():
        self.state[p]["step"] = step + 1
    return has_complex


Adadelta._init_group = count_in_python
OptimizerVariable.move_step_if_cpu = lambda self: None

function = sys.modules[Adadelta.__module__]._single_tensor_adadelta
source = inspect.getsource(function).replace("step += 1\n", "pass\n")
exec(compile(source, function.__code__.co_filename, "exec"), function.__globals__)
