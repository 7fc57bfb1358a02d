"""Moving a captured graph to the target: its inputs, its constants, and every device that it names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import TracingContext, detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import compute_unbacked_bindings, rebind_unbacked
from torch.utils import _pytree as pytree
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from fuzzcompile.run.reference.device_kernels import find_stand_in
from fuzzcompile.run.tensors import SHORT_FLOATS, is_higher_order, is_plain, run_inside

CUDA = torch.device("cuda", 0)
_DEVICE_NAMES = ("example_value", "val")
#: Marks a tensor of the CPU that is none of the target's.
STAYS = "_stays_on_the_cpu"
# What dynamo writes on inputs, and AOTAutograd reads.
_MARKS = ("_dynamo_static_input_type", "_dynamo_weak_dynamic_indices", "_dynamo_dynamic_indices")
_MOVES = ("to", "cpu", "cuda", torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.cuda)


class NotMoved(Exception):
    """The graph holds something that cannot be moved to the target."""


def move_graph(module: fx.GraphModule, inputs: Sequence[object]) -> list[object]:
    """Rewrite dynamo's graph for the target, in place, and return fake inputs on it.

    The whole program is moved, as if it ran under ``torch.set_default_device``: factories that name no device are
    given one. ``inputs`` are what dynamo hands to its backend, one for each placeholder, whose fake value is in its
    metadata. Raises NotMoved for a tensor of another kind than a plain one.
    """
    holders = module.graph.find_nodes(op="placeholder")
    storages: dict[object, torch.UntypedStorage] = {}
    moved = [_move_input(node, value, storages) for node, value in zip(holders, inputs, strict=True)]
    for graph_module in module.modules():
        if isinstance(graph_module, fx.GraphModule):
            _rewrite_devices(graph_module.graph)
            if graph_module is not module:  # the body of a higher-order operator, which no propagation reaches
                for node in graph_module.graph.nodes:
                    known = {name: node.meta[name] for name in _DEVICE_NAMES if name in node.meta}
                    node.meta.update(pytree.tree_map_only(FakeTensor, move_tensor, known))
            graph_module.recompile()
    if (mode := detect_fake_mode(moved)) is not None:
        enabled = torch.is_grad_enabled()
        with mode, enable_python_dispatcher():
            _Propagation(module).run(*moved)
        torch.set_grad_enabled(enabled)  # which the graph may have changed
    for position, (holder, value) in enumerate(zip(holders, inputs, strict=True)):
        fake = holder.meta.get("example_value")
        passed = getattr(holder.meta.get("grapharg"), "pass_arg_as_tensor", False)
        if isinstance(value, torch.Tensor) and passed and isinstance(fake, torch.Tensor) and fake.dim() == 0:
            setattr(value, STAYS, True)  # a Python number, which dynamo passes as a tensor: on the CPU for any device
            moved[position] = value
    return moved


def _move_input(node: fx.Node, value: object, storages: dict[object, torch.UntypedStorage]) -> object:
    fake = next((node.meta[name] for name in _DEVICE_NAMES if name in node.meta), value)
    if not isinstance(fake, torch.Tensor):
        return fake
    if not isinstance(fake, FakeTensor):
        raise NotMoved(f"an input is a {type(fake).__name__}")
    made = move_tensor(fake, storages)
    if isinstance(value, torch.nn.Parameter):
        made._is_param = True  # which makes it an instance of Parameter
    return made


def move_tensor(
    fake: FakeTensor, storages: dict[object, torch.UntypedStorage] | None = None, *, mode: FakeTensorMode | None = None
) -> FakeTensor:
    """The same fake tensor on the target, in ``mode`` or the backend's; tensors of one storage share ``storages``."""
    with torch.no_grad(), _disable_current_modes():
        meta = _make_meta(fake, {} if storages is None else storages)
        made = FakeTensor(mode or _find_backend_mode() or fake.fake_mode, meta, CUDA)
    made.requires_grad_(fake.requires_grad)
    for name in _MARKS:
        if hasattr(fake, name):
            setattr(made, name, getattr(fake, name))
    return made


def _find_backend_mode() -> FakeTensorMode | None:
    """The mode in which the backend works; dynamo's own, in which it traced, is another one."""
    context = TracingContext.try_get()
    return None if context is None else context.fake_mode


def _make_meta(fake: FakeTensor, storages: dict[object, torch.UntypedStorage]) -> torch.Tensor:
    size, stride = fake.size(), fake.stride()
    if not all(isinstance(number, int) for number in (*size, *stride, fake.storage_offset())):
        return torch.empty_strided(size, stride, dtype=fake.dtype, device="meta")
    storage = fake.untyped_storage()
    shared = storages.setdefault(
        storage._cdata, torch.empty(storage.nbytes(), dtype=torch.uint8, device="meta").untyped_storage()
    )
    return torch.empty(0, dtype=fake.dtype, device="meta").set_(shared, fake.storage_offset(), size, stride)


def _rewrite_devices(graph: fx.Graph) -> None:
    for node in graph.nodes:
        if node.op not in ("call_function", "call_method"):
            continue
        strings = node.target in _MOVES or "autocast" in str(node.target)
        node.args = cast(Any, pytree.tree_map(lambda value: _replace_device(value, strings), node.args))  # noqa: B023
        node.kwargs = cast(Any, pytree.tree_map(lambda value: _replace_device(value, True), node.kwargs))
        if node.target in ("cpu", torch.Tensor.cpu):
            node.target = "cuda"
            node.op = "call_method"
        if node.op == "call_function" and node.target in _device_constructors() and node.kwargs.get("device") is None:
            node.kwargs = {**node.kwargs, "device": CUDA}


def _replace_device(value: object, strings: bool) -> object:
    if isinstance(value, torch.device):
        return CUDA if value.type == "cpu" else value
    return "cuda" if strings and value == "cpu" else value


class _Propagation(fx.Interpreter):
    def get_attr(self, target: Any, args: Any, kwargs: Any) -> object:
        value = super().get_attr(target, args, kwargs)
        mode = _find_backend_mode()
        return mode.from_tensor(value) if mode is not None and isinstance(value, torch.Tensor) else value

    def run_node(self, n: fx.Node) -> object:
        known = next((n.meta[name] for name in _DEVICE_NAMES if name in n.meta), None)
        numbers = (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool)
        if n.op.startswith("call") and isinstance(known, numbers):
            return known  # a number is the same on every device, and that of a fake tensor cannot be read
        result = super().run_node(n)
        mode = _find_backend_mode()
        if mode is not None:  # a size that depends on data is the symbol that it was before
            rebind_unbacked(mode.shape_env, n, result)
            bindings = compute_unbacked_bindings(mode.shape_env, result)
            if bindings:
                n.meta["unbacked_bindings"] = bindings
        for name in _DEVICE_NAMES:
            if name in n.meta:
                n.meta[name] = result
        return result


# Tensors that a graph holds itself (frozen parameters, constants): on the CPU, where they stand for the target's.

_MOVED_CONSTANTS = "_moved_to_target"


def wrap_conversion(session: object, original: Callable[..., Any]) -> Callable[..., Any]:
    """``FakeTensorConverter.from_real_tensor``: a tensor of the program is one of the target in fake form."""

    @functools.wraps(original)
    def from_real_tensor(
        converter: object, mode: Any, real: torch.Tensor, make_constant: bool = False, *args: Any, **kwargs: Any
    ) -> Any:
        fake = original(converter, mode, real, make_constant, *args, **kwargs)
        plain = is_plain(real)
        if make_constant or hasattr(real, STAYS) or fake.device.type != "cpu" or not plain:
            return fake
        if not hasattr(fake, _MOVED_CONSTANTS):
            moved = move_tensor(fake, mode=mode)
            moved._is_param = isinstance(real, torch.nn.Parameter)
            setattr(fake, _MOVED_CONSTANTS, moved)
        return getattr(fake, _MOVED_CONSTANTS)

    return from_real_tensor


def wrap_constant(session: object, original: Callable[..., Any]) -> Callable[..., Any]:
    """``GraphLowering.add_tensor_constant``: code is generated for a constant of the target."""

    @functools.wraps(original)
    def add_tensor_constant(*args: Any, **kwargs: Any) -> Any:
        box = original(*args, **kwargs)
        layout = box.data.data.layout
        if layout.device.type == "cpu":
            layout.device = CUDA
        return box

    return add_tensor_constant


# References that compute the operators of a target's graph on the CPU.

ReferenceFunction = Callable[..., object]


@functools.cache
def find_cpu_reference(operator: object) -> ReferenceFunction | None:
    """Return what computes the same as ``operator`` on arguments on the CPU; None if the CPU runs it itself."""
    if not isinstance(operator, torch._ops.OpOverload):
        return None
    return _REFERENCES.get(operator._name) or find_stand_in(operator)


@functools.cache
def explain_no_reference(operator: object) -> str | None:
    """Return why a graph with ``operator`` cannot be computed on the CPU, as a clause; None if it may well be."""
    if not isinstance(operator, torch._ops.OpOverload) or find_cpu_reference(operator) is not None:
        return None
    name, has = operator._name, torch._C._dispatch_has_kernel_for_dispatch_key
    in_python = {key.name for key in operator.py_kernels if isinstance(key, torch._C.DispatchKey)}
    if any(has(name, key) or key in in_python for key in _KEYS):
        return None
    reason = next((reason for part, reason in _OPAQUE.items() if part in name), "there is no reference for it")
    return f"{name} has no kernel for the CPU, and {reason}"


_KEYS = (
    *("CPU", "SparseCPU", "SparseCsrCPU", "QuantizedCPU", "MkldnnCPU", "NestedTensorCPU"),
    *("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"),
)
_REFERENCES: dict[str, ReferenceFunction] = {
    "prims::device_put": lambda a, *_, **__: a,
    "aten::record_stream": lambda *_, **__: None,
    "aten::_pin_memory": lambda self, *_, **__: self.clone(),
}
# Parts of names of operators without a reference, and why there is none.
_OPAQUE = {
    "int4pack": "the layout of its packed weights is the kernel's own",
    "semi_structured": "the layout of its sparse weights is the kernel's own",
    "_cslt": "the layout of its sparse weights is the kernel's own",
    "_rnn": "the layout of its weights and its reserve is the library's own",
    "ctc_loss": "its choice between two kernels is the library's own",
}


# Running calls of a target's graph on tensors of the CPU.

# Error messages of CPU kernels that lack a dtype.
_LACKS = ("not implemented for", "Could not run", "not supported for", "is only supported for")
T = TypeVar("T")


class NotOnCpu(Exception):
    """A graph of the target holds an operator that cannot be computed on the CPU: its values are not known."""


def says_missing_kernel(message: str) -> bool:
    """Return whether an error message says that the CPU has no kernel for an operator or a dtype."""
    return any(text in message for text in _LACKS)


def replace_devices(values: T) -> T:
    """The same arguments with the CPU for every device of the target."""

    def place(value: object) -> object:
        if isinstance(value, torch.device):
            return torch.device("cpu")
        return "cpu" if isinstance(value, str) and value.partition(":")[0] == "cuda" else value

    return pytree.tree_map(place, values)  # type: ignore[no-any-return]


def call_on_cpu(operator: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """Call an operator of a target's graph with arguments on the CPU; NotOnCpu where there is no way to compute it.

    What the CPU lacks is computed by a reference; where it lacks only half precision, in float32, rounded once.
    """
    args, kwargs = replace_devices(args), replace_devices(kwargs)
    if (why := explain_no_reference(operator)) is not None:
        raise NotOnCpu(why)
    try:
        return (find_cpu_reference(operator) or operator)(*args, **kwargs)
    except (NotImplementedError, RuntimeError) as error:
        if not says_missing_kernel(str(error)):
            raise
        return _call_in_float32(operator, args, kwargs, error)


class CpuMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that runs operators on the CPU that name the target or that the CPU lacks, nested ones included."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if is_higher_order(func):
            return run_inside(self, func, replace_devices(args), replace_devices(kwargs or {}))
        return call_on_cpu(func, args, kwargs or {})


def _call_in_float32(
    operator: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any], lacking: Exception
) -> object:
    dtypes = {leaf.dtype for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
    narrow = [dtype for dtype in SHORT_FLOATS if dtype in dtypes]
    why = f"{operator} cannot be computed on the CPU: {str(lacking).strip().splitlines()[0]}"
    schema = getattr(operator, "_schema", None)
    if len(narrow) != 1 or schema is None or schema.is_mutable:
        raise NotOnCpu(why) from lacking

    def cast(source: torch.dtype, target: torch.dtype) -> Callable[[object], object]:
        return lambda leaf: leaf.to(target) if isinstance(leaf, torch.Tensor) and leaf.dtype is source else leaf

    args, kwargs = pytree.tree_map(cast(narrow[0], torch.float32), (args, kwargs))
    try:
        result = operator(*args, **kwargs)
    except (NotImplementedError, RuntimeError):
        raise NotOnCpu(why) from lacking
    return pytree.tree_map(cast(torch.float32, narrow[0]), result)
