import torch
from torch import nn

BACKWARD = True
OPTIONS = {
    "pre_grad_fusion_options": {
        "normalization_pass": {},
        "batch_clamp": {
            "min_fuse_set_size": 2,
        },
    },
    "post_grad_fusion_options": {
        "batch_aten_sub": {
            "min_fuse_set_size": 2,
        },
    },
}


class Pointwise(nn.Module):
    def forward(self, x):
        parts = x.split(8, dim=-1)
        others = x.flip(-1).split(8, dim=-1)
        made = [
            torch.sub(parts[0], others[0], alpha=2),
            torch.sub(parts[1], others[1], alpha=2),
        ]
        return torch.cat(made, dim=-1).to(x.dtype)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm = nn.LayerNorm(16)
        self.attention = Pointwise()

    def forward(self, x):
        return x + self.attention(self.attention_norm(x))


def make():
    torch.manual_seed(539365)
    x = torch.randn(3, 4, 16, requires_grad=True)
    return Model().train(), (x,)
