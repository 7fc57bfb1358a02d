import torch
from torch import nn

CONFIG = {"inductor": {"freezing": True}}


def make():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))
    return body.eval(), (torch.randn(2, 3, 8, 8),)
