import torch
from torch import nn

GRAD = "enabled"
OPTIONS = {
    "pre_grad_fusion_options": {
        "normalization_pass": {},
        "unbind_stack_to_slices_pass": {},
    },
    "post_grad_fusion_options": {
        "normalization_aten_pass": {},
        "decompose_mm_pass": {},
    },
}


class Regrouped(nn.Module):
    def forward(self, x):
        parts = torch.unbind(x.unflatten(-1, (4, 2)), dim=-2)
        return torch.stack(list(parts), dim=0).permute(1, 2, 0, 3).flatten(-2)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Regrouped()

    def forward(self, x):
        b, c = x.split([1, 7], -1)
        g = b.roll(2, -2)
        x = x + g
        x = self.layer(x)
        return x


def make():
    torch.manual_seed(346814)
    x = torch.randn(1, 11, 8)
    return Model().eval(), (x,)
