"""Calls of dynamo's graph along both paths: in eager mode, and as dynamo or AOTAutograd traces them."""

from __future__ import annotations

import contextlib
import difflib
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

from fuzzcompile.compiler.functional_run import SEEDS, OperatorRecorder, can_functionalize, leave_transforms
from fuzzcompile.compiler.graph_replay import GraphReplayer, _is_drawing
from fuzzcompile.compiler.operators.operator_application import OperatorOutcome, find_aliases, use_python_dispatcher
from fuzzcompile.compiler.watch.ledger import Snapshot
from fuzzcompile.model.facts import facts
from fuzzcompile.run.device import seed_everything
from fuzzcompile.run.tensors import copy_tree

if TYPE_CHECKING:
    from torch._ops import OpOverload


_CALLS = ("call_function", "call_method", "call_module")
# Calls that give other values outside of the grad mode and the transforms that they were captured in.
_NOT_REPLAYED = facts().operators.bound_to_capture
ReplayCall = Callable[[tuple[Any, ...], dict[str, Any]], object]


@dataclass(frozen=True)
class ComparedCall:
    """One call of dynamo's graph on its real arguments, along both paths.

    Attributes:
        node: the call.
        eager: its outcome in eager mode.
        traced: its outcome under functional tensors and Python's dispatcher, on the same arguments.
        draws: whether it draws random numbers; both paths began in the same state, and their last result is the state
            that they left.
    """

    node: fx.Node
    eager: OperatorOutcome
    traced: OperatorOutcome
    draws: bool
    _run: ReplayCall
    _arguments: tuple[tuple[Any, ...], dict[str, Any]]

    def run_in_float64(self) -> tuple[OperatorOutcome, OperatorOutcome]:
        """Both outcomes on float64 arguments."""
        return _run_eager(self._run, self._arguments, double=True), _run_traced(
            self._run, self._arguments, double=True
        )[0]

    def list_eager_operators(self) -> list[str]:
        """The operators that the eager path calls, each before those that it consists of."""
        args, kwargs = copy_tree(self._arguments)
        with profile_operators() as heard:
            self._run(args, kwargs)
        return [name for name, _ in list_profiled_operators(heard)]

    def list_traced_operators(self) -> list[str]:
        """The operators that the traced path calls."""
        return [str(operator) for operator in _run_traced(self._run, self._arguments)[1]]


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

    Args:
        heard: the profiler, which changes no path.
        inside: names of marks (``record_function``): only operators called directly inside of one are meant.

    Returns:
        Each operator (``aten.relu``) with the name of what called it, which is empty for the program itself.
    """
    named = [event for event in heard.function_events or () if "::" in event.name and not _allocates(event.name)]
    calls = [(event.name.replace("::", "."), getattr(event.cpu_parent, "name", "")) for event in named]
    return calls if inside is None else [(name, caller) for name, caller in calls if caller in inside]


def _allocates(name: str) -> bool:
    return name.partition("::")[2] in (*facts().operators.uninitialised, "resize_", "as_strided", "as_strided_")


def compare_paths(
    snapshot: Snapshot, inputs: Sequence[object], judge: Callable[[ComparedCall], None], *, grad: bool
) -> BaseException | None:
    """Run a torch-level graph in eager mode and have ``judge`` see each of its calls along both paths.

    Calls that write to their arguments or are no calls of tensors are not shown. A call that cannot be traced by itself
    is not shown either. Of a call that draws random numbers the state of the generator is one more result, and it is
    shown for several states.

    Args:
        snapshot: dynamo's graph.
        inputs: values of its placeholders, in order; copied before the run.
        judge: called with each call, in the order of execution.
        grad: whether the program has gradients.

    Returns:
        The error that ended the run; None if it came to its end.
    """
    if not can_functionalize() or any(word in call for call in snapshot.operator_names for word in _NOT_REPLAYED):
        return None

    def compare(node: fx.Node, run: Callable[[], object]) -> object:
        if node.op not in _CALLS or _writes(node):
            return run()
        try:
            given = copy_tree(replayer.fetch_args_kwargs_from_env(node))
        except (NotImplementedError, RuntimeError):  # a kind of tensor that cannot be copied
            return run()
        for seed in SEEDS if _is_drawing(node) else (None,):
            call = _compare_call(replayer, node, given, seed)
            if call is not None:
                judge(call)
        return run()

    seed_everything(SEEDS[0])
    arguments = copy_tree(list(inputs))
    replayer = GraphReplayer(snapshot, on_node=compare)
    try:
        with torch.set_grad_enabled(grad), leave_transforms():
            replayer.run(*arguments)
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:  # of the program: calls up to there were seen
        return error
    return None


def _compare_call(
    replayer: GraphReplayer, node: fx.Node, arguments: tuple[tuple[Any, ...], dict[str, Any]], seed: int | None
) -> ComparedCall | None:
    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        if seed is None:
            return getattr(replayer, node.op)(node.target, args, kwargs)
        seed_everything(seed)
        return getattr(replayer, node.op)(node.target, args, kwargs), torch.get_rng_state()

    eager = _run_eager(run, arguments)
    if not any(isinstance(result, torch.Tensor) for result in eager.results):
        return None
    traced, _ = _run_traced(run, arguments)
    return None if traced.error is not None else ComparedCall(node, eager, traced, seed is not None, run, arguments)


def _writes(node: fx.Node) -> bool:
    """Return whether a call, going by its name, writes to its arguments or leaves its result unwritten."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = (name.endswith("_") and not name.endswith("__")) or name.startswith("__i") or name == "setitem"
    return in_place or "out" in node.kwargs or name in facts().operators.uninitialised


def _run_eager(
    run: ReplayCall, arguments: tuple[tuple[Any, ...], dict[str, Any]], *, double: bool = False
) -> OperatorOutcome:
    args, kwargs = copy_tree(arguments, double=double)
    return _run_outcome(lambda: run(args, kwargs), (args, kwargs))


def _run_traced(
    run: ReplayCall, arguments: tuple[tuple[Any, ...], dict[str, Any]], *, double: bool = False
) -> tuple[OperatorOutcome, list[OpOverload]]:
    """The outcome as AOTAutograd traces a call, and the operators that it calls."""
    tools = importlib.import_module("torch._functorch._aot_autograd.functional_utils")
    mode = importlib.import_module("torch._subclasses.functional_tensor").FunctionalTensorMode
    plain = copy_tree(arguments, double=double)
    heard = OperatorRecorder({})
    with contextlib.ExitStack() as stack:
        for context in (leave_transforms(), use_python_dispatcher(True), mode(), heard):
            stack.enter_context(context)

        def trace() -> object:
            args, kwargs = pytree.tree_map_only(torch.Tensor, tools.to_fun, plain)
            return pytree.tree_map_only(torch.Tensor, tools.from_fun, run(args, kwargs))

        outcome = _run_outcome(trace, plain)
    return outcome, heard.operators.get("", [])


def _run_outcome(call: Callable[[], object], given: object) -> OperatorOutcome:
    try:
        results = tuple(pytree.tree_leaves(call()))
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:  # of the call: it is the answer
        return OperatorOutcome(error=error)
    arguments = tuple(pytree.tree_leaves(given))
    return OperatorOutcome(results, arguments, find_aliases(results, arguments))


# Calls for which Python takes another path under dynamo than in eager mode.

Backend = Callable[..., Any]
# What torch.compiler.is_compiling() and is_exporting() return.
_FLAGS = ("_is_compiling_flag", "_is_exporting_flag")


@dataclass(frozen=True)
class PathBranch:
    """Operators that the program itself calls on one side only, in order: ``aten.contiguous``.

    Attributes:
        eager: those of eager mode alone.
        captured: those of the captured graph alone.
        nodes: the nodes of the graph that call these.
        telling: the first operator of eager mode that the graph calls nowhere, else the first of the graph's own.
    """

    eager: tuple[str, ...]
    captured: tuple[str, ...]
    nodes: tuple[str, ...]
    telling: str


def find_branch(eager: Sequence[str], graph: Snapshot, inputs: Sequence[object]) -> PathBranch | None:
    """Return the operators that only eager mode or only the captured graph calls; None if both call the same.

    Args:
        eager: the operators that the program calls in eager mode, in order.
        graph: the one graph that dynamo captured of it.
        inputs: values of the graph's placeholders.
    """
    captured = _list_called_operators(graph, inputs)
    matcher = difflib.SequenceMatcher(a=eager, b=[name for name, _ in captured], autojunk=False)
    parted = [codes for codes in matcher.get_opcodes() if codes[0] != "equal"]
    if not parted:
        return None
    ours = tuple(name for _, start, end, _, _ in parted for name in eager[start:end])
    alone = [captured[place] for _, _, _, start, end in parted for place in range(start, end)]
    names, anywhere = tuple(name for name, _ in alone), {name for name, _ in captured}
    telling = next((name for name in ours if name not in anywhere), (*names, *ours)[0])
    return PathBranch(ours, names, tuple(dict.fromkeys(node for _, node in alone)), telling)


def _list_called_operators(graph: Snapshot, inputs: Sequence[object]) -> list[tuple[str, str]]:
    """The operators that the nodes of a graph call themselves, each with the node."""
    names = set[str]()

    def mark(node: fx.Node, run: Callable[[], object]) -> object:
        names.add(node.name)
        with profiler.record_function(node.name):
            return run()

    # Of a graph that raises, the operators up to there are known.
    with torch.no_grad(), profile_operators() as heard, contextlib.suppress(Exception):
        GraphReplayer(graph, on_node=mark).run(*copy_tree(list(inputs)))
    return list_profiled_operators(heard, names)


def bypass_nodes(nodes: Sequence[str], backend: str | Backend) -> Backend:
    """A backend that takes nodes out of dynamo's graph, their first argument in their place, and goes on as another.

    Args:
        nodes: names of the nodes; those that have no tensor as their first argument stay.
        backend: the backend that gets the graph.
    """

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
    flags = {name: getattr(torch.compiler, name) for name in _FLAGS if hasattr(torch.compiler, name)}
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
        """Run ``func``."""
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
