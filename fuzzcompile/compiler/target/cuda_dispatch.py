"""CUDA's autocast for a process that runs the target's programs on the CPU.

``torch.autocast`` casts by lists of operators, and every kind of device has its own. A program for CUDA that runs on
the CPU would follow the CPU's lists: softmax would stay in half precision, pooling would not.
:func:`install_autocast` puts
CUDA's lists (``aten/src/ATen/autocast_mode.h``, public and in the include folder of every wheel) in their place, so
that eager runs follow the policy of the graphs compiled for the target. Those run under torch's own lists for CUDA,
which every build has.

Operators that both lists cast to lower precision keep torch's own kernels, which cast each parameter once. Others are
cast at every call.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.target.target_patches import register_kernel

Kernel = Callable[..., Any]


def _split_names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_LOW_PRECISION = _split_names("""
    _convolution.deprecated _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input
    conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm
    bmm chain_matmul linalg_multi_dot lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell scaled_dot_product_attention
""")
_SINGLE = _split_names("""
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor
    pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim nuclear_norm
    nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss
    kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss
    triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp
    upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d
    _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d
    upsample_bicubic2d _upsample_bicubic2d_aa linalg_matrix_sqrth
""")
_SINGLE_RESULT = _split_names("""
    prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
    linalg_matrix_norm.str_ord sum sum.dim_IntList
""")
_SINGLE_NORMS = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}
_WIDEST = _split_names("addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add")
_BANNED = "binary_cross_entropy"
# Kernels of one device, which never get tensors of the CPU.
_DEVICE_ONLY = frozenset(
    {
        *("_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "_scaled_dot_product_flash_attention", "_cudnn_rnn"),
        *("cudnn_convolution", "cudnn_convolution_transpose"),
    }
)


@functools.cache
def install_autocast() -> None:
    """Make ``torch.autocast("cpu")`` follow CUDA's lists, with float16 by default, for the life of the process."""
    torch.set_autocast_dtype("cpu", torch.float16)
    for name, kernel in _make_kernels().items():
        register_kernel(name, kernel, "AutocastCPU")


def list_unlisted() -> list[str]:
    """Operators that this torch casts on CUDA, and whose policy is not known here: they run as they are."""
    return sorted(_list_with_kernel("AutocastCUDA") - _list_policies() - _DEVICE_ONLY)


def _list_policies() -> set[str]:
    return {*_LOW_PRECISION, *_SINGLE, *_SINGLE_RESULT, *_SINGLE_NORMS, *_WIDEST, _BANNED}


def _list_with_kernel(key: str) -> set[str]:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = (name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    return {name.removeprefix("aten::") for name in names if has(name, key)}


def _make_kernels() -> dict[str, Kernel]:
    """The kernels that make the CPU's policy CUDA's, by the name of the operator."""
    on_cpu, on_cuda = _list_with_kernel("AutocastCPU"), _list_with_kernel("AutocastCUDA")
    # A composite operator's parts have policies of their own.
    composite = _list_with_kernel("CompositeImplicitAutograd")
    kernels: dict[str, Kernel] = dict.fromkeys((on_cpu - on_cuda) & composite, torch.library.fallthrough_kernel)
    kernels |= {name: _leave_as_given(_find_overload(name)) for name in on_cpu - on_cuda - composite}
    kernels |= {
        name: _run_in_low_precision(_find_overload(name)) for name in _LOW_PRECISION if name in on_cuda - on_cpu
    }
    for names, policy in ((_SINGLE, _run_in_single), (_SINGLE_RESULT, _return_single), (_WIDEST, _promote_to_widest)):
        kernels |= {name: policy(_find_overload(name)) for name in names if name in on_cuda}
    kernels |= {
        name: _run_norm_in_single(_find_overload(name), _find_overload(other))
        for name, other in _SINGLE_NORMS.items()
        if name in on_cuda
    }
    return kernels | {_BANNED: _refuse}


def _find_overload(name: str) -> torch._ops.OpOverload:
    packet, _, overload = name.partition(".")
    operator: torch._ops.OpOverload = getattr(getattr(torch.ops.aten, packet), overload or "default")
    return operator


# -- the policies of at::autocast::CastPolicy ---------------------------------------------------------


def _leave_as_given(operator: torch._ops.OpOverload) -> Kernel:
    """Operators that CUDA's lists leave alone; one that the CPU lacks in half precision rounds its float32 result."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        try:
            return _call_operator(operator, args, kwargs)
        except RuntimeError as error:
            if "not implemented for" not in str(error):
                raise
        dtype = next(value.dtype for value in pytree.tree_leaves((args, kwargs)) if _is_cast(value))
        result = _call_operator(operator, *_cast_arguments(args, kwargs, torch.float32))
        return _cast_values(dtype, result)

    return kernel


def _run_in_low_precision(operator: torch._ops.OpOverload) -> Kernel:
    return lambda *args, **kwargs: _call_operator(
        operator, *_cast_arguments(args, kwargs, torch.get_autocast_dtype("cpu"))
    )


def _run_in_single(operator: torch._ops.OpOverload) -> Kernel:
    return lambda *args, **kwargs: _call_operator(operator, *_cast_arguments(args, kwargs, torch.float32))


def _return_single(operator: torch._ops.OpOverload) -> Kernel:
    """Operators with an argument ``dtype`` compute in float32 unless the program names another."""
    position = [argument.name for argument in operator._schema.arguments].index("dtype")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        given = args[position] if position < len(args) else kwargs.get("dtype")
        if given is None and _is_cast(args[0]):
            kwargs["dtype"] = torch.float32
            args = args[:position]
        return _call_operator(operator, args, kwargs)

    return kernel


def _run_norm_in_single(operator: torch._ops.OpOverload, with_dtype: torch._ops.OpOverload) -> Kernel:
    defaults = [argument.default_value for argument in operator._schema.arguments]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if not _is_cast(args[0]):
            return _call_operator(operator, args, kwargs)
        return _call_operator(with_dtype, (*args, *defaults[len(args) :]), {**kwargs, "dtype": torch.float32})

    return kernel


def _promote_to_widest(operator: torch._ops.OpOverload) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        tensors = [value for value in pytree.tree_leaves((args, kwargs)) if _is_cast(value)]
        single = any(value.dtype == torch.float32 for value in tensors)
        return _call_operator(
            operator, *_cast_arguments(args, kwargs, torch.float32 if single else torch.get_autocast_dtype("cpu"))
        )

    return kernel


def _refuse(*_: Any, **__: Any) -> Any:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
        "Many models use a sigmoid layer right before the binary cross entropy layer; combine the two with "
        "binary_cross_entropy_with_logits or BCEWithLogitsLoss, which are safe to autocast."
    )


def _call_operator(operator: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
        return operator(*args, **kwargs)


def _cast_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    cast: tuple[tuple[Any, ...], dict[str, Any]] = _cast_values(dtype, (args, kwargs))
    return cast


def _cast_values(dtype: torch.dtype, values: Any) -> Any:
    return pytree.tree_map(lambda value: value.to(dtype) if _is_cast(value) else value, values)


def _is_cast(value: object) -> bool:
    """Return whether autocast casts a value: tensors of the CPU with a floating dtype other than float64."""
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
        return False
    return value.is_floating_point() and value.dtype != torch.float64


# Gradients of fake tensors on a device that is not there.

NodeGradients = tuple[torch.Tensor | None, ...]
_EdgeKey = tuple[Node, int]


def wrap_grad(original: Callable[..., NodeGradients]) -> Callable[..., NodeGradients]:
    """``torch.autograd.grad``, which walks the nodes itself for outputs on CUDA."""

    @functools.wraps(original)
    def grad(
        outputs: torch.Tensor | Sequence[torch.Tensor],
        inputs: torch.Tensor | Sequence[torch.Tensor],
        grad_outputs: torch.Tensor | Sequence[torch.Tensor | None] | None = None,
        *args: object,
        **kwargs: object,
    ) -> NodeGradients:
        listed = _as_list(outputs)
        if not any(isinstance(output, torch.Tensor) and output.is_cuda for output in listed):
            return original(outputs, inputs, grad_outputs, *args, **kwargs)
        given = [None] * len(listed) if grad_outputs is None else _as_list(grad_outputs)
        starts = [_make_ones_like(out) if start is None else start for out, start in zip(listed, given, strict=True)]
        with torch.no_grad():
            return compute_gradients(listed, starts, _as_list(inputs))

    return grad


def compute_gradients(
    outputs: Sequence[torch.Tensor], grad_outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> NodeGradients:
    """Gradients of ``outputs`` for ``inputs``, given those of the outputs; None for an input that none depends on."""
    roots = [get_gradient_edge(output) for output in outputs if output.requires_grad]
    starts = [start for output, start in zip(outputs, grad_outputs, strict=True) if output.requires_grad]
    wanted = [get_gradient_edge(tensor) if tensor.requires_grad else None for tensor in inputs]
    return _GradientWalk(roots, starts, [edge for edge in wanted if edge is not None]).results(wanted)


class _GradientWalk:
    def __init__(
        self, roots: Sequence[GradientEdge], starts: Sequence[torch.Tensor], wanted: Sequence[GradientEdge]
    ) -> None:
        self._ends: set[_EdgeKey] = {(edge.node, edge.output_nr) for edge in wanted}
        self._arrived: dict[Node, dict[int, torch.Tensor]] = defaultdict(dict)
        self._kept: dict[_EdgeKey, torch.Tensor] = {}
        self._waiting = _count_dependencies([edge.node for edge in roots])
        self._needed = _find_nodes_before({edge.node for edge in wanted}, list(self._waiting))
        for edge, start in zip(roots, starts, strict=True):
            self._add(edge.node, edge.output_nr, start)
        self._run([edge.node for edge in roots])

    def results(self, wanted: Sequence[GradientEdge | None]) -> NodeGradients:
        """Return the gradient that arrived at each of the edges."""
        return tuple(None if edge is None else self._kept.get((edge.node, edge.output_nr)) for edge in wanted)

    def _run(self, roots: Sequence[Node]) -> None:
        order = itertools.count()
        ready = [(-_find_rank(node), next(order), node) for node in dict.fromkeys(roots) if not self._waiting[node]]
        heapq.heapify(ready)
        while ready:
            _, _, node = heapq.heappop(ready)
            self._step(node)
            for following in _list_next_nodes(node):
                self._waiting[following] -= 1
                if not self._waiting[following]:
                    heapq.heappush(ready, (-_find_rank(following), next(order), following))

    def _step(self, node: Node) -> None:
        arrived = self._arrived.pop(node, {})
        for position, gradient in arrived.items():
            if (node, position) in self._ends:
                self._kept[node, position] = gradient
        if not arrived or node not in self._needed or _is_accumulator(node):
            return
        results = _call_node(node, [arrived.get(position) for position in range(len(node._input_metadata))])
        for (following, place), result in zip(node.next_functions, results, strict=True):
            if following is not None and result is not None:
                self._add(following, place, result)

    def _add(self, node: Node, position: int, gradient: torch.Tensor) -> None:
        fitted = _fit_gradient(gradient, node._input_metadata[position])
        before = self._arrived[node].get(position)
        self._arrived[node][position] = fitted if before is None else before + fitted


def _list_next_nodes(node: Node) -> list[Node]:
    return [following for following, _ in node.next_functions if following is not None]


def _is_accumulator(node: Node) -> bool:
    return type(node).__name__ == "AccumulateGrad"


def _find_rank(node: Node) -> int:
    return int(node._sequence_nr())


def _count_dependencies(roots: Sequence[Node]) -> dict[Node, int]:
    """Count the edges that lead to each node that can be reached."""
    counts = dict.fromkeys(roots, 0)
    pending = list(counts)
    while pending:
        for following in _list_next_nodes(pending.pop()):
            if following not in counts:
                counts[following] = 0
                pending.append(following)
            counts[following] += 1
    return counts


def _find_nodes_before(ends: set[Node], nodes: Sequence[Node]) -> set[Node]:
    """The nodes whose calls lead to one of ``ends``; an end itself is called only if it leads to another."""
    before = defaultdict(list)
    for node in nodes:
        for following in _list_next_nodes(node):
            before[following].append(node)
    leading: set[Node] = set()
    pending = list(ends)
    while pending:
        for node in before[pending.pop()]:
            if node not in leading:
                leading.add(node)
                pending.append(node)
    return leading


def _call_node(node: Any, gradients: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Call one node; a ``torch.autograd.Function`` gets zeros for outputs without a gradient, as from the engine."""
    if not hasattr(node, "apply"):  # written in C++
        results = node(*gradients)
    else:
        filled = [
            _make_zeros(metadata) if gradient is None else gradient
            for gradient, metadata in zip(gradients, node._input_metadata, strict=True)
        ]
        results = node.apply(*filled)
    listed = list(results) if isinstance(results, (tuple, list)) else [results]
    surplus = len(listed) - len(node.next_functions)
    for position in reversed(range(len(listed))):  # arguments that are no tensors have no edge, and None as gradient
        if surplus > 0 and listed[position] is None:
            del listed[position]
            surplus -= 1
    return listed


def _fit_gradient(gradient: torch.Tensor, metadata: Any) -> torch.Tensor:
    """A gradient in the shape and dtype of the tensor that it belongs to."""
    if tuple(gradient.shape) != tuple(metadata.shape):
        gradient = gradient.sum_to_size(metadata.shape)
    return gradient if gradient.dtype == metadata.dtype else gradient.to(metadata.dtype)


def _make_zeros(metadata: Any) -> torch.Tensor:
    return torch.zeros(metadata.shape, dtype=metadata.dtype, device=metadata.device)


def _make_ones_like(output: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(output)


def _as_list(values: Any) -> list[Any]:
    return [values] if isinstance(values, torch.Tensor) else list(values)
