"""CUDA's autocast for a process that runs the target's programs on the CPU.

``torch.autocast`` casts by lists of operators, and every kind of device has its own. A program for CUDA that runs on
the CPU would follow the CPU's lists: softmax would stay in half precision, pooling would not. :func:`install` puts
CUDA's lists (``aten/src/ATen/autocast_mode.h``, public and in the include folder of every wheel) in their place, so
that eager runs follow the policy of the graphs compiled for the target. Those run under torch's own lists for CUDA,
which every build has.

Operators that both lists cast to lower precision keep torch's own kernels, which cast each parameter once. Others are
cast at every call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.target.registering import register

Kernel = Callable[..., Any]


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_LOW_PRECISION = _names("""
    _convolution.deprecated _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input
    conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm
    bmm chain_matmul linalg_multi_dot lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell scaled_dot_product_attention
""")
_SINGLE = _names("""
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor
    pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim nuclear_norm
    nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss
    kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss
    triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp
    upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d
    _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d
    upsample_bicubic2d _upsample_bicubic2d_aa linalg_matrix_sqrth
""")
_SINGLE_RESULT = _names("""
    prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
    linalg_matrix_norm.str_ord sum sum.dim_IntList
""")
_SINGLE_NORMS = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}
_WIDEST = _names("addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add")
_BANNED = "binary_cross_entropy"
# Kernels of one device, which never get tensors of the CPU.
_DEVICE_ONLY = frozenset(
    {
        *("_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "_scaled_dot_product_flash_attention", "_cudnn_rnn"),
        *("cudnn_convolution", "cudnn_convolution_transpose"),
    }
)


@functools.cache
def install() -> None:
    """Make ``torch.autocast("cpu")`` follow CUDA's lists, with float16 by default, for the life of the process."""
    torch.set_autocast_dtype("cpu", torch.float16)
    for name, kernel in _kernels().items():
        register(name, kernel, "AutocastCPU")


def unlisted() -> list[str]:
    """Operators that this torch casts on CUDA, and whose policy is not known here: they run as they are."""
    return sorted(_with_kernel("AutocastCUDA") - _listed() - _DEVICE_ONLY)


def _listed() -> set[str]:
    return {*_LOW_PRECISION, *_SINGLE, *_SINGLE_RESULT, *_SINGLE_NORMS, *_WIDEST, _BANNED}


def _with_kernel(key: str) -> set[str]:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = (name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    return {name.removeprefix("aten::") for name in names if has(name, key)}


def _kernels() -> dict[str, Kernel]:
    """The kernels that make the CPU's policy CUDA's, by the name of the operator."""
    on_cpu, on_cuda = _with_kernel("AutocastCPU"), _with_kernel("AutocastCUDA")
    # A composite operator's parts have policies of their own.
    composite = _with_kernel("CompositeImplicitAutograd")
    kernels: dict[str, Kernel] = dict.fromkeys((on_cpu - on_cuda) & composite, torch.library.fallthrough_kernel)
    kernels |= {name: _as_given(_overload(name)) for name in on_cpu - on_cuda - composite}
    kernels |= {name: _low_precision(_overload(name)) for name in _LOW_PRECISION if name in on_cuda - on_cpu}
    for names, policy in ((_SINGLE, _single), (_SINGLE_RESULT, _single_result), (_WIDEST, _widest)):
        kernels |= {name: policy(_overload(name)) for name in names if name in on_cuda}
    kernels |= {
        name: _single_norm(_overload(name), _overload(other))
        for name, other in _SINGLE_NORMS.items()
        if name in on_cuda
    }
    return kernels | {_BANNED: _banned}


def _overload(name: str) -> torch._ops.OpOverload:
    packet, _, overload = name.partition(".")
    operator: torch._ops.OpOverload = getattr(getattr(torch.ops.aten, packet), overload or "default")
    return operator


# -- the policies of at::autocast::CastPolicy ---------------------------------------------------------


def _as_given(operator: torch._ops.OpOverload) -> Kernel:
    """Operators that CUDA's lists leave alone; one that the CPU lacks in half precision rounds its float32 result."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        try:
            return _called(operator, args, kwargs)
        except RuntimeError as error:
            if "not implemented for" not in str(error):
                raise
        dtype = next(value.dtype for value in pytree.tree_leaves((args, kwargs)) if _is_cast(value))
        result = _called(operator, *_cast(args, kwargs, torch.float32))
        return _to(dtype, result)

    return kernel


def _low_precision(operator: torch._ops.OpOverload) -> Kernel:
    return lambda *args, **kwargs: _called(operator, *_cast(args, kwargs, torch.get_autocast_dtype("cpu")))


def _single(operator: torch._ops.OpOverload) -> Kernel:
    return lambda *args, **kwargs: _called(operator, *_cast(args, kwargs, torch.float32))


def _single_result(operator: torch._ops.OpOverload) -> Kernel:
    """Operators with an argument ``dtype`` compute in float32 unless the program names another."""
    position = [argument.name for argument in operator._schema.arguments].index("dtype")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        given = args[position] if position < len(args) else kwargs.get("dtype")
        if given is None and _is_cast(args[0]):
            kwargs["dtype"] = torch.float32
            args = args[:position]
        return _called(operator, args, kwargs)

    return kernel


def _single_norm(operator: torch._ops.OpOverload, with_dtype: torch._ops.OpOverload) -> Kernel:
    defaults = [argument.default_value for argument in operator._schema.arguments]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if not _is_cast(args[0]):
            return _called(operator, args, kwargs)
        return _called(with_dtype, (*args, *defaults[len(args) :]), {**kwargs, "dtype": torch.float32})

    return kernel


def _widest(operator: torch._ops.OpOverload) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        tensors = [value for value in pytree.tree_leaves((args, kwargs)) if _is_cast(value)]
        single = any(value.dtype == torch.float32 for value in tensors)
        return _called(operator, *_cast(args, kwargs, torch.float32 if single else torch.get_autocast_dtype("cpu")))

    return kernel


def _banned(*_: Any, **__: Any) -> Any:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
        "Many models use a sigmoid layer right before the binary cross entropy layer; combine the two with "
        "binary_cross_entropy_with_logits or BCEWithLogitsLoss, which are safe to autocast."
    )


def _called(operator: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
        return operator(*args, **kwargs)


def _cast(args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype) -> tuple[tuple[Any, ...], dict[str, Any]]:
    cast: tuple[tuple[Any, ...], dict[str, Any]] = _to(dtype, (args, kwargs))
    return cast


def _to(dtype: torch.dtype, values: Any) -> Any:
    return pytree.tree_map(lambda value: value.to(dtype) if _is_cast(value) else value, values)


def _is_cast(value: object) -> bool:
    """Return whether autocast casts a value: tensors of the CPU with a floating dtype other than float64."""
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
        return False
    return value.is_floating_point() and value.dtype != torch.float64
