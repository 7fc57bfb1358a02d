"""References that compute the operators of a target's graph on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

import torch

from fuzzcompile.reference import device_kernels as kernels
from fuzzcompile.reference import recurrent_cells as cells
from fuzzcompile.reference.fused_attention import stand_in

Reference = Callable[..., object]


def on_cpu(operator: object) -> Reference | None:
    """Return a function that computes the same as ``operator`` on tensors of the CPU; None if the CPU runs it itself.

    It takes the arguments of the operator by position or name; devices among them must be the CPU.
    """
    if not isinstance(operator, torch._ops.OpOverload):
        return None
    reference = _REFERENCES.get(_name(operator))
    return stand_in(operator) if reference is None else _by_schema(operator, reference)


def why_not_on_cpu(operator: object) -> str | None:
    """Return why a graph with ``operator`` cannot be computed on the CPU, as a clause; None if it can.

    What a kernel refuses for its arguments shows only when it runs.
    """
    if not isinstance(operator, torch._ops.OpOverload) or on_cpu(operator) is not None or _has_kernel(operator):
        return None
    name = _name(operator)
    reason = next((reason for part, reason in _OPAQUE.items() if part in name), "there is no reference for it")
    return f"{name} has no kernel for the CPU, and {reason}"


def _has_kernel(operator: torch._ops.OpOverload) -> bool:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    in_python = {key.name for key in operator.py_kernels if isinstance(key, torch._C.DispatchKey)}
    return any(has(_name(operator), key) or key in in_python for key in _KEYS)


def _name(operator: torch._ops.OpOverload) -> str:
    overload = operator._schema.overload_name
    return f"{operator._schema.name}.{overload}" if overload else operator._schema.name


def _by_schema(operator: torch._ops.OpOverload, reference: Reference) -> Reference:
    """The reference with the operator's own names and defaults of arguments."""
    defaults = {argument.name: argument.default_value for argument in operator._schema.arguments}

    def computed(*args: object, **kwargs: object) -> object:
        return reference(*(defaults | dict(zip(defaults, args, strict=False)) | kwargs).values())

    return computed


def _put(tensor: torch.Tensor, *_: object) -> torch.Tensor:
    return tensor


_KEYS = (
    *("CPU", "SparseCPU", "SparseCsrCPU", "QuantizedCPU", "MkldnnCPU", "NestedTensorCPU"),
    *("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"),
)
_REFERENCES: MappingProxyType[str, Reference] = MappingProxyType(
    {
        "prims::device_put": _put,
        "aten::record_stream": lambda *_: None,
        "aten::_pin_memory": lambda tensor, _: tensor.clone(),
        "aten::mm.dtype": kernels.mm_to,
        "aten::bmm.dtype": kernels.mm_to,
        "aten::addmm.dtype": kernels.addmm_to,
        "aten::baddbmm.dtype": kernels.addmm_to,
        "aten::_softmax": kernels.softmax,
        "aten::_log_softmax": kernels.log_softmax,
        "aten::_softmax_backward_data": kernels.softmax_backward,
        "aten::_log_softmax_backward_data": kernels.log_softmax_backward,
        "aten::cudnn_batch_norm": kernels.batch_norm_with_reserve,
        "aten::cudnn_batch_norm_backward": kernels.batch_norm_backward,
        "aten::miopen_batch_norm": kernels.batch_norm,
        "aten::miopen_batch_norm_backward": kernels.batch_norm_backward,
        "aten::_fused_rms_norm_backward": kernels.rms_norm_backward,
        "aten::_masked_scale": kernels.masked_scale,
        "aten::cudnn_convolution": kernels.convolution,
        "aten::cudnn_convolution_transpose": kernels.transposed_convolution,
        "aten::cudnn_convolution_relu": kernels.convolution_relu,
        "aten::cudnn_convolution_add_relu": kernels.convolution_add_relu,
        "aten::miopen_convolution": kernels.biased_convolution,
        "aten::miopen_depthwise_convolution": kernels.biased_convolution,
        "aten::miopen_convolution_relu": kernels.convolution_relu,
        "aten::miopen_convolution_add_relu": kernels.convolution_add_relu,
        "aten::_conv_depthwise2d": kernels.depthwise_convolution,
        "aten::conv_depthwise3d": kernels.depthwise_convolution,
        "aten::cudnn_grid_sampler": kernels.grid_sampler,
        "aten::cudnn_grid_sampler_backward": kernels.grid_sampler_backward,
        "aten::_thnn_fused_lstm_cell": cells.lstm_cell,
        "aten::_thnn_fused_lstm_cell_backward_impl": cells.lstm_cell_backward,
        "aten::_thnn_fused_gru_cell": cells.gru_cell,
        "aten::_thnn_fused_gru_cell_backward": cells.gru_cell_backward,
    }
)
# Parts of names of operators without a reference, and why there is none.
_OPAQUE = {
    "int4pack": "the layout of its packed weights is the kernel's own",
    "semi_structured": "the layout of its sparse weights is the kernel's own",
    "_cslt": "the layout of its sparse weights is the kernel's own",
    "_rnn": "the layout of its weights and its reserve is the library's own",
    "ctc_loss": "its choice between two kernels is the library's own",
}
