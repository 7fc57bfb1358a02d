"""Functions of ``torch.nn.functional`` by their definition, in NumPy: torch composes them of several operators.

No kernel stands for such a function, so that what is wrong about the composition shows in no operator. The definitions
are those of torch's documentation (https://docs.pytorch.org/docs/stable/nn.functional.html), as `formulas` has them of
operators: None where it leaves a result open.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fuzzcompile.run.reference.formula_call import Array, Formula, FormulaCall
from fuzzcompile.run.reference.windows import repeat_size


def _pool_norms(dimensions: int) -> Formula:
    """The norm of each window; of infinite order, the limit, which is the largest size in it."""

    def pool(call: FormulaCall) -> Any:
        x, order, axes = call.input, call.norm_type, tuple(range(-dimensions, 0))
        if call.ceil_mode or (math.isfinite(order) and np.any(x < 0) and order % 2):
            return None
        kernel = repeat_size(call.kernel_size, dimensions)
        stride = kernel if call.stride in (None, []) else repeat_size(call.stride, dimensions)
        windows = np.lib.stride_tricks.sliding_window_view(np.abs(x), kernel, axes)
        steps = tuple(slice(None, None, step) for step in stride)
        windows = windows[(slice(None),) * (x.ndim - dimensions) + steps]
        if math.isinf(order):
            return windows.max(axes) if order > 0 else windows.min(axes)
        return (windows**order).sum(axes) ** (1 / order)

    return pool


def _attend(call: FormulaCall) -> Any:
    """softmax(q kᵀ · scale + mask) v, as the documentation writes it out."""
    query, key, value, mask = call.query, call.key, call.value, call.attn_mask
    if call.dropout_p or call.enable_gqa:
        return None
    size = query.shape[-1]
    scale = call.with_default("scale", 1 / math.sqrt(size) if size else 1.0)  # of no terms, any scale makes 0
    scores = np.matmul(query, np.swapaxes(key, -1, -2)) * scale
    if call.is_causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    largest = scores.max(-1, keepdims=True)
    if not np.all(np.isfinite(largest)):
        return None  # a row that attends to nothing
    weights = np.exp(scores - largest)
    return np.matmul(weights / weights.sum(-1, keepdims=True), value)


def _cosine(call: FormulaCall) -> Any:
    first, second = np.broadcast_arrays(call.x1, call.x2)
    dim = call.with_default("dim", 1)
    sizes = [np.maximum(np.sqrt((x**2).sum(dim)), call.with_default("eps", 1e-8)) for x in (first, second)]
    return (first * second).sum(dim) / (sizes[0] * sizes[1])


def _distance(call: FormulaCall) -> Any:
    """The norm of x1 - x2 + ε over the last dimension."""
    order, apart = call.with_default("p", 2.0), np.abs(call.x1 - call.x2 + call.with_default("eps", 1e-6))
    if order <= 0 or math.isinf(order):
        return None
    return (apart**order).sum(-1, keepdims=bool(call.keepdim)) ** (1 / order)


def _normalize(call: FormulaCall) -> Any:
    order, dim = call.with_default("p", 2.0), call.with_default("dim", 1)
    if order <= 0 or math.isinf(order):
        return None
    size = (np.abs(call.input) ** order).sum(dim, keepdims=True) ** (1 / order)
    return call.input / np.maximum(size, call.with_default("eps", 1e-12))


def _reduce(losses: Array, reduction: str) -> Any:
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()


def _loss(losses: Formula) -> Formula:
    """The losses of elements, reduced; None for the arguments that `reduction` replaced."""

    def reduce(call: FormulaCall) -> Any:
        each = None if call.size_average is not None or call.reduce is not None else losses(call)
        return None if each is None else _reduce(each, call.reduction)

    return reduce


def _weighted(call: FormulaCall, losses: Array) -> Any:
    return losses if call.weight is None else None


def _huber(call: FormulaCall) -> Any:
    apart, delta = np.abs(call.input - call.target), call.delta
    return _weighted(call, np.where(apart < delta, apart**2 / 2, delta * (apart - delta / 2)))


def _smooth(call: FormulaCall) -> Any:
    apart, beta = np.abs(call.input - call.target), call.beta
    return np.where(apart < beta, apart**2 / (2 * beta), apart - beta / 2) if beta else apart


def _poisson(call: FormulaCall) -> Any:
    """Stirling's approximation stands for log target! where ``full`` asks for it and the target is more than 1."""
    x, target = call.input, call.target
    losses = np.exp(x) - target * x if call.log_input else x - target * np.log(x + call.eps)
    if call.full:
        above = np.where(target > 1, target, 1)
        constant = above * np.log(above) - above + np.log(2 * math.pi * above) / 2
        losses = losses + np.where(target > 1, constant, 0)
    return losses


def _gaussian(call: FormulaCall) -> Any:
    if np.ndim(call.var) != call.input.ndim:
        return None
    variance = np.maximum(call.var, call.eps)
    losses = (np.log(variance) + (call.input - call.target) ** 2 / variance) / 2
    return losses + math.log(2 * math.pi) / 2 if call.full else losses


def _divergence(call: FormulaCall) -> Any:
    """Σ target (log target - input); "batchmean" divides by the first dimension, log 0 counts for nothing."""
    x, target = call.input, call.target
    if call.size_average is not None or call.reduce is not None:
        return None
    if call.log_target:
        losses = np.exp(target) * (target - x)
    else:
        losses = np.where(target > 0, target * (np.log(np.where(target > 0, target, 1)) - x), -target * x)
    if call.reduction == "batchmean":
        return losses.sum() / losses.shape[0]
    return _reduce(losses, call.reduction)


def _rank(call: FormulaCall) -> Any:
    return np.maximum(0, -call.target * (call.input1 - call.input2) + call.margin)


def _hinge(call: FormulaCall) -> Any:
    if not np.all(np.abs(call.target) == 1):
        return None
    return np.where(call.target == 1, call.input, np.maximum(0, call.margin - call.input))


DEFINITIONS: dict[str, Formula] = {
    **{f"lp_pool{dimensions}d": _pool_norms(dimensions) for dimensions in (1, 2, 3)},
    "scaled_dot_product_attention": _attend,
    "cosine_similarity": _cosine,
    "pairwise_distance": _distance,
    "normalize": _normalize,
    "huber_loss": _loss(_huber),
    "smooth_l1_loss": _loss(_smooth),
    "poisson_nll_loss": _loss(_poisson),
    "gaussian_nll_loss": _loss(_gaussian),
    "kl_div": _divergence,
    "margin_ranking_loss": _loss(_rank),
    "hinge_embedding_loss": _loss(_hinge),
    "soft_margin_loss": _loss(lambda call: np.logaddexp(0, -call.target * call.input)),
}
"""By the name of the function in ``torch.nn.functional``."""
