"""Sample inputs as Python text that needs torch alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from types import EllipsisType

import torch

# Beyond this many stored elements, values are drawn by a seeded generator in the range of the sample's.
_VERBATIM = 512
# Floating numbers are rounded to this many digits before they are spelled.
_DIGITS = 3
_PLAIN = (torch.dtype, torch.device, torch.layout, torch.memory_format)


class Unspellable(Exception):
    """An argument that has no short text; the message says of what kind it is."""


@dataclass
class Speller:
    """Spells arguments. Tensors become variables ``x0``, ``x1`` … in order; one that comes twice is one variable.

    Attributes:
        gradients: whether tensors that require a gradient do so in the text.
        start: the number of the first variable.
        tensors: the expression of each variable.
    """

    gradients: bool = False
    start: int = 0
    tensors: dict[str, str] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)
    _kept: list[torch.Tensor] = field(default_factory=list)

    def value(self, value: object) -> str:
        """The text of any argument.

        Raises:
            Unspellable: it is of a kind that has none.
        """
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, slice):
            return f"slice({', '.join(self.value(part) for part in (value.start, value.stop, value.step))})"
        if isinstance(value, (list, tuple)) and type(value) in (list, tuple, torch.Size):
            inner = ", ".join(map(self.value, value))
            return f"[{inner}]" if isinstance(value, list) else f"({inner},)" if len(value) == 1 else f"({inner})"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{key!r}: {self.value(inner)}" for key, inner in value.items()) + "}"
        return _scalar(value)

    def _tensor(self, tensor: torch.Tensor) -> str:
        if id(tensor) not in self._names:
            number = self.start + len(self.tensors)
            text, name = tensor_text(tensor, seed=number), f"x{number}"
            wants = self.gradients and tensor.requires_grad
            self.tensors[name] = text + (".requires_grad_()" if wants else "")
            self._names[id(tensor)] = name
            self._kept.append(tensor)  # or the next tensor may get its id
        return self._names[id(tensor)]


def tensor_text(tensor: torch.Tensor, *, seed: int = 0) -> str:
    """An expression for a tensor of the same dtype, shape, strides, offset and, if it is small, values.

    It uses ``strided`` and ``drawn``, functions of the case's template. Floating values are rounded to three digits.

    Raises:
        Unspellable: it is sparse, quantized, nested, or of another kind that has no strides.
    """
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise Unspellable(f"a tensor of class {type(tensor).__name__}")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
        kind = "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
        raise Unspellable(f"a {kind} tensor")
    if tensor.is_conj() or tensor.is_neg() or tensor.device.type == "meta":
        raise Unspellable("a tensor with a lazy conjugate or sign, or without values")
    plain = tensor.detach()
    size, stride, offset, dtype = tuple(plain.shape), plain.stride(), plain.storage_offset(), str(plain.dtype)
    stored = _extent(size, stride) + offset
    if not plain.numel():
        dense = plain.is_contiguous() and not offset
        return (
            f"torch.empty({size}, dtype={dtype})" if dense else f"torch.empty_strided({size}, {stride}, dtype={dtype})"
        )
    flat = plain.as_strided((stored,), (1,), 0)
    if stored > _VERBATIM:
        low, high = _range(plain)
        return f"drawn({size}, {stride}, {offset}, {dtype}, seed={seed}, low={low}, high={high})"
    values = _listed(flat)
    if plain.is_contiguous() and not offset:
        return f"torch.tensor({_nested(values, size)}, dtype={dtype})"
    return f"strided({size}, {stride}, {offset}, torch.tensor([{', '.join(values)}], dtype={dtype}))"


def _extent(size: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Elements from the first to the last that a tensor of that form reaches."""
    return 1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True)) if math.prod(size) else 0


def _range(tensor: torch.Tensor) -> tuple[str, str]:
    """The least and the largest finite value, as text."""
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    values = real.double()
    finite = values[values.isfinite()]
    return ("0", "1") if not finite.numel() else (_number(finite.min().item()), _number(finite.max().item()))


def _listed(flat: torch.Tensor) -> list[str]:
    short: Callable[[object], str] = _scalar if not flat.dtype.is_floating_point else _number
    return [short(value) for value in flat.tolist()]


def _number(value: object) -> str:
    """A floating number, rounded; ``inf`` and ``nan`` are names of the template."""
    return _scalar(float(value))  # type: ignore[arg-type]


def _nested(values: list[str], size: tuple[int, ...]) -> str:
    if not size:
        return values[0]
    step = len(values) // size[0]
    return "[" + ", ".join(_nested(values[at : at + step], size[1:]) for at in range(0, len(values), step)) + "]"


def _scalar(value: object) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, complex):
        return f"complex({_scalar(value.real)}, {_scalar(value.imag)})"
    if type(value) is float:
        return repr(float(f"{value:.{_DIGITS}g}"))
    if value is None or type(value) in (bool, int, float, str):
        return repr(value)
    if isinstance(value, _PLAIN):
        return f"torch.device({str(value)!r})" if isinstance(value, torch.device) else str(value)
    if isinstance(value, EllipsisType):
        return "..."
    raise Unspellable(f"an argument of type {type(value).__name__}")
