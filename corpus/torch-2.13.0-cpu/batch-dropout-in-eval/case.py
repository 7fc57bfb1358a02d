import torch
from torch import nn
from torch.nn import functional as F

OPTIONS = {
    "post_grad_fusion_options": {
        "batch_aten_add": {
            "min_fuse_set_size": 2,
        },
    },
    "pre_grad_fusion_options": {
        "normalization_pass": {},
        "batch_dropout": {
            "min_fuse_set_size": 2,
        },
    },
}

def spoiled(x, value):
    x.view(-1)[0] = value
    return x

class Model(nn.Module):
    def forward(self, x):
        parts = x.split(4, dim=-1)
        made = [
            F.dropout(parts[0], 0.1, self.training),
            F.dropout(parts[1], 0.1, self.training),
        ]
        return torch.cat(made, dim=-1)

CALLS = [
    (spoiled(torch.randn(2, 11, 8), torch.inf),),
]

def make():
    torch.manual_seed(415088)
    x = spoiled(torch.randn(2, 9, 8), torch.inf)
    return Model().eval(), (x,)
