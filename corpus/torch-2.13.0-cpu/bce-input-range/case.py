import torch
from torch import nn
from torch.nn import functional as F

BACKWARD = True
OPTIONS = {
    "pre_grad_fusion_options": {
        "normalization_pass": {},
        "unbind_stack_to_slices_pass": {},
    },
    "constant_and_index_propagation": False,
}


class Attention(nn.Module):
    def forward(self, q, k, v):
        scores = torch.bmm(q, k.transpose(1, 2))
        weights = scores.softmax(-1)
        return torch.bmm(weights, v)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()

    def forward(self, q, k, v):
        q = F.binary_cross_entropy(q.sigmoid() + 1.0, q.sigmoid()) + q
        other = torch.zeros_like(q)
        made = torch.logaddexp(other, q)
        q = made.to(q.dtype)
        x = self.attention(q, k, v)
        return x


def make():
    torch.manual_seed(909341)
    q = torch.randn(2, 8, 48, dtype=torch.bfloat16, requires_grad=True)
    k = torch.randn(2, 3, 48, dtype=torch.bfloat16, requires_grad=True)
    v = torch.randn(2, 3, 48, dtype=torch.bfloat16, requires_grad=True)
    return Model().to(torch.bfloat16).train(), (q, k, v)
