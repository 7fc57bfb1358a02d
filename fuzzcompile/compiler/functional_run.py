"""Dynamo's graph run node by node, as it is or with its writes made functional, and views that lose a write.

The modes of a program's own see each function or operator that is called: here also is eager mode without them.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from fuzzcompile.compiler.graph_replay import GraphReplayer
from fuzzcompile.compiler.watch.ledger import Snapshot
from fuzzcompile.compiler.watch.unseen import note_early_end
from fuzzcompile.model.facts import facts
from fuzzcompile.run.arithmetic_modes import Float64Mode
from fuzzcompile.run.call_state import is_own_mode
from fuzzcompile.run.device import seed_everything
from fuzzcompile.run.metrics import have_same_values
from fuzzcompile.run.tensors import copy_tree, is_wrapper, is_wrapper_class, share_storage
from fuzzcompile.run.torch_attributes import replace_attribute
from fuzzcompile.run.transforms import leave_transforms

__watches_calls__ = True  # the frames of its mode stand between a call and the program that makes it
SEEDS = (11, 12, 13)
"""Of a few random numbers, two ways to draw may give the same from one state."""


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Has a function run every operator: it gets the operator and its arguments, and returns the result."""

    def __init__(self, run: Callable[[Any, tuple[Any, ...], dict[str, Any]], object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._run = run

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        if any(map(is_wrapper_class, types)):  # it calls other operators, which come here
            return NotImplemented
        return self._run(func, args, kwargs or {})


class FunctionalTools(NamedTuple):
    """AOTAutograd's functions that make functional tensors and read them, and the mode in which they work."""

    to_fun: Callable[[object], Any]
    from_fun: Callable[[object], object]
    mode: Callable[[], contextlib.AbstractContextManager[object]]


def load_functional_tools() -> FunctionalTools | None:
    """The functions; None where this torch does not have them in their expected place."""
    try:
        tools = importlib.import_module("torch._functorch._aot_autograd.functional_utils")
        mode = importlib.import_module("torch._subclasses.functional_tensor").FunctionalTensorMode
        return FunctionalTools(tools.to_fun, tools.from_fun, mode)
    except (ImportError, AttributeError):
        return None


def is_bound_to_capture(snapshot: Snapshot) -> bool:
    """Return whether calls of a graph give other values outside of the grad mode and transforms of their capture."""
    return any(word in call for call in snapshot.operator_names for word in facts().operators.bound_to_capture)


def visit_nodes(
    snapshot: Snapshot,
    inputs: Sequence[object],
    visit: Callable[[GraphReplayer, fx.Node, Callable[[], object]], object],
    *,
    grad: bool = False,
) -> None:
    """Run a graph on copies of ``inputs`` as far as it goes; ``visit`` is called in place of each node."""
    replayer = GraphReplayer(snapshot, on_node=lambda node, run: visit(replayer, node, run))
    ending = note_early_end("walk along a graph", "calls behind the operator that raised")
    with torch.set_grad_enabled(grad), leave_transforms(), ending:
        replayer.run(*copy_tree(list(inputs)))


@dataclass
class NodeRun:
    """One run of a graph, which ``error`` may have ended."""

    values: dict[str, Any] = field(default_factory=dict)  # of nodes, as they were when each had run
    outputs: list[object] = field(default_factory=list)
    inputs: list[object] = field(default_factory=list)  # as they are afterwards
    operators: dict[str, list[OpOverload]] = field(default_factory=dict)
    random_state: torch.Tensor | None = None  # of the CPU's generator, afterwards
    error: BaseException | None = None


def run_eagerly(
    snapshot: Snapshot,
    inputs: Sequence[object],
    *,
    double: bool,
    seed: int = SEEDS[0],
    tools: FunctionalTools | None = None,
    by_node: bool = True,
) -> NodeRun:
    """Run a torch-level graph as eager mode does, in float64 if ``double``; with ``tools``, without in-place writes.

    With ``by_node`` the values of nodes are kept. Reading them brings views up to date that functionalization would
    regenerate later, which may hide what is wrong with that.
    """
    arguments, found, under_way = copy_tree(list(inputs), double=double), NodeRun(), ""
    to_fun, from_fun, mode = tools or FunctionalTools(lambda value: value, lambda value: value, contextlib.nullcontext)
    seed_everything(seed)

    def hear(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        found.operators.setdefault(under_way, []).append(operator)
        return operator(*args, **kwargs)

    def run_node(node: fx.Node, run: Callable[[], object]) -> object:
        nonlocal under_way
        under_way = node.name
        value = run()
        if by_node and node.op != "output":
            under_way, plain = "", from_fun(value)
            found.values[node.name] = None  # inside a transform (vmap, grad) it is no tensor with values of its own
            if isinstance(plain, torch.Tensor) and plain.layout == torch.strided:
                with _disable_current_modes(), contextlib.suppress(NotImplementedError, RuntimeError):
                    found.values[node.name] = copy_tree(plain.detach())
        return value

    in_float64 = Float64Mode(keep_casts=False) if double else contextlib.nullcontext()
    with torch.no_grad(), leave_transforms(), mode(), in_float64, OperatorMode(hear):
        try:
            given = [to_fun(argument) for argument in arguments]
            results = pytree.tree_leaves(GraphReplayer(snapshot, on_node=run_node).run(*given))
            found.outputs, found.inputs = (
                [value.detach() if isinstance(value, torch.Tensor) else value for value in map(from_fun, values)]
                for values in (results, given)
            )
            found.random_state = torch.get_rng_state()
        except (KeyboardInterrupt, MemoryError):
            raise
        except Exception as error:  # of the program: it is the answer
            found.error = error
    return found


def find_identity_nodes(snapshot: Snapshot, inputs: Sequence[object]) -> set[str]:
    """The nodes of a torch-level graph that return their first argument itself: ``x.to(x.dtype)``."""
    names = set[str]()

    def compare(replayer: GraphReplayer, node: fx.Node, run: Callable[[], object]) -> object:
        value, first = run(), node.args[0] if node.args else None
        if node.op.startswith("call") and isinstance(first, fx.Node) and replayer.env[first] is value:
            names.add(node.name)
        return value

    visit_nodes(snapshot, inputs, compare)
    return names


def find_lossy_views(snapshot: Snapshot, inputs: Sequence[object]) -> list[str]:
    """The nodes of dynamo's graph that make a view through which its own values cannot be written back."""
    # Functionalization makes the base anew from what was written: a view that does not say all of it may lose the rest.
    lossy: list[str] = []
    tools = load_functional_tools()

    def write_back(replayer: GraphReplayer, node: fx.Node, run: Callable[[], object]) -> object:
        value, first = run(), node.args[0] if node.op.startswith("call") and node.args else None
        base = replayer.env.get(first) if isinstance(first, fx.Node) else None
        if tools is None or is_wrapper(value):
            return value
        if isinstance(value, torch.Tensor) and isinstance(base, torch.Tensor) and value is not base:
            lossy.extend([node.name] if share_storage(value, base) and _is_lossy(tools, replayer, node) else [])
        return value

    visit_nodes(snapshot, inputs, write_back)
    return lossy


def _is_lossy(tools: FunctionalTools, replayer: GraphReplayer, node: fx.Node) -> bool:
    args, kwargs = replayer.fetch_args_kwargs_from_env(node)
    before = args[0].detach().clone()
    with contextlib.suppress(RuntimeError, NotImplementedError), tools.mode():
        base = tools.to_fun(args[0].detach().clone())
        view: Any = getattr(replayer, node.op)(node.target, (base, *args[1:]), kwargs)
        view.copy_(view.clone())
        after: Any = tools.from_fun(base)
        return not have_same_values(before, after)
    return False  # a view that cannot be written to at all loses nothing


_HANDLERS: Mapping[type[object], str] = {
    TorchDispatchMode: "__torch_dispatch__",
    TorchFunctionMode: "__torch_function__",
}


@contextlib.contextmanager
def bypass_modes(only: Collection[str] | None = None) -> Iterator[Collection[str]]:
    """Let every call through the modes that are not torch's, all of them or those of some names, unseen in this block.

    Yields:
        The names of the classes of those that were to see a call so far, in their order.
    """
    seen = dict[str, None]()

    def let_through(name: str) -> Callable[..., object]:
        def handle(
            mode: object,
            function: Callable[..., object],
            types: object,
            args: Sequence[object] = (),
            kwargs: Any = None,
        ) -> object:
            seen.setdefault(name)
            return function(*args, **(kwargs or {}))

        return handle

    with contextlib.ExitStack() as stack:
        for kind, handler in list_modes():
            if only is None or kind.__name__ in only:
                stack.enter_context(replace_attribute(kind, handler, let_through(kind.__name__)))
        yield seen.keys()


def list_modes() -> list[tuple[type[object], str]]:
    """The classes of modes in this process that are not torch's or ours, each with its method that sees a call."""
    kinds = ((kind, handler) for base, handler in _HANDLERS.items() for kind in _list_subclasses(base))
    return [(kind, at) for kind, at in kinds if at in vars(kind) and is_own_mode(kind)]


def _list_subclasses(base: type[object]) -> Iterator[type[object]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _list_subclasses(kind)
