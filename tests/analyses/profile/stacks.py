"""A stack of blocks as a case file: the layout of BERT, small, with a place for a fault."""

from __future__ import annotations

from pathlib import Path

import torch

from fuzzcompile.analyses.profile.layer_profile import ProfileOptions, profile
from fuzzcompile.analyses.profile.sides import BLOCKS, Look, parse
from fuzzcompile.model.profile_contract import LayerJson, ProfileJson
from fuzzcompile.programs.casefiles.case_module import load_case

CPU = torch.device("cpu")

STACK = """
import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention


class Attention(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number = number
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = self.qkv(x).view(2, -1, 3, 2, 8).permute(2, 0, 3, 1, 4)
        return self.out(self.attend(q, k, v).transpose(1, 2).reshape(x.shape))

    def attend(self, q, k, v):
        {attend}


class Block(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.attention = Attention(number)
        self.first, self.second = nn.LayerNorm(16), nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x, mask=None):
        x = self.first(x + self.attention(x))
        return self.second(x + self.down(gelu(self.up(x))))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.layers = nn.ModuleList(Block(number) for number in range({layers}))
        self.head = nn.Linear(16, 20)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, mask=None)
        return self.head(x)


def make():
    torch.manual_seed(0)
    return Encoder().{mode}().to(torch.{dtype}), (torch.randint(20, (2, 6)),)
"""
CLEAN = "return scaled_dot_product_attention(q, k, v)"


def stack(
    folder: Path,
    attend: str = CLEAN,
    *,
    layers: int = 3,
    dtype: str = "float32",
    training: bool = False,
    more: str = "",
) -> Path:
    """Write the case file."""
    source = STACK.format(attend=attend, layers=layers, dtype=dtype, mode="train" if training else "eval")
    path = folder / "stack.py"
    path.write_text(source + ("\nBACKWARD = True\n" if training else "") + more, encoding="utf-8")
    return path


def profiled(path: Path, against: str, reference: str = "eager", look: Look = BLOCKS, **asked: object) -> ProfileJson:
    """Profile the case in this process."""
    return profile(load_case(path), CPU, ProfileOptions(parse(against), parse(reference), look, **asked))


def row(profile: ProfileJson, name: str) -> LayerJson:
    """The row of a layer."""
    return next(layer for layer in profile["layers"] if layer["name"] == name)
