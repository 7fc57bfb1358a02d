"""Calls of dynamo's graph along both paths that an operator may take: in eager mode, and as AOTAutograd traces it.

Operators that consist of others choose their path by what they see: gradients, the device, whether a tensor is a
subclass or a dispatch mode is on. ``torch.max_pool1d`` has a kernel of its own in eager mode and is a pooling of
images wherever it is traced. No mode may therefore be on while the eager path runs: the profiler
records its calls.
"""

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
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.applications import Outcome, aliases_of, python_dispatcher
from fuzzcompile.compiler.functional import SEEDS, Heard, can_functionalize, transforms_left
from fuzzcompile.compiler.ledger import Snapshot
from fuzzcompile.compiler.replay import _draws, _Replayer
from fuzzcompile.execution.device import seed_everything
from fuzzcompile.execution.tensors import copy_tree
from fuzzcompile.facts import facts

if TYPE_CHECKING:
    from torch._ops import OpOverload

_CALLS = ("call_function", "call_method", "call_module")
# Calls that give other values outside of the grad mode and the transforms that they were captured in.
_NOT_REPLAYED = facts().operators.bound_to_capture
Run = Callable[[tuple[Any, ...], dict[str, Any]], object]


@dataclass(frozen=True)
class TakenCall:
    """One call of dynamo's graph on its real arguments, along both paths.

    Attributes:
        node: the call.
        eager: its outcome in eager mode.
        traced: its outcome under functional tensors and Python's dispatcher, on the same arguments.
        draws: whether it draws random numbers; both paths began in the same state, and their last result is the state
            that they left.
    """

    node: fx.Node
    eager: Outcome
    traced: Outcome
    draws: bool
    _run: Run
    _arguments: tuple[tuple[Any, ...], dict[str, Any]]

    def in_float64(self) -> tuple[Outcome, Outcome]:
        """Both outcomes on float64 arguments."""
        return _eager(self._run, self._arguments, double=True), _traced(self._run, self._arguments, double=True)[0]

    def eager_operators(self) -> list[str]:
        """The operators that the eager path calls, each before those that it consists of."""
        args, kwargs = copy_tree(self._arguments)
        with listening() as heard:
            self._run(args, kwargs)
        return [name for name, _ in operators_of(heard)]

    def traced_operators(self) -> list[str]:
        """The operators that the traced path calls."""
        return [str(operator) for operator in _traced(self._run, self._arguments)[1]]


@contextlib.contextmanager
def listening() -> Iterator[profiler.profile]:
    """Profile every operator of the block; the messages that the profiler's library prints are dropped."""
    with contextlib.ExitStack() as stack:
        with _silent():
            heard = stack.enter_context(profiler.profile())
        try:
            yield heard
        finally:
            with _silent():
                stack.close()


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def operators_of(heard: profiler.profile, inside: Collection[str] | None = None) -> list[tuple[str, str]]:
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


def both_paths(
    snapshot: Snapshot, inputs: Sequence[object], judge: Callable[[TakenCall], None], *, grad: bool
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
    if not can_functionalize() or any(word in call for call in snapshot.calls for word in _NOT_REPLAYED):
        return None
    seed_everything(SEEDS[0])
    arguments = copy_tree(list(inputs))
    try:
        with torch.set_grad_enabled(grad), transforms_left():
            _Interpreter(snapshot, judge).run(*arguments)
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:  # of the program: calls up to there were seen
        return error
    return None


class _Interpreter(_Replayer):
    def __init__(self, snapshot: Snapshot, judge: Callable[[TakenCall], None]) -> None:
        super().__init__(snapshot)
        self._judge = judge

    def run_node(self, n: fx.Node) -> object:
        """Run one node in eager mode, and once more as it is traced."""
        if n.op not in _CALLS or _writes(n):
            return super().run_node(n)
        try:
            arguments = copy_tree(self.fetch_args_kwargs_from_env(n))
        except (NotImplementedError, RuntimeError):  # a kind of tensor that cannot be copied
            return super().run_node(n)
        draws = _draws(n)
        for seed in SEEDS if draws else (None,):
            call = self._call(n, arguments, seed)
            if call is not None:
                self._judge(call)
        return super().run_node(n)

    def _call(self, node: fx.Node, arguments: Any, seed: int | None) -> TakenCall | None:
        def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
            if seed is None:
                return getattr(self, node.op)(node.target, args, kwargs)
            seed_everything(seed)
            return getattr(self, node.op)(node.target, args, kwargs), torch.get_rng_state()

        eager = _eager(run, arguments)
        if not any(isinstance(result, torch.Tensor) for result in eager.results):
            return None
        traced, _ = _traced(run, arguments)
        return None if traced.error is not None else TakenCall(node, eager, traced, seed is not None, run, arguments)


def _writes(node: fx.Node) -> bool:
    """Return whether a call, going by its name, writes to its arguments or leaves its result unwritten."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = (name.endswith("_") and not name.endswith("__")) or name.startswith("__i") or name == "setitem"
    return in_place or "out" in node.kwargs or name in facts().operators.uninitialised


def _eager(run: Run, arguments: tuple[tuple[Any, ...], dict[str, Any]], *, double: bool = False) -> Outcome:
    args, kwargs = copy_tree(arguments, double=double)
    return _outcome(lambda: run(args, kwargs), (args, kwargs))


def _traced(
    run: Run, arguments: tuple[tuple[Any, ...], dict[str, Any]], *, double: bool = False
) -> tuple[Outcome, list[OpOverload]]:
    """The outcome as AOTAutograd traces a call, and the operators that it calls."""
    tools = importlib.import_module("torch._functorch._aot_autograd.functional_utils")
    mode = importlib.import_module("torch._subclasses.functional_tensor").FunctionalTensorMode
    plain = copy_tree(arguments, double=double)
    heard = Heard({})
    with contextlib.ExitStack() as stack:
        for context in (transforms_left(), python_dispatcher(True), mode(), heard):
            stack.enter_context(context)

        def traced() -> object:
            args, kwargs = pytree.tree_map_only(torch.Tensor, tools.to_fun, plain)
            return pytree.tree_map_only(torch.Tensor, tools.from_fun, run(args, kwargs))

        outcome = _outcome(traced, plain)
    return outcome, heard.operators.get("", [])


def _outcome(call: Callable[[], object], given: object) -> Outcome:
    try:
        results = tuple(pytree.tree_leaves(call()))
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:  # of the call: it is the answer
        return Outcome(error=error)
    arguments = tuple(pytree.tree_leaves(given))
    return Outcome(results, arguments, aliases_of(results, arguments))
