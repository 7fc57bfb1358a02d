"""A table of the kernels of ``scaled_dot_product_attention`` that a device has for typical inputs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from fuzzcompile.contract import AttentionKernelsJson
from fuzzcompile.execution.attention_backends import Backend, backends_for

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_WIDTHS = (64, 80, 256)
_INPUTS = ("plain", "causal", "masked", "training", "training, dropout")
_BATCH, _HEADS, _LENGTH = 1, 2, 64


@dataclass(frozen=True)
class Answer:
    """The answer of every kernel to one kind of inputs: usable, or the reason why not."""

    inputs: str
    width: int
    dtype: str
    backends: Sequence[Backend]

    @property
    def usable(self) -> str:
        """The kernels that take the inputs, the chosen one first."""
        names = [backend.name for backend in sorted(self.backends, key=lambda backend: not backend.chosen)]
        taken = {backend.name for backend in self.backends if backend.usable}
        return ", ".join(name for name in names if name in taken) or "none"

    def to_json(self) -> AttentionKernelsJson:
        """The entry of the contract."""
        backends = [backend.to_json() for backend in self.backends]
        return {"inputs": self.inputs, "head_dim": self.width, "dtype": self.dtype, "backends": backends}


def answers(device: torch.device) -> list[Answer]:
    """Ask about typical inputs of shape (1, 2, 64, head dim) on ``device``; runs no kernel."""
    return [
        Answer(inputs, width, str(dtype).removeprefix("torch."), _asked(inputs, width, dtype, device))
        for inputs, width, dtype in itertools.product(_INPUTS, _WIDTHS, _DTYPES)
    ]


def table(answered: Sequence[Answer]) -> list[str]:
    """The answers as lines of text: the chosen kernel first, head dims of equal answers together, then refusals."""
    dtypes = list(dict.fromkeys(answer.dtype for answer in answered))
    rows = [["inputs", "head dim", *dtypes], *_rows(answered, dtypes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [*lines, *_refusals(answered)]


def _asked(inputs: str, width: int, dtype: torch.dtype, device: torch.device) -> list[Backend]:
    training = inputs.startswith("training")
    query = torch.zeros(_BATCH, _HEADS, _LENGTH, width, dtype=dtype, device=device, requires_grad=training)
    mask = torch.ones(_LENGTH, _LENGTH, dtype=torch.bool, device=device) if inputs == "masked" else None
    dropout = 0.1 if "dropout" in inputs else 0.0
    with torch.set_grad_enabled(training):
        try:
            return backends_for(query, query, query, attn_mask=mask, dropout_p=dropout, is_causal=inputs == "causal")
        except RuntimeError:  # torch knows no attention on this device
            return []


def _rows(answered: Sequence[Answer], dtypes: Sequence[str]) -> Iterator[list[str]]:
    cells = {(answer.inputs, answer.width, answer.dtype): answer.usable for answer in answered}
    for inputs in dict.fromkeys(answer.inputs for answer in answered):
        alike: dict[tuple[str, ...], list[str]] = {}
        for width in dict.fromkeys(answer.width for answer in answered):
            alike.setdefault(tuple(cells[inputs, width, dtype] for dtype in dtypes), []).append(str(width))
        for row, widths in alike.items():
            yield [inputs, ", ".join(widths), *row]


def _refusals(answered: Sequence[Answer]) -> Iterator[str]:
    """Each reason once, with the first inputs that it refuses."""
    seen = set()
    for answer in answered:
        for backend in answer.backends:
            if not backend.usable and (backend.name, backend.reason) not in seen:
                seen.add((backend.name, backend.reason))
                refused = f"{answer.inputs} {answer.dtype}, head dim {answer.width}"
                yield f"{backend.name} refuses {refused}: {backend.reason}"
