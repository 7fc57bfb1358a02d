"""Dynamo's graph with its in-place writes made functional, on real values, and views that lose a write."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from fuzzcompile.compiler.graph_replay import GraphReplayer
from fuzzcompile.compiler.watch.ledger import Snapshot
from fuzzcompile.run.arithmetic_modes import Float64Mode
from fuzzcompile.run.device import seed_everything
from fuzzcompile.run.tensors import copy_tree, have_same_values, share_storage

if TYPE_CHECKING:
    from torch._ops import OpOverload


SEEDS = (11, 12, 13)
"""Of a few random numbers, two ways to draw may give the same from one state."""


@dataclass
class NodeRun:
    """One run of a graph: values of its nodes by name, as they were when each had run, its outputs and inputs after.

    ``operators`` are the ATen operators that each node called. ``error`` ended the run, if it did not come to its end.
    """

    values: dict[str, Any] = field(default_factory=dict)
    outputs: list[object] = field(default_factory=list)
    inputs: list[object] = field(default_factory=list)
    operators: dict[str, list[OpOverload]] = field(default_factory=dict)
    error: BaseException | None = None


def run_eagerly(snapshot: Snapshot, inputs: Sequence[object], *, double: bool, seed: int = SEEDS[0]) -> NodeRun:
    """Run a torch-level graph as eager mode does, in float64 if ``double``."""
    return _run_graph(snapshot, inputs, double, seed, functional=False, by_node=True)


def run_functionalized(
    snapshot: Snapshot, inputs: Sequence[object], *, double: bool, seed: int = SEEDS[0], by_node: bool = False
) -> NodeRun | None:
    """Run a torch-level graph without in-place writes; None where this torch cannot be asked to.

    With ``by_node`` the values of nodes are kept. Reading them brings views up to date that functionalization would
    regenerate later, which may hide what is wrong with that.
    """
    return _run_graph(snapshot, inputs, double, seed, functional=True, by_node=by_node) if can_functionalize() else None


def can_functionalize() -> bool:
    """Return whether this torch has the functions that make functional tensors in their expected place."""
    try:
        importlib.import_module("torch._functorch._aot_autograd.functional_utils").to_fun  # noqa: B018
        importlib.import_module("torch._subclasses.functional_tensor").FunctionalTensorMode  # noqa: B018
    except (ImportError, AttributeError):
        return False
    return True


def find_identity_nodes(snapshot: Snapshot, inputs: Sequence[object]) -> set[str]:
    """Return the nodes of a torch-level graph that return their first argument itself: ``x.to(x.dtype)``."""
    names = set[str]()

    def compare(node: fx.Node, run: Callable[[], object]) -> object:
        value, first = run(), node.args[0] if node.args else None
        if node.op.startswith("call") and isinstance(first, fx.Node) and replayer.env[first] is value:
            names.add(node.name)
        return value

    replayer = GraphReplayer(snapshot, on_node=compare)
    # Whatever ends the run, the nodes up to there are known.
    with torch.no_grad(), leave_transforms(), contextlib.suppress(Exception):
        replayer.run(*copy_tree(list(inputs)))
    return names


def _run_graph(
    snapshot: Snapshot, inputs: Sequence[object], double: bool, seed: int, *, functional: bool, by_node: bool
) -> NodeRun:
    arguments = copy_tree(list(inputs), double=double)
    seed_everything(seed)
    found = NodeRun()
    wrap: Callable[[object], object] = _return_value
    plain: Callable[[object], object] = _return_value
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(leave_transforms())
        if functional:
            tools = importlib.import_module("torch._functorch._aot_autograd.functional_utils")
            mode = importlib.import_module("torch._subclasses.functional_tensor").FunctionalTensorMode
            wrap, plain = tools.to_fun, tools.from_fun
            stack.enter_context(mode())
        if double:
            stack.enter_context(Float64Mode(keep_casts=False))
        heard = stack.enter_context(OperatorRecorder(found.operators))
        keep = _make_copier(plain) if by_node else None

        def hear(node: fx.Node, run: Callable[[], object]) -> object:
            heard.node = node.name
            value = run()
            if keep is not None and node.op != "output":
                heard.node = ""
                found.values[node.name] = keep(value)
            return value

        try:
            given = [wrap(argument) for argument in arguments]
            results = pytree.tree_leaves(GraphReplayer(snapshot, on_node=hear).run(*given))
            found.outputs = [_detach(plain(result)) for result in results]
            found.inputs = [_detach(plain(value)) for value in given]
        except (KeyboardInterrupt, MemoryError):
            raise
        except Exception as error:  # of the program: it is the answer
            found.error = error
    return found


@contextlib.contextmanager
def leave_transforms() -> Iterator[None]:
    """Leave the transforms (vmap, grad) that a graph entered in the block and, because it raised, did not leave."""
    functorch = getattr(torch._C, "_functorch", None)
    stack = getattr(functorch, "get_interpreter_stack", None)

    def measure_depth() -> int:
        return len(stack() or ()) if stack is not None else 0

    before = measure_depth()
    try:
        yield
    finally:
        while measure_depth() > before:
            functorch.pop_dynamic_layer_stack()  # type: ignore[union-attr]


class OperatorRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode that records the called operators by the ``node`` that calls them (``""``: none was named)."""

    def __init__(self, operators: dict[str, list[OpOverload]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.node = ""
        self.operators = operators

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        self.operators.setdefault(self.node, []).append(func)
        return func(*args, **(kwargs or {}))


def _make_copier(plain: Callable[[object], object]) -> Callable[[object], object]:
    def copy(value: object) -> object:
        """A copy with the same strides: later in-place writes must not reach it."""
        read = plain(value)
        if not isinstance(read, torch.Tensor) or read.layout != torch.strided:
            return None
        with _disable_current_modes(), contextlib.suppress(NotImplementedError, RuntimeError):
            return copy_tree(read.detach())
        return None  # inside a transform (vmap, grad) it is no tensor with values of its own

    return copy


def _detach(value: object) -> object:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _return_value(value: object) -> object:
    return value


# Views through which nothing can be written back: what functionalization does to the rest of their base.


def find_lossy_views(snapshot: Snapshot, inputs: Sequence[object]) -> list[str]:
    """The nodes of a torch-level graph that make a view through which its own values cannot be written back.

    Writing a view's values to it again changes nothing. Functionalization computes the base anew from what was written,
    and a view that does not say all of its base may lose the rest.

    Args:
        snapshot: dynamo's graph.
        inputs: values of its placeholders, in order; copied before the run.
    """
    if not can_functionalize():
        return []
    lossy: list[str] = []

    def write_back(node: fx.Node, run: Callable[[], object]) -> object:
        value, first = run(), node.args[0] if node.op.startswith("call") and node.args else None
        base = replayer.env.get(first) if isinstance(first, fx.Node) else None
        if _shares_base(value, base) and _is_lossy(replayer, node):
            lossy.append(node.name)
        return value

    replayer = GraphReplayer(snapshot, on_node=write_back)
    # Whatever ends the run, the nodes up to there are known.
    with torch.no_grad(), leave_transforms(), contextlib.suppress(Exception):
        replayer.run(*copy_tree(list(inputs)))
    return lossy


def _is_lossy(replayer: GraphReplayer, node: fx.Node) -> bool:
    tools = importlib.import_module("torch._functorch._aot_autograd.functional_utils")
    mode = importlib.import_module("torch._subclasses.functional_tensor").FunctionalTensorMode
    args, kwargs = replayer.fetch_args_kwargs_from_env(node)
    before = args[0].detach().clone()
    with contextlib.suppress(RuntimeError, NotImplementedError), mode():
        base = tools.to_fun(args[0].detach().clone())
        view: Any = getattr(replayer, node.op)(node.target, (base, *args[1:]), kwargs)
        view.copy_(view.clone())
        after = tools.from_fun(base)
        return not have_same_values(before, after)
    return False  # a view that cannot be written to at all loses nothing


def _shares_base(value: object, base: object) -> bool:
    if not isinstance(value, torch.Tensor) or not isinstance(base, torch.Tensor) or value is base:
        return False
    return share_storage(value, base)
