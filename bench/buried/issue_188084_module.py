"""pytorch#188084 in a module: the gradient of index_select under vmap."""

import torch
from torch import nn
from torch.func import grad_and_value, vmap


class Energy(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.register_buffer("index", torch.tensor([0, 2]))
        self.register_buffer("weight", torch.tensor([1.0, -1.0]))
        self.scale = nn.Parameter(torch.ones(size))
        self.size = size

    def energy(self, x):
        columns = torch.stack([x[..., k] for k in range(self.size)], dim=-1)
        chosen = torch.index_select(columns, -1, self.index)
        return (chosen * self.weight).sum(-1).reshape(())

    def forward(self, x):
        x = x * self.scale
        gradient, value = vmap(grad_and_value(self.energy))(x)
        return gradient, value


class Field(nn.Module):
    def __init__(self, size=4):
        super().__init__()
        self.lift = nn.Linear(size, size)
        self.norm = nn.LayerNorm(size)
        self.energy = Energy(size)
        self.read = nn.Linear(size, 2)

    def forward(self, x):
        y = torch.tanh(self.lift(x)) + x
        y = self.norm(y)
        gradient, value = self.energy(y)
        return self.read(y - 0.1 * gradient), value


DYNAMIC = True


def make():
    torch.manual_seed(0)
    return Field().eval(), (torch.randn(4, 4),)
