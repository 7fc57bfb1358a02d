"""CUDA's device guard, autocast, and gradients of its fake tensors, where programs of a target run on the CPU.

A program for CUDA that runs on the CPU would follow the CPU's lists of operators to cast: softmax would stay in half
precision, pooling would not. :func:`install_autocast` puts CUDA's lists in their place for eager runs; compiled graphs
have torch's own. Operators that both lists cast to lower precision keep torch's kernels, which cast a parameter once.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
import inspect
import itertools
import os
import sysconfig
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._ops import OpOverload
from torch.autograd.graph import Node, get_gradient_edge
from torch.utils import _pytree as pytree

from fuzzcompile.model.errors import EnvironmentUnfit
from fuzzcompile.model.package_files import read_table
from fuzzcompile.run.subprocesses import capture_output, find_cxx_compiler

# Kernels of ATen that a process which compiles for a target has besides torch's own, until it ends.


_open_library = functools.cache(functools.partial(torch.library.Library, "aten", "IMPL"))


def register_kernel(operator: str, kernel: Callable[..., object], key: str) -> None:
    """Make ``kernel`` that of an ATen operator (``empty.memory_format``) for a dispatch key (``AutocastCPU``)."""
    library = _open_library()
    # Some versions of torch want to be told that a kernel may be replaced.
    override = {"allow_override": True} if "allow_override" in inspect.signature(library.impl).parameters else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel is replaced
        library.impl(operator, kernel, key, **override)  # type: ignore[no-untyped-call]


# A CUDA device guard for CPU builds of torch, where moving even a fake tensor to CUDA needs one.

_GUARD_SOURCE = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/FakeGuardImpl.h>
static c10::impl::FakeGuardImpl<c10::DeviceType::CUDA> guard;
static c10::impl::DeviceGuardImplRegistrar registrar(c10::DeviceType::CUDA, &guard);
"""


def build_guard() -> Path | None:
    """The library, built if need be (EnvironmentUnfit: it cannot be); None for a torch that has a guard of its own."""
    if torch.version.cuda is not None or torch.version.hip is not None:
        return None
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    key = hashlib.sha256(f"{torch.__version__}{torch.__file__}{_GUARD_SOURCE}".encode()).hexdigest()[:16]
    library = Path(cache_dir()) / "fuzzcompile" / f"cuda_guard_{key}.so"
    if library.exists():
        return library
    compiler = find_cxx_compiler()
    if compiler is None:
        raise EnvironmentUnfit(
            "A CPU build of torch needs a C++ compiler to be told of a CUDA device; install g++, or set CXX."
        )
    library.parent.mkdir(parents=True, exist_ok=True)
    source = library.with_suffix(f".{os.getpid()}.cpp")
    draft = library.with_suffix(f".{os.getpid()}.so")
    source.write_text(_GUARD_SOURCE, encoding="utf-8")
    root = Path(torch.__file__).parent
    include = [f"-I{root / 'include'}", f"-I{sysconfig.get_paths()['include']}"]
    link = [f"-L{root / 'lib'}", "-lc10", f"-Wl,-rpath,{root / 'lib'}"]
    command = [str(compiler), "-shared", "-fPIC", "-O0", "-std=c++20", *include, str(source), "-o", str(draft), *link]
    try:
        done = capture_output(command)
    finally:
        source.unlink(missing_ok=True)
    if done.returncode:
        line = next((line for line in done.stderr.splitlines() if "error" in line), "no reason given")
        raise EnvironmentUnfit(f"{compiler} cannot build the device guard that a target needs: {line}")
    return draft.replace(library)


Kernel = Callable[..., Any]
_LISTS: dict[str, Any] = read_table(__package__, "cuda_lists")
_SINGLE_NORMS: dict[str, str] = _LISTS["autocast"]["single_norms"]
_BANNED: str = _LISTS["autocast"]["banned"]
CACHED_ANSWERS = frozenset(_LISTS["cached_answers"].split())
"""Functions that remember an answer which depends on the device."""


def list_operators(policy: str) -> set[str]:
    """The operators of a policy of autocast in cuda_lists.toml."""
    return set(_LISTS["autocast"][policy].split())


@functools.cache
def install_autocast() -> None:
    """Make ``torch.autocast("cpu")`` follow CUDA's lists, with float16 by default, for the life of the process."""
    torch.set_autocast_dtype("cpu", torch.float16)
    for name, kernel in _make_kernels().items():
        register_kernel(name, kernel, "AutocastCPU")


def list_with_kernel(key: str) -> set[str]:
    """The operators of ATen that have a kernel for a dispatch key."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = (name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    return {name.removeprefix("aten::") for name in names if has(name, key)}


def _make_kernels() -> dict[str, Kernel]:
    on_cpu, on_cuda = list_with_kernel("AutocastCPU"), list_with_kernel("AutocastCUDA")
    # A composite operator's parts have policies of their own.
    composite = list_with_kernel("CompositeImplicitAutograd")
    kernels: dict[str, Kernel] = dict.fromkeys((on_cpu - on_cuda) & composite, torch.library.fallthrough_kernel)
    policies = (
        (on_cpu - on_cuda - composite, _leave_as_given),
        (list_operators("low_precision") & (on_cuda - on_cpu), _cast_to(lambda _: torch.get_autocast_dtype("cpu"))),
        (list_operators("single") & on_cuda, _cast_to(lambda tensors: torch.float32)),
        (list_operators("single_result") & on_cuda, _return_single),
        (list_operators("widest") & on_cuda, _cast_to(_widest)),
        (_SINGLE_NORMS.keys() & on_cuda, _run_norm_in_single),
    )
    made = {name: make(_find_overload(name)) for names, make in policies for name in names}
    return {**kernels, **made, _BANNED: _refuse}


def _find_overload(name: str) -> OpOverload:
    packet, _, overload = name.partition(".")
    operator: OpOverload = getattr(getattr(torch.ops.aten, packet), overload or "default")
    return operator


# The policies of at::autocast::CastPolicy.


def _widest(tensors: Sequence[torch.Tensor]) -> torch.dtype:
    single = any(value.dtype == torch.float32 for value in tensors)
    return torch.float32 if single else torch.get_autocast_dtype("cpu")


def _cast_to(choose: Callable[[Sequence[torch.Tensor]], torch.dtype]) -> Callable[[OpOverload], Kernel]:
    def make_kernel(operator: OpOverload) -> Kernel:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            tensors = [value for value in pytree.tree_leaves((args, kwargs)) if _is_cast(value)]
            args, kwargs = _cast_values(choose(tensors), (args, kwargs))
            return _call_operator(operator, args, kwargs)

        return kernel

    return make_kernel


def _leave_as_given(operator: OpOverload) -> Kernel:
    """Operators that CUDA's lists leave alone; one that the CPU lacks in half precision rounds its float32 result."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        try:
            return _call_operator(operator, args, kwargs)
        except RuntimeError as error:
            if "not implemented for" not in str(error):
                raise
        dtype = next(value.dtype for value in pytree.tree_leaves((args, kwargs)) if _is_cast(value))
        args, kwargs = _cast_values(torch.float32, (args, kwargs))
        return _cast_values(dtype, _call_operator(operator, args, kwargs))

    return kernel


def _return_single(operator: OpOverload) -> Kernel:
    position = [argument.name for argument in operator._schema.arguments].index("dtype")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        given = args[position] if position < len(args) else kwargs.get("dtype")
        if given is None and _is_cast(args[0]):
            kwargs["dtype"] = torch.float32
            args = args[:position]
        return _call_operator(operator, args, kwargs)

    return kernel


def _run_norm_in_single(operator: OpOverload) -> Kernel:
    schema = operator._schema
    with_dtype = _find_overload(_SINGLE_NORMS[f"{schema.name.removeprefix('aten::')}.{schema.overload_name}"])
    defaults = [argument.default_value for argument in schema.arguments]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if not _is_cast(args[0]):
            return _call_operator(operator, args, kwargs)
        return _call_operator(with_dtype, (*args, *defaults[len(args) :]), {**kwargs, "dtype": torch.float32})

    return kernel


def _refuse(*_: Any, **__: Any) -> Any:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
        "Many models use a sigmoid layer right before the binary cross entropy layer; combine the two with "
        "binary_cross_entropy_with_logits or BCEWithLogitsLoss, which are safe to autocast."
    )


def _call_operator(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
        return operator(*args, **kwargs)


def _cast_values(dtype: torch.dtype, values: Any) -> Any:
    return pytree.tree_map(lambda value: value.to(dtype) if _is_cast(value) else value, values)


def _is_cast(value: object) -> bool:
    """Return whether autocast casts a value: tensors of the CPU with a floating dtype other than float64."""
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
        return False
    return value.is_floating_point() and value.dtype != torch.float64


# Gradients of fake tensors on a device that is not there, for which autograd's engine has no thread.

NodeGradients = tuple[torch.Tensor | None, ...]


def wrap_grad(session: object, original: Callable[..., NodeGradients]) -> Callable[..., NodeGradients]:
    """``torch.autograd.grad``, which walks the nodes itself for outputs on CUDA."""

    @functools.wraps(original)
    def grad(outputs: Any, inputs: Any, grad_outputs: Any = None, *args: object, **kwargs: object) -> NodeGradients:
        listed = _as_list(outputs)
        if not any(isinstance(output, torch.Tensor) and output.is_cuda for output in listed):
            return original(outputs, inputs, grad_outputs, *args, **kwargs)
        given = [None] * len(listed) if grad_outputs is None else _as_list(grad_outputs)
        starts = [torch.ones_like(out) if start is None else start for out, start in zip(listed, given, strict=True)]
        with torch.no_grad():
            return compute_gradients(listed, starts, _as_list(inputs))

    return grad


def _as_list(values: Any) -> list[Any]:
    return [values] if isinstance(values, torch.Tensor) else list(values)


def compute_gradients(
    outputs: Sequence[torch.Tensor], grad_outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> NodeGradients:
    """Gradients of ``outputs`` for ``inputs``, given those of the outputs; None for an input that none depends on."""
    starts = [
        (get_gradient_edge(out), start) for out, start in zip(outputs, grad_outputs, strict=True) if out.requires_grad
    ]
    wanted = [get_gradient_edge(tensor) if tensor.requires_grad else None for tensor in inputs]
    ends = {(edge.node, edge.output_nr) for edge in wanted if edge is not None}
    roots = list(dict.fromkeys(edge.node for edge, _ in starts))
    order, last = list(_iterate_in_order(roots)), {node for node, _ in ends}
    needed: set[Node] = set()  # those whose calls lead to an end; an end itself is called only if it leads to another
    for node in reversed(order):
        if any(following in last or following in needed for following in _list_next_nodes(node)):
            needed.add(node)
    arrived: dict[Node, dict[int, torch.Tensor]] = defaultdict(dict)
    kept: dict[tuple[Node, int], torch.Tensor] = {}

    def add(node: Node, position: int, gradient: torch.Tensor) -> None:
        wanted, before = node._input_metadata[position], arrived[node].get(position)
        if tuple(gradient.shape) != tuple(wanted.shape):
            gradient = gradient.sum_to_size(wanted.shape)
        gradient = gradient.to(wanted.dtype)
        arrived[node][position] = gradient if before is None else before + gradient

    for edge, start in starts:
        add(edge.node, edge.output_nr, start)
    for node in order:
        gradients = arrived.pop(node, {})
        kept |= {(node, place): gradient for place, gradient in gradients.items() if (node, place) in ends}
        if not gradients or node not in needed or type(node).__name__ == "AccumulateGrad":
            continue
        results = _call_node(node, [gradients.get(position) for position in range(len(node._input_metadata))])
        for (following, place), result in zip(node.next_functions, results, strict=True):
            if following is not None and result is not None:
                add(following, place, result)
    return tuple(None if edge is None else kept.get((edge.node, edge.output_nr)) for edge in wanted)


def _iterate_in_order(roots: Sequence[Node]) -> Iterator[Node]:
    """The nodes in the engine's order: of those that wait for no other, the one that was made last."""
    waiting, pending = dict.fromkeys(roots, 0), list(roots)
    while pending:
        for following in _list_next_nodes(pending.pop()):
            if following not in waiting:
                pending.append(following)
            waiting[following] = waiting.get(following, 0) + 1
    order = itertools.count()
    ready = [(-node._sequence_nr(), next(order), node) for node in roots if not waiting[node]]
    heapq.heapify(ready)
    while ready:
        _, _, node = heapq.heappop(ready)
        yield node
        for following in _list_next_nodes(node):
            waiting[following] -= 1
            if not waiting[following]:
                heapq.heappush(ready, (-following._sequence_nr(), next(order), following))


def _list_next_nodes(node: Node) -> list[Node]:
    return [following for following, _ in node.next_functions if following is not None]


def _call_node(node: Any, gradients: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Call one node; a ``torch.autograd.Function`` gets zeros for outputs without a gradient, as from the engine."""
    if not hasattr(node, "apply"):  # written in C++
        results = node(*gradients)
    else:
        filled = [
            torch.zeros(made.shape, dtype=made.dtype, device=made.device) if gradient is None else gradient
            for gradient, made in zip(gradients, node._input_metadata, strict=True)
        ]
        results = node.apply(*filled)
    listed = list(results) if isinstance(results, (tuple, list)) else [results]
    nothing = [position for position, result in enumerate(listed) if result is None]
    # Arguments that are no tensors have no edge, and None as gradient: the last ones.
    surplus = max(0, len(listed) - len(node.next_functions))
    left_out = nothing[max(0, len(nothing) - surplus) :]
    return [result for position, result in enumerate(listed) if position not in left_out]
