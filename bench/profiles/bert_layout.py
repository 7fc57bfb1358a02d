"""The layout of BERT: 12 layers, post-norm, narrow. Its dtype is BERT_DTYPE (float32 by default)."""

import os

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, LAYERS, LENGTH, WORDS = 128, 4, 12, 32, 1000
DTYPE = getattr(torch, os.environ.get("BERT_DTYPE", "float32"))


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.output = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        shape = (*x.shape[:2], HEADS, WIDTH // HEADS)
        q, k, v = (part(x).view(shape).transpose(1, 2) for part in (self.query, self.key, self.value))
        attended = F.scaled_dot_product_attention(q, k, v)
        return self.output(attended.transpose(1, 2).reshape(x.shape))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = SelfAttention()
        self.after_attention, self.after_output = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.intermediate, self.output = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = self.after_attention(x + self.attention(x))
        return self.after_output(x + self.output(F.gelu(self.intermediate(x))))


class Embeddings(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids):
        return self.norm(self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device)))


class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = Embeddings()
        self.layer = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.pooler = nn.Linear(WIDTH, WIDTH)

    def forward(self, ids):
        x = self.embeddings(ids)
        for layer in self.layer:
            x = layer(x)
        return x, self.pooler(x[:, 0]).tanh()


def make():
    torch.manual_seed(0)
    return Bert().eval().to(DTYPE), (torch.randint(WORDS, (2, LENGTH)),)
