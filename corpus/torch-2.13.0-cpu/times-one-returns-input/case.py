import torch
from torch import nn
from torch.nn import functional as F

OPTIONS = {
    "pre_grad_fusion_options": {
        "normalization_pass": {},
        "batch_tanh": {
            "min_fuse_set_size": 2,
        },
    },
}


class LayerNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.bias = nn.Parameter(torch.zeros(8))

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        variance = x.var(-1, keepdim=True, unbiased=False)
        return (x - mean) / torch.sqrt(variance + 1e-5) * self.weight + self.bias


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x):
        return self.down(F.relu(self.up(x)).square())


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query_weight = nn.Parameter(torch.randn(2, 8, 8) * 0.3536)
        self.query_bias = nn.Parameter(torch.randn(2, 1, 8) * 0.1)
        self.key_weight = nn.Parameter(torch.randn(2, 8, 8) * 0.3536)
        self.key_bias = nn.Parameter(torch.randn(2, 1, 8) * 0.1)
        self.value_weight = nn.Parameter(torch.randn(2, 8, 8) * 0.3536)
        self.value_bias = nn.Parameter(torch.randn(2, 1, 8) * 0.1)
        self.output_weight = nn.Parameter(torch.randn(2, 8, 8) * 0.3536)
        self.output_bias = nn.Parameter(torch.randn(2, 1, 8) * 0.1)

    def forward(self, x, memory):
        q = torch.einsum("bid,bdh->bih", x, self.query_weight) + self.query_bias
        k = torch.einsum("bid,bdh->bih", memory, self.key_weight) + self.key_bias
        v = torch.einsum("bid,bdh->bih", memory, self.value_weight) + self.value_bias
        scores = (q @ k.transpose(-2, -1)) / 2.8284
        weights = scores.softmax(-1)
        out = weights @ v
        return torch.einsum("bid,bdh->bih", out, self.output_weight) + self.output_bias


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm = LayerNorm()
        self.attention = Attention()
        self.feed_forward_norm = LayerNorm()
        self.feed_forward = FeedForward()

    def forward(self, x, memory):
        x = self.attention_norm(x + self.attention(x, memory))
        return self.feed_forward_norm(x + self.feed_forward(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x, memory):
        scalar = torch.tensor(1.0, dtype=torch.float64, device=x.device)
        x = x / scalar
        given = x
        for block in self.blocks:
            x = block(x, memory)
        return x, given


def make():
    torch.manual_seed(550512)
    x = torch.randint(-1, 2, (2, 12, 8)).to(torch.float32)
    memory = torch.randint(-1, 2, (2, 7, 8)).to(torch.float32)
    return Model().eval(), (x, memory)
