"""#107187: a compiled function ignores torch.manual_seed that it calls itself. Mended by #107594.

Undone: the rule of torch/_dynamo/trace_rules.py (SkipFunctionVariable, a graph break) and the wrapper of
torch/_dynamo/__init__.py, which dynamo leaves alone; the call is put into the graph again, where it is lost.
"""

import torch
import torch._dynamo.trace_rules as rules
from torch._dynamo.variables import TorchInGraphFunctionVariable

CASE = """
import torch


def f():
    torch.manual_seed(3)
    a = torch.rand(4)
    torch.manual_seed(3)
    return a - torch.rand(4)


def make():
    return f, ()
"""
STAGES = ("dynamo", "functionalization")
NAMES = ("manual_seed",)

torch.manual_seed = torch.random.manual_seed
rules.manual_torch_name_rule_map["torch.manual_seed"] = TorchInGraphFunctionVariable
rules.get_torch_obj_rule_map.cache_clear()
