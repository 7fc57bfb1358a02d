"""pytorch#195320 in a transformer of two layers: the second layer's K is permuted straight to (B, H, D, T)."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads, permuted):
        super().__init__()
        self.heads, self.permuted = heads, permuted
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        batch, tokens, width = x.shape
        shape = (batch, tokens, self.heads, width // self.heads)
        q = self.q(x).view(shape).permute(0, 2, 1, 3)
        k = self.k(x).view(shape)
        k = k.permute(0, 2, 3, 1) if self.permuted else k.permute(0, 2, 1, 3).transpose(-2, -1).contiguous()
        v = self.v(x).view(shape).permute(0, 2, 1, 3)
        weights = (torch.matmul(q, k) * (width // self.heads) ** -0.5).softmax(-1)
        return self.out(torch.matmul(weights, v).transpose(1, 2).reshape(batch, tokens, width))


class Layer(nn.Module):
    def __init__(self, width, heads, permuted):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, permuted)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class Model(nn.Module):
    def __init__(self, width=64, heads=8, vocabulary=100):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList([Layer(width, heads, False), Layer(width, heads, True)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def make():
    torch.manual_seed(0)
    return Model().eval(), (torch.randint(0, 100, (2, 8)),)
