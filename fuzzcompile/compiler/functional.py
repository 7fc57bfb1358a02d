"""Dynamo's graph with its in-place writes made functional, as AOTAutograd does it, on real values."""

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

from fuzzcompile.compiler.ledger import Snapshot
from fuzzcompile.compiler.replay import _Replayer
from fuzzcompile.execution.device import seed_everything
from fuzzcompile.execution.float64 import Float64Mode
from fuzzcompile.execution.tensors import copy_tree

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


def run_plainly(snapshot: Snapshot, inputs: Sequence[object], *, double: bool, seed: int = SEEDS[0]) -> NodeRun:
    """Run a torch-level graph as eager mode does, in float64 if ``double``."""
    return _run(snapshot, inputs, double, seed, functional=False, by_node=True)


def run_functionally(
    snapshot: Snapshot, inputs: Sequence[object], *, double: bool, seed: int = SEEDS[0], by_node: bool = False
) -> NodeRun | None:
    """Run a torch-level graph without in-place writes; None where this torch cannot be asked to.

    With ``by_node`` the values of nodes are kept. Reading them brings views up to date that functionalization would
    regenerate later, which may hide what is wrong with that.
    """
    return _run(snapshot, inputs, double, seed, functional=True, by_node=by_node) if can_functionalize() else None


def can_functionalize() -> bool:
    """Return whether this torch has the functions that make functional tensors in their expected place."""
    try:
        importlib.import_module("torch._functorch._aot_autograd.functional_utils").to_fun  # noqa: B018
        importlib.import_module("torch._subclasses.functional_tensor").FunctionalTensorMode  # noqa: B018
    except (ImportError, AttributeError):
        return False
    return True


def passing_on(snapshot: Snapshot, inputs: Sequence[object]) -> set[str]:
    """Return the nodes of a torch-level graph that return their first argument itself: ``x.to(x.dtype)``."""
    interpreter = _PassedOn(snapshot)
    # Whatever ends the run, the nodes up to there are known.
    with torch.no_grad(), transforms_left(), contextlib.suppress(Exception):
        interpreter.run(*copy_tree(list(inputs)))
    return interpreter.names


class _PassedOn(_Replayer):
    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        self.names: set[str] = set()

    def run_node(self, n: fx.Node) -> object:
        """Run one node and see whether its result is its argument."""
        value = super().run_node(n)
        first = n.args[0] if n.args else None
        if n.op.startswith("call") and isinstance(first, fx.Node) and self.env[first] is value:
            self.names.add(n.name)
        return value


def _run(
    snapshot: Snapshot, inputs: Sequence[object], double: bool, seed: int, *, functional: bool, by_node: bool
) -> NodeRun:
    arguments = copy_tree(list(inputs), double=double)
    seed_everything(seed)
    found = NodeRun()
    wrap: Callable[[object], object] = _same
    plain: Callable[[object], object] = _same
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(transforms_left())
        if functional:
            tools = importlib.import_module("torch._functorch._aot_autograd.functional_utils")
            mode = importlib.import_module("torch._subclasses.functional_tensor").FunctionalTensorMode
            wrap, plain = tools.to_fun, tools.from_fun
            stack.enter_context(mode())
        if double:
            stack.enter_context(Float64Mode(keep_casts=False))
        heard = stack.enter_context(Heard(found.operators))
        keep = _kept(plain) if by_node else None
        try:
            given = [wrap(argument) for argument in arguments]
            results = pytree.tree_leaves(_Interpreter(snapshot, heard, found, keep).run(*given))
            found.outputs = [_detached(plain(result)) for result in results]
            found.inputs = [_detached(plain(value)) for value in given]
        except (KeyboardInterrupt, MemoryError):
            raise
        except Exception as error:  # of the program: it is the answer
            found.error = error
    return found


@contextlib.contextmanager
def transforms_left() -> Iterator[None]:
    """Leave the transforms (vmap, grad) that a graph entered in the block and, because it raised, did not leave."""
    functorch = getattr(torch._C, "_functorch", None)
    stack = getattr(functorch, "get_interpreter_stack", None)

    def depth() -> int:
        return len(stack() or ()) if stack is not None else 0

    before = depth()
    try:
        yield
    finally:
        while depth() > before:
            functorch.pop_dynamic_layer_stack()  # type: ignore[union-attr]


class Heard(TorchDispatchMode):  # type: ignore[no-untyped-call]
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


class _Interpreter(_Replayer):
    def __init__(
        self, snapshot: Snapshot, heard: Heard, found: NodeRun, keep: Callable[[object], object] | None
    ) -> None:
        super().__init__(snapshot)
        self._heard, self._found, self._kept = heard, found, keep

    def run_node(self, n: fx.Node) -> object:
        """Run one node and keep its value."""
        self._heard.node = n.name
        value = super().run_node(n)
        if self._kept is not None and n.op != "output":
            self._heard.node = ""
            self._found.values[n.name] = self._kept(value)
        return value


def _kept(plain: Callable[[object], object]) -> Callable[[object], object]:
    def copy(value: object) -> object:
        """A copy with the same strides: later in-place writes must not reach it."""
        read = plain(value)
        if not isinstance(read, torch.Tensor) or read.layout != torch.strided:
            return None
        with _disable_current_modes(), contextlib.suppress(NotImplementedError, RuntimeError):
            return copy_tree(read.detach())
        return None  # inside a transform (vmap, grad) it is no tensor with values of its own

    return copy


def _detached(value: object) -> object:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _same(value: object) -> object:
    return value
