import sys

import torch


def put(x, index, source):
    return torch.index_copy(x, 0, index, source)


def told(function):
    try:
        return f"runs {function(torch.zeros(4, 3), torch.tensor([-1]), torch.ones(1, 3)).sum()}"
    except Exception as error:
        return f"raises {type(error).__name__}"


eager, compiled = told(put), told(torch.compile(put, backend="inductor", dynamic=True))
print("eager", eager, "| compiled", compiled)
sys.exit(0 if eager.startswith("raises") and compiled.startswith("runs") else 1)
