import torch
from torch import nn

OPTIONS = {
    "pre_grad_fusion_options": {
        "normalization_pass": {},
        "unbind_stack_to_slices_pass": {},
        "split_stack_to_cats_pass": {},
    },
}


def spoiled(x, value):
    x.view(-1)[0] = value
    return x


class Regrouped(nn.Module):
    def forward(self, x):
        parts = torch.unbind(x.unflatten(-1, (3, 1)), dim=-2)
        parts = list(reversed(parts))
        joined = torch.cat([torch.relu(part) for part in parts], dim=-1)
        parts = torch.split(joined, 1, dim=-1)
        return torch.stack(list(parts), dim=0).permute(1, 2, 0, 3).flatten(-2)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Regrouped()

    def forward(self, x):
        other = x.transpose(-1, -2).contiguous().transpose(-1, -2)
        made = torch.float_power(x, other)
        x = made.to(x.dtype)
        x = self.layer(x)
        same = torch.broadcast_to(x, x.shape)
        same.index_add_(-1, torch.tensor([0], device=x.device), same[..., :1].clone())
        x = x * 2 + same
        return x


def make():
    torch.manual_seed(463795)
    x = spoiled(torch.randn(4, 3, 3), -torch.inf)
    return Model().eval(), (x,)
