"""How the values and strides of an input are written down."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from fuzzcompile.reduction.program import Fill, Input

# Most elements that are written out one by one.
MOST_LITERALS = 16


def input_expression(one: Input, *, plain: bool = False) -> str:
    """Python text that makes the input (``plain``: without asking for a gradient)."""
    if one.fill == "recorded":
        text = f'VALUES["{one.name}"]'
        return f"{text}.requires_grad_()" if one.requires_grad and not plain else text
    shape, suffix = _dense_shape(one)
    text = _filled(one, shape)
    grad = one.requires_grad and not plain
    if grad and not suffix and one.fill in ("randn", "rand", "zeros", "ones"):
        return text[:-1] + ", requires_grad=True)"
    return text + suffix + (".requires_grad_()" if grad else "")


def _filled(one: Input, shape: tuple[int, ...]) -> str:
    dtype = "" if one.dtype is torch.get_default_dtype() else f", dtype={one.dtype}"
    sizes = ", ".join(map(str, shape))
    total = torch.Size(shape).numel()
    if one.fill == "literal":
        values = one.values
        assert values is not None
        return f"torch.tensor({_numbers(values.tolist())}{_literal_dtype(one)})"
    if one.fill == "arange":
        kind = "" if one.dtype is torch.int64 else f", dtype={one.dtype}"
        if one.dtype is torch.float32:
            kind = "." if len(shape) == 1 else ".0"
            kind = ".0"
        text = f"torch.arange({total}{kind})"
        return text if len(shape) == 1 else f"{text}.reshape({sizes})"
    if one.fill == "randint":
        kind = "" if one.dtype is torch.int64 else f", dtype={one.dtype}"
        if one.dtype is torch.bool:
            return f"torch.rand({sizes or '()'}) > 0.5" if not shape else f"(torch.rand({sizes}) > 0.5)"
        return f"torch.randint({highest(one) + 1}, ({sizes}{',' if len(shape) == 1 else ''}){kind})"
    if one.fill == "tril":
        return f"torch.ones({sizes}{dtype}).tril()"
    if one.fill in ("randn", "rand") and not one.dtype.is_floating_point and not one.dtype.is_complex:
        raise ValueError(f"{one.dtype} has no {one.fill}")
    return f"torch.{one.fill}({sizes or '()'}{dtype})"


def _literal_dtype(one: Input) -> str:
    inferred = torch.tensor(one.values.tolist()).dtype if one.values is not None and one.values.numel() else None
    return "" if inferred is one.dtype else f", dtype={one.dtype}"


def _numbers(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_numbers(part) for part in value)}]"
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            return f'float("{value}")'
        short = f"{value:.4g}"
        return repr(float(short)) if float(short) == value else repr(value)
    return repr(value)


def highest(one: Input) -> int:
    """The largest recorded whole number; 1 if there is none above it."""
    if one.values is None or not one.values.numel():
        return 1
    return max(1, int(one.values.max()))


def is_contiguous(one: Input) -> bool:
    """Whether the strides are those of a fresh tensor of its shape (where there is more than one element)."""
    return _same_strides(one.shape, one.stride, contiguous_strides(one.shape))


def contiguous(one: Input) -> Input:
    """The same input, freshly laid out."""
    values = one.values.contiguous() if one.values is not None else None
    return replace(one, stride=contiguous_strides(one.shape), values=values)


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a fresh tensor of that shape."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _same_strides(shape: tuple[int, ...], one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    if 0 in shape:
        return True
    return all(a == b for size, a, b in zip(shape, one, other, strict=True) if size > 1)


def _dense_shape(one: Input) -> tuple[tuple[int, ...], str]:
    """The shape of a fresh tensor, and the method calls that give it the input's strides."""
    if is_contiguous(one):
        return one.shape, ""
    expanded = [d for d, (size, step) in enumerate(zip(one.shape, one.stride, strict=True)) if size > 1 and step == 0]
    if expanded:
        shape = tuple(1 if d in expanded else size for d, size in enumerate(one.shape))
        inner, suffix = _dense_shape(replace(one, shape=shape, values=None))
        return inner, f"{suffix}.expand({', '.join(map(str, one.shape))})"
    order = sorted(range(len(one.shape)), key=lambda d: (-one.stride[d], d))
    shape = tuple(one.shape[d] for d in order)
    if _same_strides(shape, tuple(one.stride[d] for d in order), contiguous_strides(shape)):
        back = [order.index(d) for d in range(len(order))]
        moved = [d for d, place in enumerate(back) if place != d]
        if len(moved) == 2:
            return shape, f".transpose({moved[0]}, {moved[1]})"
        return shape, f".permute({', '.join(map(str, back))})"
    reach = 1 + sum((size - 1) * step for size, step in zip(one.shape, one.stride, strict=True))
    return (reach,), f".as_strided({one.shape}, {one.stride})"


def fills(one: Input) -> list[Fill]:
    """What to try for an input's values, the plainest first."""
    if one.dtype is torch.bool:
        found: list[Fill] = ["ones", "zeros", "randint"]
        if len(one.shape) >= 2:
            found.insert(2, "tril")
    elif one.dtype.is_floating_point or one.dtype.is_complex:
        found = ["randn", "ones", "zeros", "arange", "rand"]
        found = [fill for fill in found if not (one.dtype.is_complex and fill == "arange")]
    else:
        found = ["arange", "zeros", "ones", "randint"]
    if torch.Size(one.shape).numel() <= MOST_LITERALS and one.values is not None:
        found.append("literal")
    return found


def resized(one: Input, shape: tuple[int, ...]) -> Input:
    """The input with another shape, laid out in the same order of dimensions; recorded values are cropped."""
    if shape == one.shape:
        return one
    expanded = [size > 1 and step == 0 for size, step in zip(one.shape, one.stride, strict=True)]
    order = sorted(range(len(shape)), key=lambda d: (-one.stride[d], d))
    dense = contiguous_strides(tuple(1 if expanded[d] else shape[d] for d in order))
    stride = tuple(0 if expanded[d] else dense[order.index(d)] for d in range(len(shape)))
    if one.values is None:
        return replace(one, shape=shape, stride=stride)
    if any(new > old for new, old in zip(shape, one.shape, strict=True)):
        return replace(
            one, shape=shape, stride=stride, values=None, fill="randn" if one.fill == "recorded" else one.fill
        )
    cropped = one.values[tuple(slice(0, size) for size in shape)]
    count = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) if 0 not in shape else 0
    values = torch.empty(count, dtype=one.dtype).as_strided(shape, stride)
    if True in expanded:
        index = tuple(slice(0, 1) if wide else slice(None) for wide in expanded)
        values[index].copy_(cropped[index])
    else:
        values.copy_(cropped)
    return replace(one, shape=shape, stride=stride, values=values)
