"""Operators that only CUDA devices have, in plain operators: the same arguments, the same results, in any dtype.

They occur in graphs for such a device because torch's composite operators or Inductor choose them there. Arguments
that only guide a kernel's choice (``benchmark``, ``allow_tf32``) are ignored.

Those of ``torch.amp.GradScaler`` have kernels on every device, which take a scale in float32 alone: here on float64
tensors. A scaler leaves a step out where a gradient is not finite. Which numbers are, is a matter of the program's own
dtype: what overflows there counts as infinite here, so that the same steps are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch

from fuzzcompile.run.reference import fused_attention
from fuzzcompile.run.tensors import SHORT_FLOATS

_aten = torch.ops.aten
# The arguments of an operator, by the names in its schema.
_Call = Any


def find_stand_in(kernel: torch._ops.OpOverload) -> Callable[..., object] | None:
    """A function that computes the same as an operator of CUDA devices, those of attention included; else None."""
    schema = kernel._schema
    compute = _FORMS.get(f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name)
    if compute is None:
        return fused_attention.find_stand_in(kernel)
    return fused_attention.bind_to_schema(schema, lambda given: compute(SimpleNamespace(**given)))


def _add_product_to(call: _Call) -> Any:
    first, second = (call.mat1, call.mat2) if hasattr(call, "mat1") else (call.batch1, call.batch2)
    product = call.alpha * torch.matmul(first.to(call.out_dtype), second.to(call.out_dtype))
    return product + call.beta * call.self.to(call.out_dtype) if call.beta else product


def _take_softmax(operator: Any, call: _Call) -> Any:
    widens = call.half_to_float and call.self.dtype in SHORT_FLOATS
    return operator(call.self.to(torch.float32) if widens else call.self, call.dim, False)


def _differentiate_softmax(operator: Any, call: _Call) -> Any:
    """The result may be half precision for float32."""
    return operator(call.grad_output, call.output, call.dim, call.grad_output.dtype).to(call.input_dtype)


def _batch_norm(call: _Call) -> Any:
    statistics = call.running_mean, call.running_var, call.training, call.exponential_average_factor, call.epsilon
    return _aten.native_batch_norm(call.input, call.weight, call.bias, *statistics)


def _batch_norm_backward(call: _Call) -> Any:
    statistics = call.running_mean, call.running_var, call.save_mean, call.save_var
    wanted = True, call.epsilon, [True, True, True]
    return _aten.native_batch_norm_backward(call.grad_output, call.input, call.weight, *statistics, *wanted)


def _rms_norm_backward(call: _Call) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Gradients of input and weight; ``rstd`` keeps the normalized dimensions as 1."""
    rstd, weight = call.rstd, call.weight
    first = call.input.dim() - len(call.normalized_shape)
    inner, outer = list(range(first, call.input.dim())), list(range(first))
    wide, grad = call.input.to(rstd.dtype), call.grad_out.to(rstd.dtype)
    normal = wide * rstd
    scaled = grad if weight is None else grad * weight.to(rstd.dtype)
    of_input = rstd * (scaled - normal * (scaled * normal).mean(inner, keepdim=True))
    of_weight = (grad * normal).sum(outer) if outer else grad * normal
    return (
        of_input.to(call.input.dtype) if call.output_mask[0] else None,
        of_weight.to(weight.dtype) if call.output_mask[1] and weight is not None else None,
    )


def _convolve(call: _Call) -> Any:
    bias, padding = getattr(call, "bias", None), getattr(call, "output_padding", None)
    groups = getattr(call, "groups", None) or call.self.size(1)  # a depthwise convolution names no number
    shape = call.stride, call.padding, call.dilation, padding is not None, padding or [0] * len(call.stride), groups
    return _aten.convolution(call.self, call.weight, bias, *shape)


def _scale_addend(call: _Call) -> Any:
    return call.z if call.alpha is None else call.z * call.alpha


def _lstm_cell(call: _Call) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The new state, the new cell and the workspace (batch, 4 * hidden)."""
    of_input, of_hidden = _add_biases(call)
    taken, kept, new, shown = (of_input + of_hidden).chunk(4, 1)
    taken, kept, new, shown = taken.sigmoid(), kept.sigmoid(), new.tanh(), shown.sigmoid()
    cell = kept * call.cx + taken * new
    return shown * cell.tanh(), cell, torch.cat((taken, kept, new, shown), 1)


def _lstm_cell_backward(call: _Call) -> tuple[torch.Tensor | None, ...]:
    if call.grad_hy is None and call.grad_cy is None:
        return None, None, None
    taken, kept, new, shown = call.workspace.chunk(4, 1)
    squashed = call.cy.tanh()
    state = torch.zeros_like(call.cx) if call.grad_hy is None else call.grad_hy
    cell = state * shown * (1 - squashed * squashed) + (0 if call.grad_cy is None else call.grad_cy)
    of_taken, of_kept = cell * new * taken * (1 - taken), cell * call.cx * kept * (1 - kept)
    of_new, of_shown = cell * taken * (1 - new * new), state * squashed * shown * (1 - shown)
    gates = torch.cat((of_taken, of_kept, of_new, of_shown), 1)
    return gates, cell * kept, gates.sum(0) if call.has_bias else None


def _gru_cell(call: _Call) -> tuple[torch.Tensor, torch.Tensor]:
    """The new state and the workspace (batch, 5 * hidden)."""
    of_input, of_hidden = (gates.chunk(3, 1) for gates in _add_biases(call))
    reset, update = (of_input[0] + of_hidden[0]).sigmoid(), (of_input[1] + of_hidden[1]).sigmoid()
    new = (of_input[2] + reset * of_hidden[2]).tanh()
    return new + update * (call.hx - new), torch.cat((reset, update, new, call.hx, of_hidden[2]), 1)


def _gru_cell_backward(call: _Call) -> tuple[torch.Tensor | None, ...]:
    reset, update, new, state, hidden = call.workspace.chunk(5, 1)
    of_new = call.grad_hy * (1 - update) * (1 - new * new)
    of_reset = of_new * hidden * reset * (1 - reset)
    of_update = call.grad_hy * (state - new) * update * (1 - update)
    of_input = torch.cat((of_reset, of_update, of_new), 1)
    of_hidden = torch.cat((of_reset, of_update, of_new * reset), 1)
    biases = (of_input.sum(0), of_hidden.sum(0)) if call.has_bias else (None, None)
    return of_input, of_hidden, call.grad_hy * update, *biases


def _add_biases(call: _Call) -> list[torch.Tensor]:
    pairs = (call.input_gates, call.input_bias), (call.hidden_gates, call.hidden_bias)
    return [gates if bias is None else gates + bias for gates, bias in pairs]


def grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Compute ``torch.ops.aten._grouped_mm``, as mixtures of experts use it, in the dtype of ``a`` or ``out_dtype``.

    Raises:
        ValueError: there are no offsets for groups of rows, columns or terms.
    """
    out = torch.bmm(a, b) if a.dim() == 3 and b.dim() == 3 else _multiply_groups(a, b, offs)
    out = out if bias is None else out + bias
    return out if out_dtype is None else out.to(out_dtype)


def _multiply_groups(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None) -> torch.Tensor:
    if offs is None:
        raise ValueError("groups of a matrix need offsets")
    ends = [int(end) for end in offs.tolist()]
    groups = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    if a.dim() == 2 and b.dim() == 2:
        return torch.stack([a[:, group] @ b[group] for group in groups])
    out = a.new_zeros(a.size(-2), b.size(-1))
    for number, group in enumerate(groups):
        if a.dim() == 2:
            out[group] = a[group] @ b[number]
        else:
            out[:, group] = a[number] @ b[:, group]
    return out


_FORMS: Mapping[str, Callable[[_Call], object]] = MappingProxyType(
    {
        **dict.fromkeys(
            ("aten::mm.dtype", "aten::bmm.dtype"),
            lambda call: torch.matmul(call.self.to(call.out_dtype), call.mat2.to(call.out_dtype)),
        ),
        "aten::addmm.dtype": _add_product_to,
        "aten::baddbmm.dtype": _add_product_to,
        "aten::_softmax": partial(_take_softmax, _aten._softmax),
        "aten::_log_softmax": partial(_take_softmax, _aten._log_softmax),
        "aten::_softmax_backward_data": partial(_differentiate_softmax, _aten._softmax_backward_data),
        "aten::_log_softmax_backward_data": partial(_differentiate_softmax, _aten._log_softmax_backward_data),
        # The reserve is empty here.
        "aten::cudnn_batch_norm": lambda call: (*_batch_norm(call), call.input.new_empty(0, dtype=torch.uint8)),
        "aten::cudnn_batch_norm_backward": _batch_norm_backward,
        "aten::miopen_batch_norm": _batch_norm,
        "aten::miopen_batch_norm_backward": _batch_norm_backward,
        "aten::_fused_rms_norm_backward": _rms_norm_backward,
        "aten::_masked_scale": lambda call: call.self * call.mask.to(call.self.dtype) * call.scale,
        "aten::cudnn_convolution": _convolve,
        "aten::cudnn_convolution_transpose": _convolve,
        "aten::cudnn_convolution_relu": lambda call: _convolve(call).relu(),
        "aten::cudnn_convolution_add_relu": lambda call: (_convolve(call) + _scale_addend(call)).relu(),
        "aten::miopen_convolution": _convolve,
        "aten::miopen_depthwise_convolution": _convolve,
        "aten::miopen_convolution_relu": lambda call: _convolve(call).relu(),
        "aten::miopen_convolution_add_relu": lambda call: (_convolve(call) + _scale_addend(call)).relu(),
        "aten::_conv_depthwise2d": _convolve,
        "aten::conv_depthwise3d": _convolve,
        # Bilinear, zeros outside, corners aligned.
        "aten::cudnn_grid_sampler": lambda call: torch.grid_sampler_2d(call.self, call.grid, 0, 0, True),
        "aten::cudnn_grid_sampler_backward": lambda call: _aten.grid_sampler_2d_backward(
            call.grad_output, call.self, call.grid, 0, 0, True, [True, True]
        ),
        "aten::_thnn_fused_lstm_cell": _lstm_cell,
        "aten::_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
        "aten::_thnn_fused_gru_cell": _gru_cell,
        "aten::_thnn_fused_gru_cell_backward": _gru_cell_backward,
    }
)


def find_scaling(operator: torch._ops.OpOverload, native: torch.dtype) -> Callable[..., object] | None:
    """A function that computes the same as an operator of a gradient scaler, for a program in ``native``; else None."""
    compute = _SCALING.get(operator._schema.name)
    return None if compute is None or operator._overloadname != "default" else partial(compute, native)


def _unscale_in_place(
    native: torch.dtype, gradients: Sequence[torch.Tensor], found_inf: torch.Tensor, inv_scale: torch.Tensor
) -> None:
    largest = torch.finfo(native).max
    for gradient in gradients:
        if not bool((gradient.abs() <= largest).all()):  # NaN is not either
            found_inf.fill_(1.0)
        gradient.mul_(inv_scale)


def _unscale(
    native: torch.dtype, gradients: Sequence[torch.Tensor], found_inf: torch.Tensor, inv_scale: torch.Tensor
) -> tuple[list[torch.Tensor], torch.Tensor]:
    copies, found_inf = [gradient.clone() for gradient in gradients], found_inf.clone()
    _unscale_in_place(native, copies, found_inf, inv_scale)
    return copies, found_inf


def _update_in_place(
    native: torch.dtype,
    scale: torch.Tensor,
    tracker: torch.Tensor,
    found_inf: torch.Tensor,
    growth: float,
    backoff: float,
    interval: int,
) -> torch.Tensor:
    del native  # a scale is float32 in every program
    if bool(found_inf):
        scale.mul_(backoff)
        tracker.zero_()
    elif int(tracker) + 1 < interval:
        tracker.add_(1)
    else:
        grown = scale * growth
        if bool(grown <= torch.finfo(torch.float32).max):
            scale.copy_(grown)
        tracker.zero_()
    return scale


def _update(
    native: torch.dtype, scale: torch.Tensor, tracker: torch.Tensor, *rest: object
) -> tuple[torch.Tensor, torch.Tensor]:
    scale, tracker = scale.clone(), tracker.clone()
    _update_in_place(native, scale, tracker, *rest)  # type: ignore[arg-type]
    return scale, tracker


_SCALING: dict[str, Callable[..., object]] = {
    "aten::_amp_foreach_non_finite_check_and_unscale_": _unscale_in_place,
    "aten::_amp_foreach_non_finite_check_and_unscale": _unscale,
    "aten::_amp_update_scale_": _update_in_place,
    "aten::_amp_update_scale": _update,
}
