import torch
from torch import nn

OPTIONS = {
    "post_grad_fusion_options": {
        "normalization_aten_pass": {},
        "move_view_after_cat_aten_pass": {},
    },
}


class Regrouped(nn.Module):
    def forward(self, x):
        parts = torch.split(x, 6, dim=-1)
        parts = list(reversed(parts))
        return torch.stack(list(parts), dim=-2).flatten(-2)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Regrouped()

    def forward(self, x):
        x = self.layer(x)
        made = torch.expm1(x * 1e-30)
        x = made.to(x.dtype)
        return x


def make():
    torch.manual_seed(332816)
    x = torch.randn(2, 2, 24, dtype=torch.bfloat16)
    return Model().to(torch.bfloat16).eval(), (x,)
