import itertools

import torch


def ratio(a, b):
    return a / b.to(a.dtype).unsqueeze(-1)


for dtype, mode in itertools.product([torch.bfloat16, torch.float32], ["default", None]):
    torch.manual_seed(0)
    torch._dynamo.reset()
    a, b = torch.randn(6, 8, 4, dtype=dtype, device="cuda"), torch.randn(6, 8, device="cuda")
    wanted, got = ratio(a, b), torch.compile(ratio, mode=mode)(a, b)
    print(dtype, mode, torch.allclose(wanted, got), (wanted - got).abs().max().item())
