"""pytorch#198197: getattr of a missing name of a builtin type does not raise, so the other branch is taken.

At fault: dynamo, getattr on a builtin type
"""

import torch

EXPECT = ("miscompile",)


def fn(x):
    def has(obj, name):
        try:
            getattr(obj, name)
        except AttributeError:
            return None
        else:
            return 1

    s = has(int, "__nonexistent__")
    return torch.cos(x) if s is None else torch.sin(x)


def make():
    torch.manual_seed(0)
    return fn, (torch.randn(4),)
