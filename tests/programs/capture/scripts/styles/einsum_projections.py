"""The form of pytorch#179575: a weight for each element of the batch, applied by einsum, and a tight tolerance."""

import torch
import torch.nn.functional as F
from torch import nn


class Projection(nn.Module):
    def __init__(self, batch, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(batch, width, width) / width**0.5)
        self.bias = nn.Parameter(torch.zeros(batch, 1, width))

    def forward(self, x):
        return torch.einsum("b i d, b d h -> b i h", x, self.weight) + self.bias


class Transformer(nn.Module):
    def __init__(self, batch=2, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (Projection(batch, width) for _ in range(4))
        self.norm = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        weights = F.softmax(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5, dim=-1)
        mixed = (weights @ v).transpose(1, 2).contiguous().view_as(x)
        x = self.norm(x + self.o(mixed))
        return self.norm(x + self.feed(x))


def main():
    torch.manual_seed(3)
    device = torch.device("cuda")
    model = Transformer().to(device).eval()
    x = torch.randn(2, 12, 32).to(device)
    with torch.no_grad():
        wanted = model(x)
        torch._dynamo.reset()
        got = torch.compile(model, backend="inductor", fullgraph=True)(x)
    assert torch.allclose(wanted, got, rtol=1e-7, atol=1e-8), (wanted - got).abs().max()


if __name__ == "__main__":
    main()
