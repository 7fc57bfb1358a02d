"""The whole way, with Inductor: a decomposition that turns wrong within a run, and a run that parts by chaos alone."""

from __future__ import annotations

import pytest
from watched_scripts import MODEL, watched

GPT = f"""
{MODEL}
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
