"""pytorch#196173: a branch on the identity of attributes goes stale after some calls, and the write is lost.

At fault: dynamo, guards on the identity of attributes (and side effects)
"""

import torch

EXPECT = ("stale",)


class Holder:
    def __init__(self):
        self.left = object()
        self.right = object()
        self.current = self.left


def fn(x, holder):
    is_left = holder.current is holder.left
    holder.current = holder.right if is_left else holder.left

    if is_left:
        return x.square()
    return -x


compiled = torch.compile(fn)
holder = Holder()
x = torch.tensor([2.0, 3.0])
for i in range(6):
    print(i, compiled(x, holder), holder.current is holder.left)
