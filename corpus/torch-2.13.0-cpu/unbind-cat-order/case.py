import torch
from torch import nn

OPTIONS = {
    "pre_grad_fusion_options": {
        "normalization_pass": {},
        "unbind_cat_to_view_pass": {},
    },
}


class Model(nn.Module):
    def forward(self, x):
        parts = torch.unbind(x.unflatten(-1, (3, 1)), dim=-2)
        parts = list(reversed(parts))
        return torch.cat(list(parts), dim=-1)


def make():
    torch.manual_seed(0)
    x = torch.randn(1, 7, 3, dtype=torch.float16)
    return Model().eval(), (x,)
