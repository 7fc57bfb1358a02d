import torch
from torch import nn

OPTIONS = {
    "fallback_random": True,
}


class Model(nn.Module):
    def forward(self, x):
        a = x.transpose(0, -1).contiguous()
        b = (torch.where(a > a, a, a)).to(torch.float16)
        c = b.unfold(-2, 2, 2)
        d = torch.nn.functional.dropout(c, 1.0, training=True)
        e = torch.index_select(a, -1, torch.tensor([1, 1], device=x.device))
        return e, d


def make():
    torch.manual_seed(506378)
    x = torch.randn(2, 13, 128, dtype=torch.float16) * 1e-6
    return Model().eval(), (x,)
