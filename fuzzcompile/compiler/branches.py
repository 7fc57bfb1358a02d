"""Calls for which Python takes another path under dynamo than in eager mode.

Torch's own modules have such calls: ``torch.nn.MultiheadAttention`` calls one fused operator in eager mode, and makes
its result contiguous only while it is traced. Dynamo captures what Python does under it, so that both are right by
themselves. The profiler records the operators: any mode would make such a module leave its fast path.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.autograd import profiler
from torch.overrides import TorchFunctionMode

from fuzzcompile.compiler.composites import listening, operators_of
from fuzzcompile.compiler.ledger import Snapshot
from fuzzcompile.compiler.replay import _Replayer
from fuzzcompile.execution.tensors import copy_tree

Backend = Callable[..., Any]
# What torch.compiler.is_compiling() and is_exporting() return.
_FLAGS = ("_is_compiling_flag", "_is_exporting_flag")


@dataclass(frozen=True)
class Branch:
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


def branch_of(eager: Sequence[str], graph: Snapshot, inputs: Sequence[object]) -> Branch | None:
    """Return the operators that only eager mode or only the captured graph calls; None if both call the same.

    Args:
        eager: the operators that the program calls in eager mode, in order.
        graph: the one graph that dynamo captured of it.
        inputs: values of the graph's placeholders.
    """
    captured = _called(graph, inputs)
    matcher = difflib.SequenceMatcher(a=eager, b=[name for name, _ in captured], autojunk=False)
    parted = [codes for codes in matcher.get_opcodes() if codes[0] != "equal"]
    if not parted:
        return None
    ours = tuple(name for _, start, end, _, _ in parted for name in eager[start:end])
    alone = [captured[place] for _, _, _, start, end in parted for place in range(start, end)]
    names, anywhere = tuple(name for name, _ in alone), {name for name, _ in captured}
    telling = next((name for name in ours if name not in anywhere), (*names, *ours)[0])
    return Branch(ours, names, tuple(dict.fromkeys(node for _, node in alone)), telling)


def _called(graph: Snapshot, inputs: Sequence[object]) -> list[tuple[str, str]]:
    """The operators that the nodes of a graph call themselves, each with the node."""
    interpreter = _Marked(graph)
    # Of a graph that raises, the operators up to there are known.
    with torch.no_grad(), listening() as heard, contextlib.suppress(Exception):
        interpreter.run(*copy_tree(list(inputs)))
    return operators_of(heard, interpreter.names)


class _Marked(_Replayer):
    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        self.names: set[str] = set()

    def run_node(self, n: fx.Node) -> object:
        """Run one node under a profiler mark that names it."""
        self.names.add(n.name)
        with profiler.record_function(n.name):
            return super().run_node(n)


def bypassing(nodes: Sequence[str], backend: str | Backend) -> Backend:
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
def _fused_attention_off() -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextlib.contextmanager
def _said_to_be_traced() -> Iterator[None]:
    flags = {name: getattr(torch.compiler, name) for name in _FLAGS if hasattr(torch.compiler, name)}
    try:
        for name in flags:
            setattr(torch.compiler, name, True)
        yield
    finally:
        for name, value in flags.items():
            setattr(torch.compiler, name, value)


class _Inert(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        """Run ``func``."""
        return func(*args, **(kwargs or {}))


def traced_paths() -> list[tuple[str, contextlib.AbstractContextManager[object]]]:
    """Return ways to make eager mode take the path that dynamo traces: each by its public name, and its context.

    Modules ask whether they are traced, whether their fast paths are on, or whether there are overrides of torch's
    functions, which a mode that does nothing is.
    """
    return [
        ("eager mode with torch.backends.mha.set_fastpath_enabled(False)", _fused_attention_off()),
        ("eager mode in which torch.compiler.is_compiling() and is_exporting() are true", _said_to_be_traced()),
        ("eager mode under a torch function mode that does nothing", _Inert()),
    ]
