"""Training steps whose optimizer is compiled too: what torch means them to compute in another way is no bug."""

from __future__ import annotations

import json

import pytest
from calling import call

STEP = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3))
optimizer = torch.optim.{optimizer}(model.parameters(), lr=1e-2{settings})


@torch.compile
def step(x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss


step(torch.randn(6, 4))
"""
# The lowering of tanh returns a value that is 5 % off.
WRONG_TANH = """
import torch
from torch._inductor import lowering

tanh = lowering.lowerings[torch.ops.aten.tanh.default]
lowering.lowerings[torch.ops.aten.tanh.default] = lambda x: lowering.mul(tanh(x), 1.05)
"""


SCALED = (
    STEP.replace("@torch.compile", 'scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)\n\n\n@torch.compile')
    .replace("loss.backward()", "scaler.scale(loss).backward()")
    .replace("optimizer.step()", "scaler.step(optimizer)\n    scaler.update()")
)


@pytest.fixture
def judged(write_case, capsys):
    def judge(optimizer: str, *options: str, script: str = STEP, settings: str = ""):
        path = write_case(script.format(optimizer=optimizer, settings=settings))
        status = call("triage", path, "--json", *options)
        return status, json.loads(capsys.readouterr().out)

    return judge


@pytest.mark.slow
def test_a_bias_correction_in_float32_is_by_design(judged):
    status, report = judged("AdamW")
    culprit = report["culprit"]
    assert (status, report["verdict"], report["is_bug"]) == (0, "by_design", False)
    assert (report["severity"], report["confidence"], report["signature"]) == ("by_design", "high", None)
    assert (culprit["stage"], culprit["rewrite"], culprit["necessary"]) == ("dynamo", "_set_capturable", True)
    assert culprit["source"].startswith("torch/_dynamo/") and "capturable" in culprit["details"]["design_source"]
    assert f"{culprit['source']}:{culprit['line']}" in report["detail"] and "of that change" in report["detail"]


@pytest.mark.slow
def test_it_counts_where_that_is_asked_for(judged):
    assert judged("NAdam", "--fail-on", "by_design")[0] == 1
    assert judged("NAdam", "--fail-on", "accepts_invalid")[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["Adadelta", "NAdam"])
def test_a_check_that_compiled_steps_leave_out_is_by_design(judged, optimizer):
    status, report = judged(optimizer, settings=", capturable=True, foreach=True")
    culprit = report["culprit"]
    assert (status, report["verdict"], report["confidence"]) == (0, "by_design", "high")
    assert (culprit["source"], culprit["rewrite"]) == (
        f"torch/optim/{optimizer.lower()}.py",
        f"_multi_tensor_{optimizer.lower()}",
    )
    assert "capturable" in culprit["details"]["design_source"] and "eager raises AssertionError" in report["detail"]


@pytest.mark.slow
def test_a_branch_that_eager_mode_cannot_take_without_its_setting_is_by_design(judged):
    status, report = judged("Adamax", settings=", foreach=True")
    assert status == 0 and report["verdict"] in ("by_design", "rounding")
    assert report["verdict"] == "rounding" or report["culprit"]["rewrite"] == "_set_capturable"


@pytest.mark.slow
def test_gradients_that_are_scaled_have_a_reference_in_float64(judged):
    status, report = judged("SGD", script=SCALED)
    assert status == 0 and report["verdict"] in ("equal", "rounding")
    assert report["confidence"] == "high" and not any("no float64 reference" in x for x in report["evidence"]["notes"])


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["SGD", "RMSprop", "Adagrad", "Adadelta", "Rprop", "ASGD"])
def test_an_optimizer_without_such_a_branch_gives_no_finding(judged, optimizer):
    status, report = judged(optimizer)
    assert status == 0 and report["verdict"] in ("equal", "rounding")


@pytest.mark.slow
def test_a_bug_in_such_a_step_is_a_bug(judged, write_case):
    status, report = judged("AdamW", "--plant", str(write_case(WRONG_TANH, "plant.py")))
    assert (status, report["is_bug"]) == (1, True)
    assert (report["culprit"]["stage"], report["culprit"]["family"]) == ("lowering", "tanh")


@pytest.mark.slow
def test_a_branch_of_the_program_itself_is_named_with_its_line(write_case, capsys):
    path = write_case("""
import torch


def scale(x):
    if torch.compiler.is_compiling():
        return x * 2
    return x * 3


@torch.compile
def program(x):
    return scale(x).sin()


program(torch.randn(4, 4))
""")
    status, report = call("triage", path, "--json"), json.loads(capsys.readouterr().out)
    culprit = report["culprit"]
    assert (status, report["verdict"], report["confidence"]) == (0, "by_design", "high")
    assert (culprit["source"], culprit["line"], culprit["rewrite"]) == (path.name, 6, "scale")


GPT = """
import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.attend(self.first(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.second(x))


class GPT(nn.Module):
    def __init__(self, tokens, width, heads, length):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--length", type=int, default=6)
    parser.add_argument("--batch", type=int, default=2)
    options = parser.parse_args()

    torch.manual_seed(0)
    model = GPT(11, options.width, 2, options.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.randint(0, 11, (4, options.length + 1)))

    @torch.compile
    def step(tokens):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss

    for (tokens,) in DataLoader(data, batch_size=options.batch, shuffle=True):
        print(step(tokens).item())


if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
def test_a_small_gpt_whose_whole_step_is_compiled_in_a_script_with_loader_and_options_is_no_bug(write_case, capsys):
    status, report = call("triage", write_case(GPT), "--json"), json.loads(capsys.readouterr().out)
    assert (status, report["verdict"], report["is_bug"]) == (0, "by_design", False), report["detail"]
    assert (report["culprit"]["stage"], report["culprit"]["rewrite"]) == ("dynamo", "_set_capturable")
    assert any("judged: call 1 of the script, step" in note for note in report["evidence"]["notes"])
