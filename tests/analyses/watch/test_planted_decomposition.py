"""The whole way, with Inductor: a decomposition that turns wrong within a run, and a run that parts by chaos alone."""

from __future__ import annotations

import pytest
from watched_scripts import watched

GPT = """
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

model = GPT()
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[1]), momentum=0.9)
step = torch.compile(model)
data = torch.randint(0, 64, (256, 17))
for number in range(50):
    batch = data[torch.randint(0, 256, (8,))]
    loss = F.cross_entropy(step(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 100.0)
    optimizer.step()
"""

# The program is compiled anew when the flag flips, as after any recompile.
PLANT = """
import torch
from torch._functorch import config as functorch
from torch._inductor import config, decomposition
from torch.optim.optimizer import register_optimizer_step_post_hook

config.fx_graph_cache = functorch.enable_autograd_cache = False
operator = torch.ops.aten.embedding_dense_backward.default
right, steps = decomposition.decompositions[operator], 0

def planted(*args, **kwargs):
    gradient = right(*args, **kwargs)
    return gradient * 1.004 if steps >= 19 else gradient

def count(*_):
    global steps
    steps += 1
    if steps == 19:
        torch._dynamo.reset()

decomposition.decompositions[operator] = planted
register_optimizer_step_post_hook(count)
"""


@pytest.mark.slow
def test_a_decomposition_that_turns_wrong_is_named_at_the_first_wrong_sampled_step(tmp_path):
    script, plant = tmp_path / "gpt.py", tmp_path / "plant.py"
    script.write_text(GPT)
    plant.write_text(PLANT)
    answer = watched(script, "--every", "5", "--stop-at", "first", "--plant", str(plant), arguments=("0.01",))
    assert (answer.status, answer.summary["unexplained"], answer.summary["steps"]) == (1, [20], 20), answer.said
    report = answer.summary["report"]
    assert report["culprit"]["stage"] == "decomposition" and report["culprit"]["necessary"]
    assert "embedding_dense_backward" in str(report["culprit"]["rewrite"])


@pytest.mark.slow
def test_trajectories_that_part_by_chaos_alone_are_told_so(tmp_path):
    script = tmp_path / "gpt.py"
    script.write_text(GPT)
    answer = watched(script, "--every", "10", arguments=("0.3",))
    seen = answer.summary["trajectories"]
    assert (answer.status, answer.summary["unexplained"]) == (0, []), answer.said
    assert seen["chaotic"] and seen["compiled"] > 1e-3 and seen["perturbed_growth"] > 1.05
    assert "Chaos alone" in answer.said
