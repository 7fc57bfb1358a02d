"""#179804: a region without autocast is differentiated in bfloat16 if the compiled function is called under autocast.

Eager's backward pass, which is outside of autocast as torch's notes ask for, is in float32.
"""

import torch

EXPECT = ["wrong_gradient"]
linear = torch.nn.Linear(64, 64)


def in_full_precision(x):
    with torch.autocast("cpu", enabled=False):
        return x.float() @ linear.weight.T


x = torch.randn(4, 64, dtype=torch.bfloat16, requires_grad=True)
with torch.autocast("cpu", dtype=torch.bfloat16):
    out = torch.compile(in_full_precision, backend="aot_eager")(x)
out.sum().backward()
print(linear.weight.grad.dtype, linear.weight.grad.norm())
