"""Operators that only CUDA devices have, in plain operators: the same arguments in order, the same results, any dtype.

They occur in graphs for such a device because torch's composite operators or Inductor choose them there: matrix
products with a result of another dtype, softmax from half precision to float32, cuDNN's and MIOpen's convolutions,
normalizations and samplers. Arguments that only guide a kernel's choice (``benchmark``, ``allow_tf32``) are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

Maybe = torch.Tensor | None
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
    result: torch.Tensor = _aten._softmax(_widened(tensor, half_to_float), dim, False)
    return result


def log_softmax(tensor: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    """``_log_softmax``, likewise."""
    result: torch.Tensor = _aten._log_softmax(_widened(tensor, half_to_float), dim, False)
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


def _widened(tensor: torch.Tensor, half_to_float: bool) -> torch.Tensor:
    return tensor.to(torch.float32) if half_to_float and tensor.dtype in _HALF else tensor


# -- normalizations ---------------------------------------------------------------------------------


def batch_norm(
    values: torch.Tensor,
    weight: torch.Tensor,
    bias: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
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
    running_mean: Maybe,
    running_var: Maybe,
    save_mean: Maybe,
    save_var: Maybe,
    epsilon: float,
    _reserve: Maybe = None,
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
    weight: Maybe,
    output_mask: Sequence[bool],
) -> tuple[Maybe, Maybe]:
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
    return _convolved(tensor, weight, None, stride, padding, dilation, groups)


def biased_convolution(
    tensor: torch.Tensor,
    weight: torch.Tensor,
    bias: Maybe,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    *_: object,
) -> torch.Tensor:
    """``miopen_convolution`` and ``miopen_depthwise_convolution``."""
    return _convolved(tensor, weight, bias, stride, padding, dilation, groups)


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
    bias: Maybe,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """``cudnn_convolution_relu`` and ``miopen_convolution_relu``."""
    return _convolved(tensor, weight, bias, stride, padding, dilation, groups).relu()


def convolution_add_relu(
    tensor: torch.Tensor,
    weight: torch.Tensor,
    z: torch.Tensor,
    alpha: float | None,
    bias: Maybe,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """``cudnn_convolution_add_relu`` and ``miopen_convolution_add_relu``."""
    added = z if alpha is None else z * alpha
    return (_convolved(tensor, weight, bias, stride, padding, dilation, groups) + added).relu()


def depthwise_convolution(
    tensor: torch.Tensor,
    weight: torch.Tensor,
    kernel_size: Sequence[int],
    bias: Maybe,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> torch.Tensor:
    """``_conv_depthwise2d`` and ``conv_depthwise3d``."""
    return _convolved(tensor, weight, bias, stride, padding, dilation, tensor.size(1))


def _convolved(
    tensor: torch.Tensor,
    weight: torch.Tensor,
    bias: Maybe,
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
