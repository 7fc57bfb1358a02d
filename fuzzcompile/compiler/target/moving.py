"""Moving a captured graph to the target: its inputs, its constants, and every device that it names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch.fx.experimental.symbolic_shapes import compute_unbacked_bindings, rebind_unbacked
from torch.utils import _pytree as pytree
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import _disable_current_modes

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

CUDA = torch.device("cuda", 0)
_NAMED = ("example_value", "val")
#: Marks a tensor of the CPU that is none of the target's.
STAYS = "_stays_on_the_cpu"
# What dynamo writes on inputs, and AOTAutograd reads.
_MARKS = ("_dynamo_static_input_type", "_dynamo_weak_dynamic_indices", "_dynamo_dynamic_indices")
_MOVES = ("to", "cpu", "cuda", torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.cuda)


class NotMoved(Exception):
    """The graph holds something that cannot be moved to the target."""


def move(module: fx.GraphModule, inputs: Sequence[object]) -> list[object]:
    """Rewrite dynamo's graph for the target, in place, and return fake inputs on it.

    The whole program is moved, as if it ran under ``torch.set_default_device``: factories that name no device are
    given one.

    Args:
        module: dynamo's graph, with the fake value of each node in its metadata.
        inputs: what dynamo hands to its backend, one for each placeholder.

    Raises:
        NotMoved: an input is a tensor of another kind than a plain one.
    """
    holders = module.graph.find_nodes(op="placeholder")
    storages: dict[object, torch.UntypedStorage] = {}
    moved = [_input(node, value, storages) for node, value in zip(holders, inputs, strict=True)]
    numbers = [
        _is_number(node) and isinstance(value, torch.Tensor) for node, value in zip(holders, inputs, strict=True)
    ]
    for graph_module in module.modules():
        if isinstance(graph_module, fx.GraphModule):
            _rewrite(graph_module.graph)
            if graph_module is not module:
                _move_values(graph_module.graph)
            graph_module.recompile()
    _propagate(module, moved)
    return [_stays(value) if stays else fake for value, fake, stays in zip(inputs, moved, numbers, strict=True)]


def _is_number(holder: fx.Node) -> bool:
    """Return whether an input is a Python number, which dynamo passes as a tensor; it is on the CPU for any device."""
    fake = holder.meta.get("example_value")
    passed = getattr(holder.meta.get("grapharg"), "pass_arg_as_tensor", False)
    return bool(passed) and isinstance(fake, torch.Tensor) and fake.dim() == 0


def _stays(value: object) -> object:
    setattr(value, STAYS, True)
    return value


def _input(node: fx.Node, value: object, storages: dict[object, torch.UntypedStorage]) -> object:
    from torch._subclasses.fake_tensor import FakeTensor

    fake = next((node.meta[name] for name in _NAMED if name in node.meta), value)
    if not isinstance(fake, torch.Tensor):
        return fake
    if not isinstance(fake, FakeTensor):
        raise NotMoved(f"an input is a {type(fake).__name__}")
    made = moved_tensor(fake, storages)
    if isinstance(value, torch.nn.Parameter):
        made._is_param = True  # which makes it an instance of Parameter
    return made


def moved_tensor(
    fake: FakeTensor,
    storages: dict[object, torch.UntypedStorage] | None = None,
    *,
    mode: FakeTensorMode | None = None,
) -> FakeTensor:
    """The same fake tensor on the target, with its symbolic sizes.

    Args:
        fake: a fake tensor.
        storages: what tensors of one storage share on the target; filled on first use.
        mode: the mode in which it lives; None for that of the backend.
    """
    from torch._subclasses.fake_tensor import FakeTensor

    with torch.no_grad(), _disable_current_modes():
        meta = _meta(fake, {} if storages is None else storages)
        made = FakeTensor(mode or _backend_mode() or fake.fake_mode, meta, CUDA)
    made.requires_grad_(fake.requires_grad)
    for name in _MARKS:
        if hasattr(fake, name):
            setattr(made, name, getattr(fake, name))
    return made


def _backend_mode() -> FakeTensorMode | None:
    """The mode in which the backend works; dynamo's own, in which it traced, is another one."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    return None if context is None else context.fake_mode


def _meta(fake: FakeTensor, storages: dict[object, torch.UntypedStorage]) -> torch.Tensor:
    size, stride = fake.size(), fake.stride()
    if not all(isinstance(number, int) for number in (*size, *stride, fake.storage_offset())):
        return torch.empty_strided(size, stride, dtype=fake.dtype, device="meta")
    storage = fake.untyped_storage()
    shared = storages.setdefault(
        storage._cdata, torch.empty(storage.nbytes(), dtype=torch.uint8, device="meta").untyped_storage()
    )
    return torch.empty(0, dtype=fake.dtype, device="meta").set_(shared, fake.storage_offset(), size, stride)


def _rewrite(graph: fx.Graph) -> None:
    for node in graph.nodes:
        if node.op not in ("call_function", "call_method"):
            continue
        strings = node.target in _MOVES or "autocast" in str(node.target)
        node.args = cast(Any, pytree.tree_map(lambda value: _on_target(value, strings), node.args))  # noqa: B023
        node.kwargs = cast(Any, pytree.tree_map(lambda value: _on_target(value, True), node.kwargs))
        if node.target in ("cpu", torch.Tensor.cpu):
            node.target = "cuda"
            node.op = "call_method"
        if node.op == "call_function" and node.target in _device_constructors() and node.kwargs.get("device") is None:
            node.kwargs = {**node.kwargs, "device": CUDA}


def _on_target(value: object, strings: bool) -> object:
    if isinstance(value, torch.device):
        return CUDA if value.type == "cpu" else value
    return "cuda" if strings and value == "cpu" else value


def _move_values(graph: fx.Graph) -> None:
    """Values of the bodies of higher-order operators, which no propagation reaches."""
    from torch._subclasses.fake_tensor import FakeTensor

    for node in graph.nodes:
        for name in _NAMED:
            if name in node.meta:
                node.meta[name] = pytree.tree_map_only(FakeTensor, moved_tensor, node.meta[name])


class _Propagation(fx.Interpreter):
    def get_attr(self, target: Any, args: Any, kwargs: Any) -> object:
        """A tensor that the graph holds itself, in fake form."""
        value = super().get_attr(target, args, kwargs)
        mode = _backend_mode()
        return mode.from_tensor(value) if mode is not None and isinstance(value, torch.Tensor) else value

    def run_node(self, n: fx.Node) -> object:
        """Compute one node's value on the target and write it down."""
        known = next((n.meta[name] for name in _NAMED if name in n.meta), None)
        numbers = (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool)
        if n.op.startswith("call") and isinstance(known, numbers):
            return known  # a number is the same on every device, and that of a fake tensor cannot be read
        result = super().run_node(n)
        mode = _backend_mode()
        if mode is not None:  # a size that depends on data is the symbol that it was before
            rebind_unbacked(mode.shape_env, n, result)
            bindings = compute_unbacked_bindings(mode.shape_env, result)
            if bindings:
                n.meta["unbacked_bindings"] = bindings
        for name in _NAMED:
            if name in n.meta:
                n.meta[name] = result
        return result


def _propagate(module: fx.GraphModule, inputs: Sequence[object]) -> None:
    from torch._guards import detect_fake_mode

    mode = detect_fake_mode(inputs)
    if mode is None:
        return
    enabled = torch.is_grad_enabled()
    with mode, enable_python_dispatcher():
        _Propagation(module).run(*inputs)
    torch.set_grad_enabled(enabled)  # which the graph may have changed
