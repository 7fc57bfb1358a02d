import torch
from torch import nn
from torch.nn import functional as F


class LayerNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(12))
        self.bias = nn.Parameter(torch.zeros(12))

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        variance = x.var(-1, keepdim=True, unbiased=False)
        return (x - mean) / torch.sqrt(variance + 1e-5) * self.weight + self.bias


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(12, 24, bias=False)
        self.up = nn.Linear(12, 24, bias=False)
        self.down = nn.Linear(24, 12, bias=False)

    def forward(self, x):
        return self.down(F.gelu(self.gate(x)) * self.up(x))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query_a = nn.Parameter(torch.randn(12, 12) * 0.2887)
        self.query_b = nn.Parameter(torch.randn(12, 12) * 0.2887)
        self.key_a = nn.Parameter(torch.randn(12, 12) * 0.2887)
        self.key_b = nn.Parameter(torch.randn(12, 12) * 0.2887)
        self.value_a = nn.Parameter(torch.randn(12, 12) * 0.2887)
        self.value_b = nn.Parameter(torch.randn(12, 12) * 0.2887)
        self.output_a = nn.Parameter(torch.randn(12, 12) * 0.2887)
        self.output_b = nn.Parameter(torch.randn(12, 12) * 0.2887)

    def forward(self, x):
        q = x @ self.query_a + x.relu() @ self.query_b
        k = x @ self.key_a + x.relu() @ self.key_b
        v = x @ self.value_a + x.relu() @ self.value_b
        scores = torch.bmm(q, k.transpose(1, 2))
        weights = scores.softmax(-2)
        out = torch.bmm(weights, v)
        return out @ self.output_a + out.relu() @ self.output_b


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(32, 12)
        self.positions = nn.Embedding(64, 12)
        self.attention_norm = LayerNorm()
        self.attention = Attention()
        self.feed_forward_norm = LayerNorm()
        self.feed_forward = FeedForward()

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions((tokens != 0).cumsum(1))
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


def make():
    torch.manual_seed(998118)
    tokens = torch.randint(0, 32, (4, 14))
    return Model().eval(), (tokens,)
