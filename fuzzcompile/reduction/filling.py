"""Python expressions for inputs: their values, dtypes and strides."""

from __future__ import annotations

from dataclasses import replace

import torch

from fuzzcompile.reduction.program import Fill, Input

# Most elements that are written out one by one.
MOST_LITERALS = 16


def input_expression(input_: Input, *, plain: bool = False) -> str:
    """Python text that makes the input; ``plain`` leaves out ``requires_grad``."""
    if input_.fill == "recorded":
        text = f'VALUES["{input_.name}"]'
        return f"{text}.requires_grad_()" if input_.requires_grad and not plain else text
    shape, suffix = _dense_shape(input_)
    text = _filled(input_, shape)
    grad = input_.requires_grad and not plain
    if grad and not suffix and input_.fill in ("randn", "rand", "zeros", "ones"):
        return text[:-1] + ", requires_grad=True)"
    return text + suffix + (".requires_grad_()" if grad else "")


def _filled(input_: Input, shape: tuple[int, ...]) -> str:
    dtype = "" if input_.dtype is torch.get_default_dtype() else f", dtype={input_.dtype}"
    sizes = ", ".join(map(str, shape))
    total = torch.Size(shape).numel()
    if input_.fill == "literal":
        values = input_.values
        assert values is not None
        return f"torch.tensor({_numbers(values.tolist())}{_literal_dtype(input_)})"
    if input_.fill == "arange":
        kind = "" if input_.dtype is torch.int64 else f", dtype={input_.dtype}"
        if input_.dtype is torch.float32:
            kind = ".0"
        text = f"torch.arange({total}{kind})"
        return text if len(shape) == 1 else f"{text}.reshape({sizes})"
    if input_.fill == "randint":
        kind = "" if input_.dtype is torch.int64 else f", dtype={input_.dtype}"
        if input_.dtype is torch.bool:
            return f"torch.rand({sizes or '()'}) > 0.5" if not shape else f"(torch.rand({sizes}) > 0.5)"
        return f"torch.randint({highest(input_) + 1}, ({sizes}{',' if len(shape) == 1 else ''}){kind})"
    if input_.fill == "tril":
        return f"torch.ones({sizes}{dtype}).tril()"
    if input_.fill in ("randn", "rand") and not input_.dtype.is_floating_point and not input_.dtype.is_complex:
        raise ValueError(f"{input_.dtype} has no {input_.fill}")
    return f"torch.{input_.fill}({sizes or '()'}{dtype})"


def _literal_dtype(input_: Input) -> str:
    inferred = (
        torch.tensor(input_.values.tolist()).dtype if input_.values is not None and input_.values.numel() else None
    )
    return "" if inferred is input_.dtype else f", dtype={input_.dtype}"


def _numbers(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_numbers(part) for part in value)}]"
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            return f'float("{value}")'
        short = f"{value:.4g}"
        return repr(float(short)) if float(short) == value else repr(value)
    return repr(value)


def highest(input_: Input) -> int:
    """The largest recorded whole number; 1 if there is none above it."""
    if input_.values is None or not input_.values.numel():
        return 1
    return max(1, int(input_.values.max()))


def is_contiguous(input_: Input) -> bool:
    """Return whether the strides are those of a fresh tensor of its shape (where there is more than one element)."""
    return _same_strides(input_.shape, input_.stride, contiguous_strides(input_.shape))


def contiguous(input_: Input) -> Input:
    """The same input, freshly laid out."""
    values = input_.values.contiguous() if input_.values is not None else None
    return replace(input_, stride=contiguous_strides(input_.shape), values=values)


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a fresh tensor of that shape."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _same_strides(shape: tuple[int, ...], stride: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    if 0 in shape:
        return True
    return all(a == b for size, a, b in zip(shape, stride, expected, strict=True) if size > 1)


def _dense_shape(input_: Input) -> tuple[tuple[int, ...], str]:
    """The shape of a fresh tensor, and the method calls that give it the input's strides."""
    if is_contiguous(input_):
        return input_.shape, ""
    expanded = [
        d for d, (size, step) in enumerate(zip(input_.shape, input_.stride, strict=True)) if size > 1 and step == 0
    ]
    if expanded:
        shape = tuple(1 if d in expanded else size for d, size in enumerate(input_.shape))
        inner, suffix = _dense_shape(replace(input_, shape=shape, values=None))
        return inner, f"{suffix}.expand({', '.join(map(str, input_.shape))})"
    order = sorted(range(len(input_.shape)), key=lambda d: (-input_.stride[d], d))
    shape = tuple(input_.shape[d] for d in order)
    if _same_strides(shape, tuple(input_.stride[d] for d in order), contiguous_strides(shape)):
        back = [order.index(d) for d in range(len(order))]
        moved = [d for d, place in enumerate(back) if place != d]
        if len(moved) == 2:
            return shape, f".transpose({moved[0]}, {moved[1]})"
        return shape, f".permute({', '.join(map(str, back))})"
    reach = 1 + sum((size - 1) * step for size, step in zip(input_.shape, input_.stride, strict=True))
    return (reach,), f".as_strided({input_.shape}, {input_.stride})"


def fills(input_: Input) -> list[Fill]:
    """The fills to try for an input, the plainest first."""
    if input_.dtype is torch.bool:
        choices: list[Fill] = ["ones", "zeros", "randint"]
        if len(input_.shape) >= 2:
            choices.insert(2, "tril")
    elif input_.dtype.is_floating_point or input_.dtype.is_complex:
        choices = ["randn", "ones", "zeros", "arange", "rand"]
        choices = [fill for fill in choices if not (input_.dtype.is_complex and fill == "arange")]
    else:
        choices = ["arange", "zeros", "ones", "randint"]
    if torch.Size(input_.shape).numel() <= MOST_LITERALS and input_.values is not None:
        choices.append("literal")
    return choices


def resized(input_: Input, shape: tuple[int, ...]) -> Input:
    """The input with another shape, laid out in the same order of dimensions; recorded values are cropped."""
    if shape == input_.shape:
        return input_
    expanded = [size > 1 and step == 0 for size, step in zip(input_.shape, input_.stride, strict=True)]
    order = sorted(range(len(shape)), key=lambda d: (-input_.stride[d], d))
    dense = contiguous_strides(tuple(1 if expanded[d] else shape[d] for d in order))
    stride = tuple(0 if expanded[d] else dense[order.index(d)] for d in range(len(shape)))
    if input_.values is None:
        return replace(input_, shape=shape, stride=stride)
    if any(new > old for new, old in zip(shape, input_.shape, strict=True)):
        return replace(
            input_, shape=shape, stride=stride, values=None, fill="randn" if input_.fill == "recorded" else input_.fill
        )
    cropped = input_.values[tuple(slice(0, size) for size in shape)]
    count = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) if 0 not in shape else 0
    values = torch.empty(count, dtype=input_.dtype).as_strided(shape, stride)
    if True in expanded:
        index = tuple(slice(0, 1) if wide else slice(None) for wide in expanded)
        values[index].copy_(cropped[index])
    else:
        values.copy_(cropped)
    return replace(input_, shape=shape, stride=stride, values=values)
