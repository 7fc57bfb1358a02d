"""Operators that only CUDA devices have, in plain operators: the same arguments in order, the same results, any dtype.

They occur in graphs for such a device because torch's composite operators or Inductor choose them there: matrix
products with a result of another dtype, softmax from half precision to float32, cuDNN's and MIOpen's convolutions,
normalizations and samplers. Arguments that only guide a kernel's choice (``benchmark``, ``allow_tf32``) are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

MaybeTensor = torch.Tensor | None
_aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)


# -- another dtype for the result -------------------------------------------------------------------


def mm_to(tensor: torch.Tensor, mat2: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
    """``mm.dtype`` and ``bmm.dtype``: the product of the inputs, accumulated and returned in ``out_dtype``."""
    return torch.matmul(tensor.to(out_dtype), mat2.to(out_dtype))


def addmm_to(
    tensor: torch.Tensor,
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    out_dtype: torch.dtype,
    beta: float = 1,
    alpha: float = 1,
) -> torch.Tensor:
    """``addmm.dtype`` and ``baddbmm.dtype``."""
    product = mm_to(mat1, mat2, out_dtype)
    return alpha * product + beta * tensor.to(out_dtype) if beta else alpha * product


def softmax(tensor: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    """``_softmax``, whose result may be float32 for half precision."""
    result: torch.Tensor = _aten._softmax(_widen(tensor, half_to_float), dim, False)
    return result


def log_softmax(tensor: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    """``_log_softmax``, likewise."""
    result: torch.Tensor = _aten._log_softmax(_widen(tensor, half_to_float), dim, False)
    return result


def softmax_backward(
    grad_output: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype
) -> torch.Tensor:
    """``_softmax_backward_data``, whose result may be half precision for float32."""
    grad: torch.Tensor = _aten._softmax_backward_data(grad_output, output, dim, grad_output.dtype)
    return grad.to(input_dtype)


def log_softmax_backward(
    grad_output: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype
) -> torch.Tensor:
    """``_log_softmax_backward_data``, likewise."""
    grad: torch.Tensor = _aten._log_softmax_backward_data(grad_output, output, dim, grad_output.dtype)
    return grad.to(input_dtype)


def _widen(tensor: torch.Tensor, half_to_float: bool) -> torch.Tensor:
    return tensor.to(torch.float32) if half_to_float and tensor.dtype in _HALF else tensor


# -- normalizations ---------------------------------------------------------------------------------


def batch_norm(
    values: torch.Tensor,
    weight: torch.Tensor,
    bias: MaybeTensor,
    running_mean: MaybeTensor,
    running_var: MaybeTensor,
    training: bool,
    exponential_average_factor: float,
    epsilon: float,
) -> tuple[torch.Tensor, ...]:
    """``miopen_batch_norm``: the output, and mean and inverse deviation of the batch; updates the running ones."""
    results: tuple[torch.Tensor, ...] = _aten.native_batch_norm(
        values, weight, bias, running_mean, running_var, training, exponential_average_factor, epsilon
    )
    return results


def batch_norm_with_reserve(values: torch.Tensor, *others: Any) -> tuple[torch.Tensor, ...]:
    """``cudnn_batch_norm``: the same and a reserve, which is empty here."""
    return *batch_norm(values, *others), values.new_empty(0, dtype=torch.uint8)


def batch_norm_backward(
    values: torch.Tensor,
    grad_output: torch.Tensor,
    weight: torch.Tensor,
    running_mean: MaybeTensor,
    running_var: MaybeTensor,
    save_mean: MaybeTensor,
    save_var: MaybeTensor,
    epsilon: float,
    _reserve: MaybeTensor = None,
) -> tuple[torch.Tensor, ...]:
    """``cudnn_batch_norm_backward`` and ``miopen_batch_norm_backward``: gradients of input, weight and bias."""
    statistics = running_mean, running_var, save_mean, save_var
    gradients: tuple[torch.Tensor, ...] = _aten.native_batch_norm_backward(
        grad_output, values, weight, *statistics, True, epsilon, [True, True, True]
    )
    return gradients


def rms_norm_backward(
    grad_out: torch.Tensor,
    values: torch.Tensor,
    normalized_shape: Sequence[int],
    rstd: torch.Tensor,
    weight: MaybeTensor,
    output_mask: Sequence[bool],
) -> tuple[MaybeTensor, MaybeTensor]:
    """``_fused_rms_norm_backward``: gradients of input and weight; ``rstd`` keeps the normalized dimensions as 1."""
    inner = list(range(values.dim() - len(normalized_shape), values.dim()))
    outer = list(range(values.dim() - len(normalized_shape)))
    wide, grad = values.to(rstd.dtype), grad_out.to(rstd.dtype)
    normal = wide * rstd
    scaled = grad if weight is None else grad * weight.to(rstd.dtype)
    of_input = rstd * (scaled - normal * (scaled * normal).mean(inner, keepdim=True))
    of_weight = (grad * normal).sum(outer) if outer else grad * normal
    return (
        of_input.to(values.dtype) if output_mask[0] else None,
        of_weight.to(weight.dtype) if output_mask[1] and weight is not None else None,
    )


def masked_scale(tensor: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """``_masked_scale``."""
    return tensor * mask.to(tensor.dtype) * scale


# -- convolutions and samplers ----------------------------------------------------------------------


def convolution(
    tensor: torch.Tensor,
    weight: torch.Tensor,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    *_: object,
) -> torch.Tensor:
    """``cudnn_convolution``."""
    return _convolve(tensor, weight, None, stride, padding, dilation, groups)


def biased_convolution(
    tensor: torch.Tensor,
    weight: torch.Tensor,
    bias: MaybeTensor,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    *_: object,
) -> torch.Tensor:
    """``miopen_convolution`` and ``miopen_depthwise_convolution``."""
    return _convolve(tensor, weight, bias, stride, padding, dilation, groups)


def transposed_convolution(
    tensor: torch.Tensor,
    weight: torch.Tensor,
    padding: Sequence[int],
    output_padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    *_: object,
) -> torch.Tensor:
    """``cudnn_convolution_transpose``."""
    result: torch.Tensor = _aten.convolution(
        tensor, weight, None, stride, padding, dilation, True, output_padding, groups
    )
    return result


def convolution_relu(
    tensor: torch.Tensor,
    weight: torch.Tensor,
    bias: MaybeTensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """``cudnn_convolution_relu`` and ``miopen_convolution_relu``."""
    return _convolve(tensor, weight, bias, stride, padding, dilation, groups).relu()


def convolution_add_relu(
    tensor: torch.Tensor,
    weight: torch.Tensor,
    z: torch.Tensor,
    alpha: float | None,
    bias: MaybeTensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """``cudnn_convolution_add_relu`` and ``miopen_convolution_add_relu``."""
    added = z if alpha is None else z * alpha
    return (_convolve(tensor, weight, bias, stride, padding, dilation, groups) + added).relu()


def depthwise_convolution(
    tensor: torch.Tensor,
    weight: torch.Tensor,
    kernel_size: Sequence[int],
    bias: MaybeTensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> torch.Tensor:
    """``_conv_depthwise2d`` and ``conv_depthwise3d``."""
    return _convolve(tensor, weight, bias, stride, padding, dilation, tensor.size(1))


def _convolve(
    tensor: torch.Tensor,
    weight: torch.Tensor,
    bias: MaybeTensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    zero = [0] * len(stride)
    result: torch.Tensor = _aten.convolution(tensor, weight, bias, stride, padding, dilation, False, zero, groups)
    return result


def grid_sampler(tensor: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    """``cudnn_grid_sampler``: bilinear, zeros outside, corners aligned."""
    return torch.grid_sampler_2d(tensor, grid, 0, 0, True)


def grid_sampler_backward(
    tensor: torch.Tensor, grid: torch.Tensor, grad_output: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """``cudnn_grid_sampler_backward``: gradients of the input and of the grid."""
    gradients: tuple[torch.Tensor, torch.Tensor] = _aten.grid_sampler_2d_backward(
        grad_output, tensor, grid, 0, 0, True, [True, True]
    )
    return gradients


# Fused cells of recurrent networks in plain operators: the same arguments and results, in any dtype.


def lstm_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cx: torch.Tensor,
    input_bias: MaybeTensor = None,
    hidden_bias: MaybeTensor = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``_thnn_fused_lstm_cell``: the new state, the new cell and the workspace (batch, 4 * hidden)."""
    gates = _add_biases(input_gates, input_bias) + _add_biases(hidden_gates, hidden_bias)
    taken, kept, new, shown = gates.chunk(4, 1)
    taken, kept, new, shown = taken.sigmoid(), kept.sigmoid(), new.tanh(), shown.sigmoid()
    cell = kept * cx + taken * new
    return shown * cell.tanh(), cell, torch.cat((taken, kept, new, shown), 1)


def lstm_cell_backward(
    grad_hy: MaybeTensor,
    grad_cy: MaybeTensor,
    cx: torch.Tensor,
    cy: torch.Tensor,
    workspace: torch.Tensor,
    has_bias: bool,
) -> tuple[MaybeTensor, ...]:
    """``_thnn_fused_lstm_cell_backward_impl``: gradients of the gates, of the cell and, if it has one, of the bias."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    taken, kept, new, shown = workspace.chunk(4, 1)
    squashed = cy.tanh()
    state = torch.zeros_like(cx) if grad_hy is None else grad_hy
    cell = state * shown * (1 - squashed * squashed) + (0 if grad_cy is None else grad_cy)
    gates = torch.cat(
        (
            cell * new * taken * (1 - taken),
            cell * cx * kept * (1 - kept),
            cell * taken * (1 - new * new),
            state * squashed * shown * (1 - shown),
        ),
        1,
    )
    return gates, cell * kept, gates.sum(0) if has_bias else None


def gru_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    input_bias: MaybeTensor = None,
    hidden_bias: MaybeTensor = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``_thnn_fused_gru_cell``: the new state and the workspace (batch, 5 * hidden)."""
    of_input, of_hidden = (
        _add_biases(input_gates, input_bias).chunk(3, 1),
        _add_biases(hidden_gates, hidden_bias).chunk(3, 1),
    )
    reset, update = (of_input[0] + of_hidden[0]).sigmoid(), (of_input[1] + of_hidden[1]).sigmoid()
    new = (of_input[2] + reset * of_hidden[2]).tanh()
    return new + update * (hx - new), torch.cat((reset, update, new, hx, of_hidden[2]), 1)


def gru_cell_backward(grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool) -> tuple[MaybeTensor, ...]:
    """``_thnn_fused_gru_cell_backward``: gradients of both gates, of the state and, if it has them, of both biases."""
    reset, update, new, hx, hidden = workspace.chunk(5, 1)
    of_new = grad_hy * (1 - update) * (1 - new * new)
    of_reset = of_new * hidden * reset * (1 - reset)
    of_update = grad_hy * (hx - new) * update * (1 - update)
    of_input = torch.cat((of_reset, of_update, of_new), 1)
    of_hidden = torch.cat((of_reset, of_update, of_new * reset), 1)
    biases = (of_input.sum(0), of_hidden.sum(0)) if has_bias else (None, None)
    return of_input, of_hidden, grad_hy * update, *biases


def _add_biases(gates: torch.Tensor, bias: MaybeTensor) -> torch.Tensor:
    return gates if bias is None else gates + bias


# Matrix products of groups of rows or columns, as mixtures of experts compute them, in any dtype.


def grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Compute ``torch.ops.aten._grouped_mm``; shapes as above, in the dtype of ``a`` or ``out_dtype``.

    Raises:
        ValueError: there are no offsets for groups of rows, columns or terms.
    """
    if a.dim() == 3 and b.dim() == 3:
        return _finish_product(torch.bmm(a, b), bias, out_dtype)
    if offs is None:
        raise ValueError("groups of a matrix need offsets")
    ends = [int(end) for end in offs.tolist()]
    groups = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    if a.dim() == 2 and b.dim() == 2:
        return _finish_product(torch.stack([a[:, group] @ b[group] for group in groups]), bias, out_dtype)
    out = a.new_zeros(a.size(-2), b.size(-1))
    for number, group in enumerate(groups):
        if a.dim() == 2:
            out[group] = a[group] @ b[number]
        else:
            out[:, group] = a[number] @ b[:, group]
    return _finish_product(out, bias, out_dtype)


def _finish_product(out: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype | None) -> torch.Tensor:
    out = out if bias is None else out + bias
    return out if dtype is None else out.to(dtype)
