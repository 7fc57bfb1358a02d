# pytorch#196468 in a script: softmax over another dimension is fused into attention
import math
import time

import torch
import torch.nn as nn

torch.manual_seed(0)
WIDTH, HEADS, TOKENS, BATCH = 32, 4, 6, 3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))

    def split(self, x):
        return x.view(x.size(0), x.size(1), HEADS, WIDTH // HEADS)

    def forward(self, x):
        y = self.norm(x)
        q = self.split(self.query(y)).permute(0, 2, 1, 3)
        k = self.split(self.key(y)).permute(0, 2, 1, 3)
        v = self.split(self.value(y)).permute(0, 2, 1, 3)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(WIDTH // HEADS)
        weights = scores.softmax(dim=0)
        z = torch.matmul(weights, v).permute(0, 2, 1, 3).reshape(x.size(0), x.size(1), WIDTH)
        x = x + self.project(z)
        return x + self.mlp(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(16, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(dim=1))


net = Net().eval()
x = torch.randn(BATCH, TOKENS, 16)
with torch.no_grad():
    start = time.time()
    expected = net(x)
    print(f"eager took {time.time() - start:.3f} s")
    compiled = torch.compile(net)
    got = compiled(x)
    print("max difference", (expected - got).abs().max().item())
    assert torch.allclose(expected, got, atol=1e-4)
