"""Small programs for the compiler; each function returns a callable and its inputs, always the same ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Program = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


def location_of(text: str) -> str:
    """``programs.py:line`` of the first line that holds ``text``."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return f"programs.py:{next(n for n, line in enumerate(lines, 1) if text in line)}"


def tensors(*shapes: tuple[int, ...], seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Standard normal tensors."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


def sine() -> Program:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * 2

    return program, tensors((3, 5))


def exponential() -> Program:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.exp(x) * y - 1

    return program, tensors((3, 5), (3, 5))


def exponential_trained() -> Program:
    function, inputs = exponential()
    return function, tuple(tensor.requires_grad_() for tensor in inputs)


def error_function() -> Program:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.erf(x) + 1

    return program, tensors((3, 5))


def logarithm() -> Program:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.log(x.abs() + 1) * 3

    return program, tensors((3, 5))


def logarithm_trained() -> Program:
    function, (x,) = logarithm()
    return function, (x.requires_grad_(),)


class TrainedSine(nn.Module):
    """A parameter whose gradient needs a cosine, so that only the backward graph has one."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.full((5,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b = self.bias
        return torch.sin(x) + b


def sine_trained() -> Program:
    return TrainedSine(), tuple(tensor.requires_grad_() for tensor in tensors((3, 5)))


def attention() -> Program:
    def program(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        weights = (q @ k.transpose(-2, -1) / 2.0).softmax(-1)
        return weights @ v

    return program, tensors(*[(2, 2, 6, 4)] * 3)


class Block(nn.Module):
    """A transformer block with pre-norm, attention and a GELU feed-forward network."""

    def __init__(self, width: int = 16, heads: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm = nn.LayerNorm(width)
        self.projections = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.feed_forward = nn.Linear(width, width)

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x)
        q, k, v = (self._split(projection(normed)) for projection in self.projections[:3])
        weights = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1)
        if self.dropout:
            weights = F.dropout(weights, self.dropout, self.training)
        x = x + self.projections[3]((weights @ v).transpose(1, 2).flatten(2))
        return x + self.feed_forward(F.gelu(x))


def block(*, training: bool = False, dropout: float = 0.0, dtype: torch.dtype = torch.float32) -> Program:
    torch.manual_seed(1)
    module = Block(dropout=dropout).train(training).to(dtype)
    (x,) = tensors((2, 5, 16))
    return module, (x.to(dtype),)


def sine_and_exponential() -> Program:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) + torch.exp(x) * y

    return program, tensors((3, 5), (3, 5))
