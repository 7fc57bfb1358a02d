"""Scripts for ``fuzzcompile watch``, run in processes of their own. Without code generation, so that they are quick."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]

TRAINING = """
import sys
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 4))
step = torch.compile(net, backend="eager")
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
for number in range(int(sys.argv[1])):
    x, y = torch.randn(6, 8), torch.randint(0, 4, (6,))
    loss = nn.functional.cross_entropy(step(x), y)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    optimizer.step()
print("weights", [p.double().sum().item() for p in net.parameters()])
"""

# What the compiled callable computes becomes wrong at run time, in the script's process, from one step on.
FLIPPING = """
import sys
import torch
from torch import nn

wrong = False

class Slope(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * (1.01 if wrong else 1.0)

def backend(graph, inputs):
    return lambda *values: tuple(Slope.apply(value) for value in graph(*values))

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
step = torch.compile(net, backend=backend)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
for number in range(1, 41):
    wrong = number >= 12
    loss = step(torch.randn(6, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(number, flush=True)
"""

# A small GPT, without the loop that trains it.
MODEL = """
import sys
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)

class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down, self.drop = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Dropout(0.1)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(self.before(x)).chunk(3, -1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + self.drop(self.out(attended))
        return x + self.drop(self.down(F.gelu(self.up(self.between(x)))))

class GPT(nn.Module):
    def __init__(self, words=64, width=32, length=16):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(Block(width, 2), Block(width, 2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x):
        x = self.words(x) + self.places(torch.arange(x.shape[1]))
        return self.head(self.norm(self.blocks(x)))
"""


@dataclass(frozen=True)
class Answer:
    """The result of a command: its status, its lines of JSON, and the rest of what it wrote."""

    status: int
    steps: list[dict[str, Any]]
    summary: dict[str, Any]
    said: str


def environment() -> dict[str, str]:
    """This checkout, one thread, no compile workers."""
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}


def plain(script: Path, *arguments: str) -> str:
    """What a script prints by itself."""
    command = [sys.executable, str(script), *arguments]
    ran = subprocess.run(
        command, env=environment(), capture_output=True, text=True, check=True, timeout=200, cwd=script.parent
    )
    return ran.stdout


def watched(script: Path, *options: str, arguments: tuple[str, ...] = ()) -> Answer:
    """Watch a script, into a folder beside it, with ``--json``."""
    out = str(script.parent / "out")
    command = [sys.executable, "-m", "fuzzcompile", "watch", str(script), "--out", out, "--json", *options]
    command += ["--", *arguments] if arguments else []
    ran = subprocess.run(
        command, env=environment(), capture_output=True, text=True, check=False, timeout=500, cwd=script.parent
    )
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    summary = lines[-1] if lines and lines[-1].get("summary") else {}
    return Answer(ran.returncode, [line for line in lines if "step" in line], summary, ran.stderr)
