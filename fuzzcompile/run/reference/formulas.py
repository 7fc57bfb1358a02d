"""ATen operators by their definition, in NumPy: opinions that share no kernel with torch.

Each formula gets the arguments of a call by name, tensors as NumPy arrays in float64 or integers, and returns the
result, or a tuple of results with None for one that it has no opinion on. The definitions are those of torch's public
documentation (https://docs.pytorch.org/docs/stable/torch.html) and of the operators' schemas. An operator without a row
here has no formula; one whose documentation leaves the result open (which index of several equal ones, the order in
which duplicates are written) has none on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from fuzzcompile.run.reference.formula_call import Array, Formula, FormulaCall
from fuzzcompile.run.reference.polynomials import POLYNOMIALS
from fuzzcompile.run.reference.windows import WINDOWS

Norm: TypeAlias = Literal["backward", "ortho", "forward"]
_erf, _erfc = np.frompyfunc(math.erf, 1, 1), np.frompyfunc(math.erfc, 1, 1)


def erf(x: Array) -> Array:
    """The error function, by Python's."""
    return _in_float64(_erf(x))


def _in_float64(x: Any) -> Array:
    """What a function of Python's made of an array."""
    converted: Array = np.positive(x, dtype=np.float64, casting="unsafe")
    return converted


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _normal(x: Array) -> Array:
    return np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def _gelu(call: FormulaCall) -> Any:
    x = call.x
    if call.approximate == "tanh":
        return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x / 2 * (1 + erf(x / math.sqrt(2)))


def _gelu_backward(call: FormulaCall) -> Any:
    x = call.x
    if call.approximate == "tanh":
        factor = math.sqrt(2 / math.pi)
        tanh = np.tanh(factor * (x + 0.044715 * x**3))
        inner = factor * (1 + 3 * 0.044715 * x**2)
        return call.grad_output * ((1 + tanh) / 2 + x / 2 * (1 - tanh**2) * inner)
    return call.grad_output * ((1 + erf(x / math.sqrt(2))) / 2 + x * _normal(x))


def _silu_backward(call: FormulaCall) -> Any:
    gate = _sigmoid(call.x)
    return call.grad_output * _conjugate(gate * (1 + call.x * (1 - gate)))


def _conjugate(derivative: Any) -> Any:
    """The factor of a gradient: torch's gradient of a complex function has the conjugate of its derivative."""
    return np.conjugate(derivative) if derivative.dtype.kind == "c" else derivative


def _divide(call: FormulaCall) -> Any:
    quotient = np.true_divide(call.x, call.other)
    if call.rounding_mode is None:
        return quotient
    if _is_whole(call.x) and _is_whole(call.other):
        floor = np.floor_divide(call.x, call.other)
        uneven = np.remainder(call.x, call.other) != 0
        return floor if call.rounding_mode == "floor" else floor + (uneven & (quotient < 0))
    return np.floor_divide(call.x, call.other) if call.rounding_mode == "floor" else np.trunc(quotient)


def _is_whole(value: Any) -> bool:
    return np.asarray(value).dtype.kind in "iub"


def _clamp(call: FormulaCall) -> Any:
    x = call.x
    x = x if call.min is None else np.maximum(x, call.min)
    return x if call.max is None else np.minimum(x, call.max)


def _scaled(call: FormulaCall, product: Any) -> Any:
    beta, alpha = call.with_default("beta", 1), call.with_default("alpha", 1)
    if _is_whole(product) and not (float(alpha).is_integer() and float(beta).is_integer()):
        return None  # of whole numbers, torch asks for whole factors
    return alpha * product + (beta * call.x if beta else 0)


# -- reductions -------------------------------------------------------------------------------------------------------


def _reduce(function: Callable[..., Any]) -> Formula:
    return lambda call: function(call.x, axis=call.axes, keepdims=call.keepdim)


def _variance(call: FormulaCall) -> Any:
    correction = call.with_default("correction", 0 if call.unbiased is False else 1)
    return np.var(call.x, axis=call.axes, keepdims=call.keepdim, ddof=correction)


def _log_sum_exp(x: Array, axis: Any, keepdims: bool) -> Any:
    largest = np.max(x, axis=axis, keepdims=True)
    shift = np.where(np.isfinite(largest), largest, 0)
    total = np.log(np.sum(np.exp(x - shift), axis=axis, keepdims=True)) + shift
    return total if keepdims else np.squeeze(total, axis=axis)


def _vector_norm(call: FormulaCall) -> Any:
    order, size = call.with_default("ord", 2), np.abs(call.x)
    if order == math.inf:
        return np.max(size, axis=call.axes, keepdims=call.keepdim)
    if order in (0, -math.inf):
        return None
    return np.sum(size**order, axis=call.axes, keepdims=call.keepdim) ** (1 / order)


def _softmax(x: Array, dim: int) -> Any:
    return np.exp(_log_softmax(x, dim))


def _log_softmax(x: Array, dim: int) -> Any:
    return x - np.logaddexp.reduce(x, axis=dim, keepdims=True)


def _sort(call: FormulaCall) -> Any:
    dim = call.with_default("dim", -1)
    ordered = np.sort(call.x, axis=dim)
    return (np.flip(ordered, dim) if call.descending else ordered), None


# -- indices ----------------------------------------------------------------------------------------------------------


def _grid(index: Array, dim: int) -> tuple[Array, ...]:
    """The places that an index along a dimension means: one array of coordinates for each dimension."""
    places = np.indices(index.shape)
    places[dim] = index
    return tuple(places)


def _aim(call: FormulaCall) -> tuple[tuple[Array, ...], Array, Any]:
    """The places that an index writes to, how many values each place of the result gets, and these values."""
    grid, counts = _grid(call.index, call.dim % call.x.ndim), np.zeros(call.x.shape, int)
    np.add.at(counts, grid, 1)
    source = call.value if call.src is None else call.src[tuple(slice(size) for size in call.index.shape)]
    return grid, counts, source


def _scatter_add(call: FormulaCall) -> Any:
    out, (grid, _, source) = call.x.copy(), _aim(call)
    np.add.at(out, grid, source)
    return out


def _scatter(call: FormulaCall) -> Any:
    """None where two values are written to one place: which of them stays is open."""
    out, (grid, counts, source) = call.x.copy(), _aim(call)
    if call.given("reduce") is not None or (counts > 1).any():
        return None
    out[grid] = source
    return out


def _scatter_reduce(call: FormulaCall) -> Any:
    """None of whole numbers that are averaged, or have no value to begin with."""
    out, (grid, counts, source) = call.x.copy(), _aim(call)
    included = call.include_self is not False
    if out.dtype.kind != "f" and (call.reduce == "mean" or not included):
        return None
    ways: dict[str, tuple[Any, float]] = {
        "sum": (np.add, 0), "mean": (np.add, 0), "prod": (np.multiply, 1),
        "amax": (np.maximum, -np.inf), "amin": (np.minimum, np.inf),
    }  # fmt: skip
    combine, neutral = ways[call.reduce]
    if not included:
        out[counts > 0] = neutral
    combine.at(out, grid, source)
    if call.reduce == "mean":
        out /= np.maximum(counts + included, 1)
    return out


def _masked_scatter(call: FormulaCall) -> Any:
    out, mask = np.broadcast_arrays(call.x, call.mask)
    out = out.copy()
    out[mask] = call.source.reshape(-1)[: mask.sum()]
    return out


def _top(call: FormulaCall) -> Any:
    """The values; which of several equal ones an index names is open, and the order where none is asked for."""
    if call.sorted is False or not call.x.ndim:
        return None
    ordered = np.sort(call.x, call.dim)
    kept = np.flip(ordered, call.dim) if call.largest is not False else ordered
    return np.take(kept, np.arange(call.k), call.dim), None


def _distances(differences: Array, order: float) -> Any:
    """The norm of an order along the last dimension."""
    if order == 0:
        return (differences != 0).sum(-1).astype(np.float64)
    sizes = np.abs(differences)
    return sizes.max(-1, initial=0.0) if math.isinf(order) else (sizes**order).sum(-1) ** (1 / order)


def _pair_distances(call: FormulaCall) -> Any:
    first, second = np.triu_indices(len(call.x), 1)
    return _distances(call.x[first] - call.x[second], call.p)


def _fourier(transform: Callable[..., Any], *, inverse: bool) -> Formula:
    """Normalised by nothing (0), the root of the number of points (1), or that number (2)."""

    def formula(call: FormulaCall) -> Any:
        axes, whole = tuple(call.dim), call.last_dim_size
        sizes = [call.x.shape[axis] for axis in axes]
        if whole is not None:
            sizes[-1] = whole
        backward = inverse or call.forward is False
        unscaled: tuple[Norm, Norm] = ("forward", "backward") if backward else ("backward", "forward")
        norm: dict[int, Norm] = {0: unscaled[0], 1: "ortho", 2: unscaled[1]}
        function = np.fft.ifftn if call.forward is False else np.fft.fftn if call.onesided is False else transform
        return function(call.x, sizes, axes, norm=norm[call.normalization])

    return formula


def _index_add(call: FormulaCall) -> Any:
    out = call.x.copy()
    added = np.moveaxis(call.source, call.dim, 0) * call.with_default("alpha", 1)
    np.add.at(np.moveaxis(out, call.dim, 0), call.index, added)
    return out


def _chosen(indices: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(slice(None) if index is None else index for index in indices)


def _index_put(call: FormulaCall) -> Any:
    out = call.x.copy()
    if call.accumulate:
        np.add.at(out, _chosen(call.indices), call.values)
        return out
    places = np.arange(out.size).reshape(out.shape)[_chosen(call.indices)]
    if np.unique(places).size != places.size:
        return None
    out[_chosen(call.indices)] = call.values
    return out


def _embedding_backward(call: FormulaCall) -> Any:
    if call.scale_grad_by_freq:
        return None
    grad = call.grad_output.reshape(-1, call.grad_output.shape[-1])
    out, index = np.zeros((call.num_weights, grad.shape[1])), call.indices.reshape(-1)
    np.add.at(out, index[index != call.padding_idx], grad[index != call.padding_idx])
    return out


def _pad(call: FormulaCall) -> Any:
    pairs = list(zip(call.pad[::2], call.pad[1::2], strict=True))
    if min(call.pad, default=0) < 0:
        return None
    around = [(0, 0)] * (call.x.ndim - len(pairs)) + pairs[::-1]
    return np.pad(call.x, around, constant_values=call.with_default("value", 0))


def _max_pool_backward(call: FormulaCall) -> Any:
    """Each gradient goes to the place in its plane that its index names (``max_pool2d``, ``return_indices``)."""
    planes, spatial = call.x.shape[:-2], call.x.shape[-2:]
    out = np.zeros((math.prod(planes), math.prod(spatial)))
    index, grad = (value.reshape(out.shape[0], -1) for value in (call.indices, call.grad_output))
    np.add.at(out, (np.arange(out.shape[0])[:, None], index), grad)
    return out.reshape(call.x.shape)


# -- norms ------------------------------------------------------------------------------------------------------------


def _normalize(x: Array, axes: tuple[int, ...], eps: float) -> tuple[Array, Array, Array]:
    """Return the normalised values, and mean and reciprocal standard deviation with their dimensions kept."""
    mean = x.mean(axes, keepdims=True)
    scale = 1 / np.sqrt(x.var(axes, keepdims=True) + eps)
    return (x - mean) * scale, mean, scale


def _normalize_backward(grad: Array, x: Array, mean: Array, scale: Array, axes: tuple[int, ...]) -> Array:
    """The gradient of a normalisation whose mean and scale depend on its input."""
    normal = (x - mean) * scale
    constant, along = (value.mean(axes, keepdims=True) for value in (grad, grad * normal))
    result: Array = scale * (grad - constant - normal * along)
    return result


def _affine(normal: Array, weight: Any, bias: Any, shape: tuple[int, ...]) -> Array:
    normal = normal if weight is None else normal * weight.reshape(shape)
    return normal if bias is None else normal + bias.reshape(shape)


def _layer_norm(call: FormulaCall) -> Any:
    axes = tuple(range(-len(call.normalized_shape), 0))
    normal, mean, scale = _normalize(call.input, axes, call.eps)
    return _affine(normal, call.weight, call.bias, tuple(call.normalized_shape)), mean, scale


def _layer_norm_backward(call: FormulaCall) -> Any:
    count = len(call.normalized_shape)
    axes, before = tuple(range(-count, 0)), tuple(range(call.input.ndim - count))
    inner = call.grad_out if call.weight is None else call.grad_out * call.weight
    normal = (call.input - call.mean) * call.rstd
    results = (
        _normalize_backward(inner, call.input, call.mean, call.rstd, axes),
        (call.grad_out * normal).sum(before),
        call.grad_out.sum(before),
    )
    return _masked(results, call.output_mask)


def _masked(results: Sequence[Any], mask: Sequence[bool] | None) -> tuple[Any, ...]:
    return tuple(
        result if mask is None or wanted else None for result, wanted in zip(results, mask or results, strict=False)
    )


def _channels(x: Array) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The dimensions that a batch norm reduces, and the shape in which one number a channel meets its input."""
    return (0, *range(2, x.ndim)), (1, -1, *(1,) * (x.ndim - 2))


def _batch_norm(call: FormulaCall) -> Any:
    axes, shape = _channels(call.input)
    if call.training:
        normal, mean, scale = _normalize(call.input, axes, call.eps)
        return _affine(normal, call.weight, call.bias, shape), mean.reshape(-1), scale.reshape(-1)
    scale = 1 / np.sqrt(call.running_var + call.eps)
    normal = (call.input - call.running_mean.reshape(shape)) * scale.reshape(shape)
    return _affine(normal, call.weight, call.bias, shape), None, None


def _batch_norm_backward(call: FormulaCall) -> Any:
    axes, shape = _channels(call.input)
    mean, scale = call.save_mean, call.save_invstd
    if not call.train:
        mean, scale = call.running_mean, 1 / np.sqrt(call.running_var + call.eps)
    mean, scale = mean.reshape(shape), scale.reshape(shape)
    inner = call.grad_out if call.weight is None else call.grad_out * call.weight.reshape(shape)
    moved = _normalize_backward(inner, call.input, mean, scale, axes) if call.train else inner * scale
    normal = (call.input - mean) * scale
    results = (moved, (call.grad_out * normal).sum(axes), call.grad_out.sum(axes))
    return _masked(results, call.output_mask)


def _group_norm(call: FormulaCall) -> Any:
    grouped = call.input.reshape(call.N, call.group, -1)
    normal, mean, scale = _normalize(grouped, (2,), call.eps)
    normal = normal.reshape(call.input.shape)
    shape = (1, -1, *(1,) * (call.input.ndim - 2))
    return _affine(normal, call.weight, call.bias, shape), mean.reshape(call.N, -1), scale.reshape(call.N, -1)


def _group_norm_backward(call: FormulaCall) -> Any:
    shape = (1, -1, *(1,) * (call.input.ndim - 2))
    mean, scale = (value.reshape(call.N, call.group, 1) for value in (call.mean, call.rstd))
    inner = call.grad_out if call.weight is None else call.grad_out * call.weight.reshape(shape)
    grouped, grad = (value.reshape(call.N, call.group, -1) for value in (call.input, inner))
    moved = _normalize_backward(grad, grouped, mean, scale, (2,)).reshape(call.input.shape)
    normal = ((grouped - mean) * scale).reshape(call.input.shape)
    axes = (0, *range(2, call.input.ndim))
    return _masked((moved, (call.grad_out * normal).sum(axes), call.grad_out.sum(axes)), call.output_mask)


def _reduce_loss(losses: Array, reduction: int) -> Any:
    return (lambda: losses, losses.mean, losses.sum)[reduction]()


def _of_one(function: Any) -> Formula:
    return lambda call: function(call.x)


def _of_two(function: Callable[[Any, Any], Any]) -> Formula:
    return lambda call: function(call.x, call.other)


FORMULAS: dict[str, Formula] = {
    # one tensor, element by element
    **{name: _of_one(function) for name, function in {
        "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log10": np.log10,
        "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
        "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh,
        "acosh": np.arccosh, "atanh": np.arctanh, "sqrt": np.sqrt, "neg": np.negative, "abs": np.abs,
        "sign": np.sign, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "isnan": np.isnan, "isinf": np.isinf,
        "logical_not": np.logical_not, "bitwise_not": np.invert, "erf": erf, "sigmoid": _sigmoid,
        "erfc": lambda x: _in_float64(_erfc(x)),
        "rsqrt": lambda x: 1 / np.sqrt(x), "reciprocal": lambda x: 1 / x, "relu": lambda x: np.maximum(x, 0),
        "silu": lambda x: x * _sigmoid(x), "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
        "hardsigmoid": lambda x: np.clip(x + 3, 0, 6) / 6, "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    }.items()},
    **POLYNOMIALS,
    "round": lambda call: np.round(call.x, call.decimals or 0),
    "gelu": _gelu,
    "leaky_relu": lambda call: np.where(call.x > 0, call.x, call.x * call.with_default("negative_slope", 0.01)),
    "hardtanh": lambda call: np.clip(call.x, call.with_default("min_val", -1), call.with_default("max_val", 1)),
    "clamp": _clamp,
    "clamp_min": lambda call: np.maximum(call.x, call.min),
    "clamp_max": lambda call: np.minimum(call.x, call.max),
    "masked_fill": lambda call: np.where(call.mask, call.value, call.x),
    # two and three, element by element
    **{name: _of_two(function) for name, function in {
        "mul": np.multiply, "pow": np.power, "atan2": np.arctan2, "maximum": np.maximum, "minimum": np.minimum,
        "fmax": np.fmax, "fmin": np.fmin, "fmod": np.fmod, "remainder": np.remainder, "hypot": np.hypot,
        "copysign": np.copysign, "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
        "gt": np.greater, "ge": np.greater_equal, "logical_and": np.logical_and, "logical_or": np.logical_or,
        "logical_xor": np.logical_xor, "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or,
        "bitwise_xor": np.bitwise_xor,
    }.items()},
    "pow": lambda call: np.power(call.x, call.exponent),
    "add": lambda call: call.x + call.with_default("alpha", 1) * call.other,
    "sub": lambda call: call.x - call.with_default("alpha", 1) * call.other,
    "rsub": lambda call: call.other - call.with_default("alpha", 1) * call.x,
    "div": _divide,
    "where": lambda call: np.where(call.condition, call.x, call.other),
    "lerp": lambda call: call.x + call.weight * (call.end - call.x),
    "addcmul": lambda call: call.x + call.with_default("value", 1) * call.tensor1 * call.tensor2,
    "addcdiv": lambda call: call.x + call.with_default("value", 1) * (call.tensor1 / call.tensor2),
    # reductions and scans
    "sum": _reduce(np.sum),
    "mean": _reduce(np.mean),
    "prod": _reduce(np.prod),
    "amax": _reduce(np.max),
    "amin": _reduce(np.min),
    "argmax": lambda call: np.asarray(np.argmax(call.x, axis=call.dim, keepdims=call.keepdim)),
    "argmin": lambda call: np.asarray(np.argmin(call.x, axis=call.dim, keepdims=call.keepdim)),
    "any": _reduce(np.any),
    "all": _reduce(np.all),
    "max": lambda call: np.max(call.x) if call.dim is None else (np.max(call.x, call.dim, keepdims=call.keepdim), None),
    "min": lambda call: np.min(call.x) if call.dim is None else (np.min(call.x, call.dim, keepdims=call.keepdim), None),
    "var": _variance,
    "std": lambda call: np.sqrt(_variance(call)),
    "var_mean": lambda call: (_variance(call), np.mean(call.x, axis=call.axes, keepdims=call.keepdim)),
    "std_mean": lambda call: (np.sqrt(_variance(call)), np.mean(call.x, axis=call.axes, keepdims=call.keepdim)),
    # Of complex numbers, a logarithm has many values.
    "logsumexp": lambda call: None if np.iscomplexobj(call.x) else _log_sum_exp(call.x, call.axes, call.keepdim),
    "linalg_vector_norm": _vector_norm,
    "cumsum": lambda call: np.cumsum(call.x, axis=call.dim),
    "cumprod": lambda call: np.cumprod(call.x, axis=call.dim),
    "sort": _sort,
    "topk": _top,
    "nonzero": lambda call: np.argwhere(call.x),
    "_cdist_forward": lambda call: _distances(call.x1[..., :, None, :] - call.x2[..., None, :, :], call.p),
    "_pdist_forward": _pair_distances,
    "_fft_r2c": _fourier(np.fft.rfftn, inverse=False),
    "_fft_c2r": _fourier(np.fft.irfftn, inverse=True),
    "_fft_c2c": _fourier(np.fft.fftn, inverse=False),
    "_softmax": lambda call: _softmax(call.x, call.dim),
    "_log_softmax": lambda call: _log_softmax(call.x, call.dim),
    # products
    "mm": lambda call: np.matmul(call.x, call.mat2),
    "bmm": lambda call: np.matmul(call.x, call.mat2),
    "mv": lambda call: np.matmul(call.x, call.vec),
    "dot": lambda call: np.dot(call.x, call.tensor),
    "addmm": lambda call: _scaled(call, np.matmul(call.mat1, call.mat2)),
    "baddbmm": lambda call: _scaled(call, np.matmul(call.batch1, call.batch2)),
    "addmv": lambda call: _scaled(call, np.matmul(call.mat, call.vec)),
    # places
    "gather": lambda call: call.x[_grid(call.index, call.dim % call.x.ndim)] if call.x.ndim else None,
    "index_select": lambda call: np.take(call.x, call.index, axis=call.dim),
    "index": lambda call: call.x[_chosen(call.indices)],
    "embedding": lambda call: call.weight[call.indices],
    "embedding_dense_backward": _embedding_backward,
    "scatter": _scatter,
    "scatter_add": _scatter_add,
    "scatter_reduce": _scatter_reduce,
    "masked_scatter": _masked_scatter,
    "index_add": _index_add,
    "index_put": _index_put,
    "flip": lambda call: np.flip(call.x, tuple(call.dims)),
    "roll": lambda call: np.roll(call.x, tuple(call.shifts), tuple(call.dims) or None),
    "cat": lambda call: np.concatenate([part for part in call.tensors if part.shape != (0,)], axis=call.dim),
    "stack": lambda call: np.stack(call.tensors, axis=call.dim),
    "constant_pad_nd": _pad,
    "tril": lambda call: np.tril(call.x, call.with_default("diagonal", 0)),
    "triu": lambda call: np.triu(call.x, call.with_default("diagonal", 0)),
    "repeat": lambda call: np.tile(call.x, tuple(call.repeats)),
    **WINDOWS,
    "max_pool2d_with_indices_backward": _max_pool_backward,
    "adaptive_max_pool2d_backward": _max_pool_backward,
    # norms and losses
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "native_batch_norm": _batch_norm,
    "native_batch_norm_backward": _batch_norm_backward,
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_backward,
    "mse_loss": lambda call: _reduce_loss((call.x - call.target) ** 2, call.with_default("reduction", 1)),
    # gradients, element by element
    "tanh_backward": lambda call: call.grad_output * _conjugate(1 - call.output**2),
    "sigmoid_backward": lambda call: call.grad_output * _conjugate(call.output * (1 - call.output)),
    "threshold_backward": lambda call: np.where(call.x > call.threshold, call.grad_output, 0),
    "gelu_backward": _gelu_backward,
    "silu_backward": _silu_backward,
    "_softmax_backward_data": lambda call: call.output
    * (call.grad_output - (call.grad_output * call.output).sum(call.dim, keepdims=True)),
    "_log_softmax_backward_data": lambda call: call.grad_output
    - np.exp(call.output) * call.grad_output.sum(call.dim, keepdims=True),
}  # fmt: skip
"""By the name of the operator, without namespace, overload and the underscore of an in-place form."""


PROPAGATING = frozenset(POLYNOMIALS)
"""Those whose formula says what comes of NaN; of the others' NaN, torch's choice is a convention."""


def apply_formula(
    operator: str, arguments: Mapping[str, Any], table: Mapping[str, Formula] | None = None
) -> tuple[Any, ...]:
    """The results of an operator's formula, None for one without an opinion; empty where it has none for the call.

    ``table`` has other formulas than those of operators.
    """
    table = FORMULAS if table is None else table
    if operator not in table:
        return ()
    try:
        with np.errstate(all="ignore"):
            given = table[operator](FormulaCall(arguments))
    except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError):
        return ()  # an overload that the formula is not made for
    return given if isinstance(given, tuple) else (given,)
