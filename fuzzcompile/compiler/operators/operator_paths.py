"""Calls of dynamo's graph along both paths: in eager mode, and as dynamo or AOTAutograd traces them."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.autograd import profiler
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from fuzzcompile.compiler import functional_run
from fuzzcompile.compiler.graph_replay import GraphReplayer, _is_drawing
from fuzzcompile.compiler.operators.operator_application import (
    Arguments,
    OperatorOutcome,
    Outcomes,
    use_python_dispatcher,
)
from fuzzcompile.compiler.watch.ledger import Snapshot
from fuzzcompile.model.facts import facts
from fuzzcompile.run.device import seed_everything
from fuzzcompile.run.tensors import copy_tree

if TYPE_CHECKING:
    from torch._ops import OpOverload

_CALLS = ("call_function", "call_method", "call_module")
_FACTS = facts().operators
Backend = Callable[..., Any]


@dataclass(frozen=True)
class ComparedCall:
    """One call of dynamo's graph on its real arguments: in eager mode, and as AOTAutograd traces it.

    If it draws random numbers (``draws``), both paths began in the same state, and their last result is the state that
    they left.
    """

    node: fx.Node
    eager: OperatorOutcome
    traced: OperatorOutcome
    draws: bool
    _call: Callable[..., object]
    _arguments: Arguments
    _tools: functional_run.FunctionalTools

    def run_in_float64(self) -> Outcomes:
        """Both outcomes on float64 arguments."""
        traced = _run_traced(self._tools, self._call, self._arguments, double=True)[0]
        return _run_eager(self._call, self._arguments, double=True), traced

    def list_eager_operators(self) -> list[str]:
        """The operators that the eager path calls, each before those that it consists of."""
        with profile_operators() as heard:
            self._call(*copy_tree(self._arguments))
        return [name for name, _ in list_profiled_operators(heard)]

    def list_traced_operators(self) -> list[str]:
        """The operators that the traced path calls."""
        return [str(operator) for operator in _run_traced(self._tools, self._call, self._arguments)[1]]


def compare_paths(
    snapshot: Snapshot, inputs: Sequence[object], judge: Callable[[ComparedCall], None], *, grad: bool
) -> None:
    """Run dynamo's graph in eager mode and have ``judge`` see each of its calls along both paths, in order.

    Calls that write to their arguments, are no calls of tensors or cannot be traced by themselves are not shown. Of a
    call that draws random numbers the state of the generator is one more result, and it is shown for several states.
    ``grad`` says whether the program has gradients.
    """
    tools = functional_run.load_functional_tools()
    if tools is None or functional_run.is_bound_to_capture(snapshot):
        return

    def compare(replayer: GraphReplayer, node: fx.Node, run: Callable[[], object]) -> object:
        if node.op not in _CALLS or _writes(node):
            return run()
        try:
            given = copy_tree(replayer.fetch_args_kwargs_from_env(node))
        except (NotImplementedError, RuntimeError):  # a kind of tensor that cannot be copied
            return run()
        for seed in functional_run.SEEDS if _is_drawing(node) else (None,):
            _show_call(replayer, tools, node, given, seed, judge)
        return run()

    seed_everything(functional_run.SEEDS[0])
    functional_run.visit_nodes(snapshot, inputs, compare, grad=grad)


def _show_call(
    replayer: GraphReplayer,
    tools: functional_run.FunctionalTools,
    node: fx.Node,
    arguments: Arguments,
    seed: int | None,
    judge: Callable[[ComparedCall], None],
) -> None:
    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        if seed is None:
            return getattr(replayer, node.op)(node.target, args, kwargs)
        seed_everything(seed)
        return getattr(replayer, node.op)(node.target, args, kwargs), torch.get_rng_state()

    eager = _run_eager(call, arguments)
    if any(isinstance(result, torch.Tensor) for result in eager.results):
        traced = _run_traced(tools, call, arguments)[0]
        if traced.error is None:
            judge(ComparedCall(node, eager, traced, seed is not None, call, arguments, tools))


def _writes(node: fx.Node) -> bool:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = (name.endswith("_") and not name.endswith("__")) or name.startswith("__i") or name == "setitem"
    return in_place or "out" in node.kwargs or name in _FACTS.uninitialised


def _run_eager(call: Callable[..., object], arguments: Arguments, *, double: bool = False) -> OperatorOutcome:
    given = copy_tree(arguments, double=double)
    return OperatorOutcome.from_call(lambda: call(*given), given)


def _run_traced(
    tools: functional_run.FunctionalTools, call: Callable[..., object], arguments: Arguments, *, double: bool = False
) -> tuple[OperatorOutcome, list[OpOverload]]:
    plain, heard = copy_tree(arguments, double=double), list[Any]()

    def hear(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        heard.append(operator)
        return operator(*args, **kwargs)

    def trace() -> object:
        with (
            functional_run.leave_transforms(),
            use_python_dispatcher(True),
            tools.mode(),
            functional_run.OperatorMode(hear),
        ):
            args, kwargs = pytree.tree_map_only(torch.Tensor, tools.to_fun, plain)
            return pytree.tree_map_only(torch.Tensor, tools.from_fun, call(args, kwargs))

    return OperatorOutcome.from_call(trace, plain), heard


# The operators that a program calls itself, as a profiler hears them.


@contextlib.contextmanager
def profile_operators() -> Iterator[profiler.profile]:
    """Profile every operator of the block; the messages that the profiler's library prints are dropped."""
    with contextlib.ExitStack() as stack:
        with _silence_stderr():
            heard = stack.enter_context(profiler.profile())
        try:
            yield heard
        finally:
            with _silence_stderr():
                stack.close()


@contextlib.contextmanager
def _silence_stderr() -> Iterator[None]:
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def list_profiled_operators(heard: profiler.profile, inside: Collection[str] | None = None) -> list[tuple[str, str]]:
    """The operators that were called while a profiler was on, in order, apart from those that only make memory.

    Each (``aten.relu``) comes with the name of what called it, which is empty for the program itself. ``inside``: names
    of marks (``record_function``); only operators called directly inside of one are meant.
    """
    makers = (*_FACTS.uninitialised, "resize_", "as_strided", "as_strided_")
    calls = [
        (event.name.replace("::", "."), getattr(event.cpu_parent, "name", ""))
        for event in heard.function_events or ()
        if "::" in event.name and event.name.partition("::")[2] not in makers
    ]
    return calls if inside is None else [(name, caller) for name, caller in calls if caller in inside]


def list_called_operators(graph: Snapshot, inputs: Sequence[object]) -> list[tuple[str, str]]:
    """The operators that the nodes of a graph call themselves, each with the node."""
    names = set[str]()

    def mark(replayer: GraphReplayer, node: fx.Node, run: Callable[[], object]) -> object:
        names.add(node.name)
        with profiler.record_function(node.name):
            return run()

    with profile_operators() as heard:
        functional_run.visit_nodes(graph, inputs, mark)
    return list_profiled_operators(heard, names)


# Compiles and eager runs that take the other path.


def bypass_nodes(nodes: Sequence[str], backend: str | Backend) -> Backend:
    """A backend that gets dynamo's graph without nodes: their first argument stands in for them, if a node."""

    def compile_without(module: fx.GraphModule, inputs: Sequence[object]) -> object:
        for node in list(module.graph.nodes):
            if node.name in nodes and node.args and isinstance(node.args[0], fx.Node):
                node.replace_all_uses_with(node.args[0])
                module.graph.erase_node(node)
        module.recompile()
        lookup: Callable[[str | Backend], Backend] = importlib.import_module("torch._dynamo").lookup_backend
        return lookup(backend)(module, inputs)

    return compile_without


@contextlib.contextmanager
def _disable_fused_attention() -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextlib.contextmanager
def _pretend_tracing() -> Iterator[None]:
    names = ("_is_compiling_flag", "_is_exporting_flag")  # which is_compiling() and is_exporting() return
    flags = {name: getattr(torch.compiler, name) for name in names if hasattr(torch.compiler, name)}
    try:
        for name in flags:
            setattr(torch.compiler, name, True)
        yield
    finally:
        for name, value in flags.items():
            setattr(torch.compiler, name, value)


class _InertMode(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        return func(*args, **(kwargs or {}))


def list_traced_paths() -> list[tuple[str, contextlib.AbstractContextManager[object]]]:
    """Return ways to make eager mode take the path that dynamo traces: each by its public name, and its context.

    Modules ask whether they are traced, whether their fast paths are on, or whether there are overrides of torch's
    functions, which a mode that does nothing is.
    """
    return [
        ("eager mode with torch.backends.mha.set_fastpath_enabled(False)", _disable_fused_attention()),
        ("eager mode in which torch.compiler.is_compiling() and is_exporting() are true", _pretend_tracing()),
        ("eager mode under a torch function mode that does nothing", _InertMode()),
    ]
