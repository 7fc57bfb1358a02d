import torch
from torch import nn
from torch.nn import functional as F

OPTIONS = {
    "post_grad_fusion_options": {
        "batch_aten_mul": {
            "min_fuse_set_size": 2,
        },
    },
}
CONFIG = {
    "inductor": {
        "freezing": True,
    },
}


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(96))

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * wide.to(x.dtype)


def affine(x, weight, bias):
    flat = torch.addmm(bias, x.flatten(0, 1), weight)
    return flat.unflatten(0, x.shape[:2])


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(96, 4, bias=False)
        self.up = nn.Parameter(torch.randn(4, 96, 192) * 0.1021)
        self.down = nn.Parameter(torch.randn(4, 192, 96) * 0.0722)

    def forward(self, x):
        tokens = x.reshape(-1, 96)
        probabilities = self.router(tokens).softmax(-1)
        gates, experts = probabilities.topk(2, dim=-1)
        gates = gates / gates.sum(-1, keepdim=True)
        out = torch.zeros_like(tokens)
        rows = torch.arange(tokens.shape[0], device=x.device).repeat_interleave(2)
        for expert in range(4):
            chosen = (experts.flatten() == expert).to(gates.dtype) * gates.flatten()
            hidden = F.silu(tokens[rows] @ self.up[expert]) @ self.down[expert]
            out = out.index_add(0, rows, (hidden * chosen[:, None]).to(out.dtype))
        return out.view(x.shape)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query_weight = nn.Parameter(torch.randn(96, 96) * 0.1021)
        self.query_bias = nn.Parameter(torch.randn(96) * 0.1)
        self.key_weight = nn.Parameter(torch.randn(96, 96) * 0.1021)
        self.key_bias = nn.Parameter(torch.randn(96) * 0.1)
        self.value_weight = nn.Parameter(torch.randn(96, 96) * 0.1021)
        self.value_bias = nn.Parameter(torch.randn(96) * 0.1)
        self.output_weight = nn.Parameter(torch.randn(96, 96) * 0.1021)
        self.output_bias = nn.Parameter(torch.randn(96) * 0.1)
        self.register_buffer("scale", torch.tensor(1.0))

    def forward(self, x):
        q = affine(x, self.query_weight, self.query_bias)
        q = q.view(2, 6, 6, 16).permute(0, 2, 1, 3)
        k = affine(x, self.key_weight, self.key_bias)
        k = k.view(2, 6, 6, 16).permute(0, 2, 1, 3)
        v = affine(x, self.value_weight, self.value_bias)
        v = v.view(2, 6, 6, 16).permute(0, 2, 1, 3)
        scores = (q @ k.transpose(-2, -1)) / self.scale
        weights = scores.float().softmax(-1)
        weights = weights.to(v.dtype)
        out = weights @ v
        out = out.transpose(1, 2).reshape(2, 6, 96)
        return affine(out, self.output_weight, self.output_bias)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm = RMSNorm()
        self.attention = Attention()
        self.feed_forward_norm = RMSNorm()
        self.feed_forward = Experts()

    def forward(self, x):
        x = self.attention_norm(x + self.attention(x))
        return self.feed_forward_norm(x + self.feed_forward(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        given = x
        x = self.block(x)
        constant = torch.full(x.shape, 100, dtype=torch.int64, device=x.device)
        count = constant.cumsum(-1, dtype=torch.int8)
        x = x + (count * 0.01).to(x.dtype)
        return x, given


def make():
    torch.manual_seed(574413)
    x = torch.randn(2, 6, 96)
    return Model().eval(), (x,)
