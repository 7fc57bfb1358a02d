"""Fused attention kernels in plain operators: the same arguments and results, in any dtype and on any device.

The kernels that graphs call on a GPU (flash, memory efficient, cuDNN) take half or single precision only. Their
stand-ins compute :mod:`fuzzcompile.run.reference.fused_attention` and return the result in the kernel's own form.

What matches the kernel, and what does not:

- ``output`` and gradients: always, in the layout that the kernel gives them.
- ``logsumexp``: of the scaled and masked scores, natural logarithm, in the dtype of the computation. Rows of which
  every key is masked have +inf (0 on the CPU), and so have the rows that the memory efficient kernel adds as padding.
- causal masks are aligned to the top left. For two lengths torch never chooses the flash kernel, which would align
  them to the bottom right.
- dropout: the mask is drawn anew from the random state in the results, so that a backward stand-in drops what its
  forward one dropped. It is never the mask that the kernel itself would draw from that state.
- ``cum_seq_q``, ``cum_seq_k`` and debug masks are None or empty; the random state is zero without dropout.
- backward stand-ins use the ``out`` and ``logsumexp`` that they are given, as the kernels do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from fuzzcompile.run.tensors import SHORT_FLOATS

# What the MATH backend of ``torch.nn.functional.scaled_dot_product_attention`` computes, bit for bit.


def compute_scores(
    query: torch.Tensor,
    key: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    """The scaled product of ``query`` (..., L, E) and ``key`` (..., S, E), both raised, with the additive ``mask``."""
    factor = find_scale(query, scale)
    root = math.sqrt(abs(factor))
    query = query * (-root if factor < 0.0 else root)
    if is_causal:
        seen = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool, device=query.device).tril()
        mask = make_additive(seen, query.dtype)
    product = torch.matmul(query, key.transpose(-2, -1) * root)
    return product if mask is None else product.add_(mask)


def make_additive(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """A boolean mask as 0 and -inf in ``dtype``; an additive one as it is."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    taken = torch.zeros((), dtype=dtype, device=mask.device)
    left_out = torch.full((), -math.inf, dtype=dtype, device=mask.device)
    return torch.where(mask, taken, left_out)


def raise_dtype(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in the dtype that the MATH backend computes in."""
    keeps = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()  # type: ignore[no-untyped-call]
    return tensor if keeps or tensor.dtype not in SHORT_FLOATS else tensor.to(torch.float32)


def repeat_heads(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Keys or values with each head repeated; raises ValueError if ``heads`` is no multiple of those there are."""
    own = tensor.size(-3)
    if own == heads:
        return tensor
    if own == 0 or heads % own:
        raise ValueError(f"{heads} heads of the query are no multiple of {own} heads of key or value")
    return tensor.repeat_interleave(heads // own, dim=-3)


def find_scale(query: torch.Tensor, scale: float | None) -> float:
    """The factor of the scores; by default 1 / sqrt(E)."""
    if scale is not None:
        return scale
    return 1.0 / math.sqrt(query.size(-1)) if query.size(-1) else math.inf


KernelResults = tuple[torch.Tensor | int | None, ...]


# The arguments of a kernel by the names in its schema. Tensors have the shapes (batch, heads, length, width),
# ``logsumexp`` has (batch, heads, length).
KernelArguments = dict[str, Any]


_PADDED_ROWS = 32  # the memory efficient kernel rounds the length of its logsumexp up to a multiple of this


def find_stand_in(kernel: object) -> Callable[..., object] | None:
    """A function that computes the same as ``kernel`` (an ATen operator overload); None for other operators.

    It takes the arguments of the operator, by position or name, with key and value heads that divide the query's.
    """
    schema = getattr(kernel, "_schema", None)
    form = None if schema is None or schema.overload_name else _FORMS.get(schema.name.removeprefix("aten::"))
    return None if form is None else bind_to_schema(schema, form)


def bind_to_schema(schema: Any, form: Callable[[KernelArguments], object]) -> Callable[..., object]:
    """A function that gives ``form`` the arguments of an operator by their names, defaults included."""
    defaults = {argument.name: argument.default_value for argument in schema.arguments}
    return lambda *args, **kwargs: form(defaults | dict(zip(defaults, args, strict=False)) | kwargs)


def has_float64(kernel: torch._ops.OpOverload) -> bool:
    """Return whether the kernel itself computes in float64."""
    return "_for_cpu" in kernel._schema.name


@dataclass(frozen=True)
class _Problem:
    """The arguments that all kernels have in common; ``mask`` is additive."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    dropout: float
    is_causal: bool
    scale: float

    @classmethod
    def from_arguments(cls, given: KernelArguments) -> _Problem:
        query, key, value = given["query"], given["key"], given["value"]
        mask = make_additive(given.get("attn_bias", given.get("attn_mask")), query.dtype)
        scale = find_scale(query, given["scale"])
        return cls(query, key, value, mask, given["dropout_p"], given["is_causal"], scale)

    @property
    def wide(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query, key and value in the dtype of the computation, with as many heads each."""
        query, key, value = (raise_dtype(tensor) for tensor in (self.query, self.key, self.value))
        return query, repeat_heads(key, query.size(-3)), repeat_heads(value, query.size(-3))

    def scores(self) -> torch.Tensor:
        query, key, _ = self.wide
        return compute_scores(query, key, self.mask, is_causal=self.is_causal, scale=self.scale)

    def draw_kept(self, shape: torch.Size, state: tuple[int, ...]) -> torch.Tensor | float:
        """Factors of the weights: 0 for dropped ones."""
        if self.dropout <= 0.0:
            return 1.0
        generator = torch.Generator().manual_seed(hash(state) % 2**63)
        kept = torch.rand(shape, generator=generator) >= self.dropout
        return kept.to(self.query.device) * (1.0 / (1.0 - self.dropout) if self.dropout < 1.0 else 0.0)


class _Forward(NamedTuple):
    output: torch.Tensor
    logsumexp: torch.Tensor  # (..., heads, L)
    state: tuple[int, int]


def _compute_attention(given: KernelArguments, *, masked_row: float = math.inf) -> _Forward:
    """``masked_row`` is the logsumexp of a row without any key."""
    problem = _Problem.from_arguments(given)
    drawn = torch.randint(2**62, (2,)).tolist() if problem.dropout > 0.0 else (0, 0)
    state = (drawn[0], drawn[1])
    attention_scores = problem.scores()
    weights = torch.ops.aten._safe_softmax(attention_scores, -1) * problem.draw_kept(attention_scores.shape, state)
    output = torch.matmul(weights, problem.wide[2]).to(problem.query.dtype)
    logsumexp = torch.logsumexp(attention_scores, -1)
    return _Forward(output, logsumexp.masked_fill(logsumexp == -math.inf, masked_row), state)


def _run_flash(given: KernelArguments) -> KernelResults:
    (output, logsumexp, drawn), query = _compute_attention(given), given["query"]
    state = torch.tensor(drawn, dtype=torch.int64, device=query.device).to(torch.uint64)
    unused = torch.zeros((), dtype=torch.int64, device=query.device).to(torch.uint64)
    lengths = query.size(-2), given["key"].size(-2)
    return _lay_out_as(query, output), logsumexp, None, None, *lengths, state, unused, query.new_empty(0)


def _run_efficient(given: KernelArguments) -> KernelResults:
    (output, exact, state), query = _compute_attention(given), given["query"]
    length = query.size(-2)
    rows = -(-length // _PADDED_ROWS) * _PADDED_ROWS if given["compute_log_sumexp"] else 0
    logsumexp = exact.new_full((*query.shape[:-2], rows), math.inf)
    if rows:
        logsumexp[..., :length] = exact
    return _move_heads_inside(output), logsumexp, *_make_scalars(state, query)


def _run_cudnn(given: KernelArguments, *, is_cudnn: bool = True) -> KernelResults:
    (output, logsumexp, state), query = _compute_attention(given), given["query"]
    if is_cudnn or logsumexp.dim() != 3:
        logsumexp = logsumexp.unsqueeze(-1 if is_cudnn else 0)
    lengths = query.size(-2), given["key"].size(-2)
    return _lay_out_as(query, output), logsumexp, None, None, *lengths, *_make_scalars(state, query), None


def _run_cpu(given: KernelArguments) -> KernelResults:
    output, logsumexp, _ = _compute_attention(given, masked_row=0.0)
    return _lay_out_as(given["query"], output), _move_heads_inside(logsumexp)


def _make_scalars(state: tuple[int, int], query: torch.Tensor) -> list[torch.Tensor]:
    return [torch.tensor(part, dtype=torch.int64, device=query.device) for part in state]


def _run_backward(given: KernelArguments, *, heads_inside: bool = False, masks: bool = False) -> KernelResults:
    """Gradients of query, key, value and, if it ``masks``, of the mask, by the flash algorithm."""
    problem = _Problem.from_arguments(given)
    query, key, value = problem.wide
    grad, out = raise_dtype(given["grad_out"] if "grad_out" in given else given["grad_out_"]), raise_dtype(given["out"])
    attention_scores = problem.scores()
    logsumexp = given["logsumexp"].reshape(*query.shape[:-2], -1)[..., : query.size(-2)]
    weights = torch.exp(attention_scores - logsumexp.unsqueeze(-1)).masked_fill(attention_scores == -math.inf, 0.0)
    kept = problem.draw_kept(attention_scores.shape, _find_state(given))
    grad_weights = torch.matmul(grad, value.transpose(-2, -1)) * kept
    grad_scores = weights * (grad_weights - (grad * out).sum(-1, keepdim=True))
    gradients = (
        torch.matmul(grad_scores, key) * problem.scale,
        torch.matmul(grad_scores.transpose(-2, -1), query) * problem.scale,
        torch.matmul((weights * kept).transpose(-2, -1), grad),
    )
    results = list[torch.Tensor | None]()
    for gradient, like in zip(gradients, (problem.query, problem.key, problem.value), strict=True):
        summed = _ungroup_heads(gradient, like).to(like.dtype)
        results.append(_move_heads_inside(summed) if heads_inside else _lay_out_as(like, summed))
    if masks:
        mask = given["attn_bias"]
        wanted = mask is not None and given["grad_input_mask"][3]
        results.append(grad_scores.sum_to_size(mask.shape).to(mask.dtype) if wanted else None)
    return tuple(results)


def _ungroup_heads(grad: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    own = like.size(-3)
    if grad.size(-3) == own:
        return grad
    return grad.reshape(*grad.shape[:-3], own, -1, *grad.shape[-2:]).sum(-3)


def _find_state(given: KernelArguments) -> tuple[int, ...]:
    if "philox_seed" not in given or given["dropout_p"] <= 0.0:
        return ()
    parts = [int(part) for part in given["philox_seed"].reshape(-1).tolist()]
    return tuple(parts) if len(parts) > 1 else (*parts, int(given["philox_offset"]))


def _lay_out_as(like: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The values with their dimensions in the same order in memory as those of ``like``."""
    strides = like.stride()
    order = sorted(range(like.dim()), key=lambda dimension: (-strides[dimension], dimension))
    return torch.empty_permuted(values.shape, order, dtype=values.dtype, device=values.device).copy_(values)


def _move_heads_inside(values: torch.Tensor) -> torch.Tensor:
    """The values laid out as (batch, length, heads), each with its width if they have one."""
    return values.transpose(1, 2).contiguous().transpose(1, 2)


_FORMS: dict[str, Callable[[KernelArguments], KernelResults]] = {
    "_scaled_dot_product_flash_attention": _run_flash,
    "_scaled_dot_product_efficient_attention": _run_efficient,
    "_scaled_dot_product_cudnn_attention": _run_cudnn,
    "_scaled_dot_product_fused_attention_overrideable": partial(_run_cudnn, is_cudnn=False),
    "_scaled_dot_product_flash_attention_for_cpu": _run_cpu,
    "_scaled_dot_product_flash_attention_backward": _run_backward,
    "_scaled_dot_product_efficient_attention_backward": partial(_run_backward, heads_inside=True, masks=True),
    "_scaled_dot_product_cudnn_attention_backward": _run_backward,
    "_scaled_dot_product_fused_attention_overrideable_backward": partial(_run_backward, masks=True),
    "_scaled_dot_product_flash_attention_for_cpu_backward": partial(_run_backward, heads_inside=True),
}
