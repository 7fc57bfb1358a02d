# pytorch#198100: unsqueeze_ on x.contiguous(), which is x itself.
# A bug: eager runs; dynamo fails while it builds its guards.

import torch

EXPECT = ("compile_error",)


def f(x):
    v = x.contiguous()
    v.unsqueeze_(2)
    return x * 2


def make():
    return f, (torch.arange(24).reshape(4, 6),)
