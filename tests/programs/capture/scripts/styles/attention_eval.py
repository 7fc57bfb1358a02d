"""The form of pytorch#179578: layers of attention and feed forward in eval mode, compared bit for bit."""

import math
import os

os.environ["TRITON_BACKENDS_IN_TREE"] = "1"

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads, rate):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.drop = nn.Dropout(rate)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = torch.matmul(q, k.transpose(-2, -1)).div(math.sqrt(width // self.heads))
        weights = self.drop(F.softmax(scores, dim=-1))
        return self.out(torch.matmul(weights, v).transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    def __init__(self, width=64, heads=4):
        super().__init__()
        self.attention = Attention(width, heads, 0.1)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = self.first(x + self.attention(x))
        return self.second(x + self.feed(x))


torch.manual_seed(7)
where = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(Layer(), Layer()).to(where).eval()
batch = torch.randn(2, 24, 64, device=where)
with torch.no_grad():
    eager = net(batch)
    again = net(batch)
    compiled = torch.compile(net)(batch)
print("eager is deterministic:", torch.equal(eager, again))
print("BUG" if not torch.equal(eager, compiled) else "no bug", (eager - compiled).abs().max().item())
