import torch
import triton
import triton.language as tl


@triton.jit
def add(x, y, o, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    m = i < n
    tl.store(o + i, tl.load(x + i, mask=m) + tl.load(y + i, mask=m), mask=m)


def f(x, y):
    o = torch.empty_like(x)
    add[(triton.cdiv(x.numel(), 64),)](x, y, o, x.numel(), 64)
    return o * 2


def make():
    torch.manual_seed(0)
    return f, (torch.randn(100), torch.randn(100))
