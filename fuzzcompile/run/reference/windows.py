"""Pools and convolutions by their definition, in NumPy: what moves a window over the last dimensions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from fuzzcompile.run.reference.formula_call import Array, Formula, FormulaCall


def repeat_size(sizes: Any, dimensions: int) -> tuple[int, ...]:
    """Sizes for so many dimensions, of which one number, or a list of it, stands for all."""
    listed = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    return listed * dimensions if len(listed) == 1 else listed


# A mean over windows of several dimensions is a mean along each: a matrix with a row for each place of the window.


def _cover(length: int, kernel: int, stride: int, padding: int, *, ceil: bool) -> tuple[Array, Array]:
    """Which places of a dimension each window covers (window × place), and how many with the padding.

    With ``ceil``, a last window may begin inside, and end behind the padding, which then counts up to its end.
    """
    steps = (length + 2 * padding - kernel) / stride
    windows = (math.ceil(steps) if ceil else math.floor(steps)) + 1
    if ceil and (windows - 1) * stride >= length + padding:
        windows -= 1
    starts = np.arange(windows)[:, None] * stride - padding
    places = np.arange(length)
    covered = (places >= starts) & (places < starts + kernel)
    return covered.astype(np.float64), (np.minimum(starts + kernel, length + padding) - starts)[:, 0]


def _adapt(length: int, windows: int) -> Array:
    """Which places of a dimension each window of ``adaptive_avg_pool`` covers (window × place)."""
    starts = np.arange(windows) * length // windows
    ends = -(-(np.arange(windows) + 1) * length // windows)
    places = np.arange(length)
    return ((places >= starts[:, None]) & (places < ends[:, None])).astype(np.float64)


def _apply(matrices: Sequence[Array], x: Array) -> Array:
    """The product with a matrix along each of the last dimensions."""
    for axis, matrix in enumerate(matrices, x.ndim - len(matrices)):
        x = np.moveaxis(np.tensordot(matrix, x, (1, axis)), 0, axis)
    return x


def _multiply(counts: Sequence[Array]) -> Array:
    """The product of a number for each window of each dimension."""
    product = np.ones(())
    for each in counts:
        product = product[..., None] * each
    return product


# The windows of each dimension as matrices, and what the sum over a window is divided by.
_Means: TypeAlias = Callable[[FormulaCall], tuple[list[Array], Any]]


def _prepare_means(dimensions: int) -> _Means:
    def prepare(call: FormulaCall) -> tuple[list[Array], Any]:
        kernel, padding = (repeat_size(each, dimensions) for each in (call.kernel_size, call.padding or 0))
        stride = repeat_size(call.stride or kernel, dimensions)
        given = zip(call.x.shape[-dimensions:], kernel, stride, padding, strict=True)
        covers = [_cover(*each, ceil=bool(call.ceil_mode)) for each in given]
        matrices = [covered for covered, _ in covers]
        if call.divisor_override is not None:
            return matrices, call.divisor_override
        padded = call.count_include_pad is not False
        return matrices, _multiply([counts if padded else covered.sum(1) for covered, counts in covers])

    return prepare


def _prepare_adapted_means(dimensions: int) -> _Means:
    def prepare(call: FormulaCall) -> tuple[list[Array], Any]:
        windows = call.grad_output.shape[-dimensions:] if call.output_size is None else call.output_size
        matrices = [_adapt(*each) for each in zip(call.x.shape[-dimensions:], windows, strict=True)]
        return matrices, _multiply([matrix.sum(1) for matrix in matrices])

    return prepare


def _average(prepare: _Means) -> Formula:
    def pool(call: FormulaCall) -> Any:
        matrices, divisor = prepare(call)
        return _apply(matrices, call.x) / divisor

    return pool


def _average_backward(prepare: _Means) -> Formula:
    def pool(call: FormulaCall) -> Any:
        matrices, divisor = prepare(call)
        return _apply([matrix.T for matrix in matrices], call.grad_output / divisor)

    return pool


class _Convolution:
    """The windows of a convolution's call, one offset in the kernel at a time: ``x`` has a dimension for the groups."""

    def __init__(self, call: FormulaCall) -> None:
        self.weight, self.groups, self.transposed = call.weight, call.groups, bool(call.transposed)
        self.dimensions = call.weight.ndim - 2
        names = ("stride", "padding", "dilation", "output_padding")
        settings = (repeat_size(call.given(name), self.dimensions) for name in names)
        self.stride, self.padding, self.dilation, self.beyond = settings
        # How far a window reaches along each dimension.
        self.reach = [d * (k - 1) + 1 for d, k in zip(self.dilation, self.weight.shape[2:], strict=True)]

    def split(self, x: Array) -> Array:
        """(batch, groups, channels of one, …) of (batch, channels, …)."""
        apart: Array = x.reshape(x.shape[0], self.groups, -1, *x.shape[2:])
        return apart

    def split_weight(self) -> Array:
        """(groups, the first channels of one, the second, …): out and in, or in and out if it is transposed."""
        apart: Array = self.weight.reshape(self.groups, -1, *self.weight.shape[1:])
        return apart

    def iterate_offsets(self, windows: Sequence[int]) -> Iterator[Any]:
        """Each place in the kernel, and the places of the padded input that it meets in all windows."""
        steps = zip(self.dilation, self.stride, windows, strict=True)
        ranges = [(dilation, stride, stride * (count - 1) + 1) for dilation, stride, count in steps]
        for offset in itertools.product(*map(range, self.weight.shape[2:])):
            pairs = zip(offset, ranges, strict=True)
            met = [slice(o * dilation, o * dilation + span, stride) for o, (dilation, stride, span) in pairs]
            yield offset, (..., *met)

    def find_sizes(self, windows: Sequence[int]) -> list[int]:
        """The sizes of the input whose windows, and no more, these are."""
        given = zip(windows, self.stride, self.padding, self.reach, self.beyond, strict=True)
        return [(n - 1) * s - 2 * p + reach + beyond for n, s, p, reach, beyond in given]

    def pad(self, x: Array) -> Array:
        """The input with its padding."""
        padded: Array = np.pad(x, [(0, 0)] * (x.ndim - self.dimensions) + [(each, each) for each in self.padding])
        return padded

    def gather(self, x: Array) -> Array:
        """The sum over each window of an input, weighted; groups apart."""
        padded, weight = self.pad(x), self.split_weight()
        sizes = zip(padded.shape[-self.dimensions :], self.reach, self.stride, strict=True)
        offsets = self.iterate_offsets([(size - reach) // stride + 1 for size, reach, stride in sizes])
        sums: Array = sum(np.einsum("ngi...,goi->ngo...", padded[met], weight[..., *at]) for at, met in offsets)
        return sums

    def spread(self, x: Array, sizes: Sequence[int]) -> Array:
        """What each window gives to an input of these sizes, weighted; groups apart."""
        weight = self.split_weight()
        terms = "ngi...,gio->ngo..." if self.transposed else "ngo...,goi->ngi..."
        channels = weight.shape[2]
        whole = [size + 2 * padding for size, padding in zip(sizes, self.padding, strict=True)]
        out = np.zeros((*x.shape[:2], channels, *whole), np.result_type(x, weight))
        for at, met in self.iterate_offsets(x.shape[-self.dimensions :]):
            out[met] += np.einsum(terms, x, weight[..., *at])
        kept: list[Any] = [slice(padding, padding + size) for size, padding in zip(sizes, self.padding, strict=True)]
        return out[(..., *kept)]


def _join_groups(x: Array) -> Array:
    return x.reshape(x.shape[0], -1, *x.shape[3:])


def _convolve(call: FormulaCall) -> Any:
    made = _Convolution(call)
    x = made.split(call.input)
    if made.transposed:
        given = zip(
            x.shape[3:], made.stride, made.padding, made.dilation, made.weight.shape[2:], made.beyond, strict=True
        )
        result = made.spread(x, [(n - 1) * s - 2 * p + d * (k - 1) + b + 1 for n, s, p, d, k, b in given])
    else:
        result = made.gather(x)
    result = _join_groups(result)
    return result if call.bias is None else result + call.bias.reshape(-1, *[1] * made.dimensions)


def _convolve_backward(call: FormulaCall) -> Any:
    made, wanted = _Convolution(call), call.output_mask
    if made.transposed:
        return None
    x, grad = made.split(call.input), made.split(call.grad_output)
    of_weight = np.zeros(made.split_weight().shape)
    padded = made.pad(x)
    for at, met in made.iterate_offsets(grad.shape[3:]):
        terms = np.einsum("ngi...,ngo...->goi...", padded[met], grad)
        of_weight[..., *at] = terms.sum(tuple(range(3, terms.ndim)))
    of_bias = call.grad_output.sum((0, *range(2, call.grad_output.ndim)))
    grads = (_join_groups(made.spread(grad, x.shape[3:])), of_weight.reshape(call.weight.shape), of_bias)
    return tuple(each if asked else None for each, asked in zip(grads, wanted, strict=True))


_AVERAGES = {
    f"{name}{dimensions}d": prepare(dimensions)
    for name, prepare in (("avg_pool", _prepare_means), ("_adaptive_avg_pool", _prepare_adapted_means))
    for dimensions in (2, 3)
}

WINDOWS: Mapping[str, Formula] = {
    **{name: _average(prepare) for name, prepare in _AVERAGES.items()},
    **{f"{name}_backward": _average_backward(prepare) for name, prepare in _AVERAGES.items()},
    "convolution": _convolve,
    "convolution_backward": _convolve_backward,
}
"""By the name of the operator, as in :data:`~fuzzcompile.run.reference.formulas.FORMULAS`."""
