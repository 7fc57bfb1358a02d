"""One execution of a lowered graph followed step by step: each computation is repeated on what it really read.

Wherever a kernel wrote a buffer, what it wrote stands in for what the IR says, so that every operator and every loop is
held against its own inputs and answers for its own bits alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import fx

from fuzzcompile.compiler.kernels.evaluated import Evaluated, nodes_by_buffer
from fuzzcompile.compiler.kernels.loops import NotEvaluable, run_loop
from fuzzcompile.compiler.kernels.lowered import GraphCall, Lowered
from fuzzcompile.compiler.replay import Values, _Replayer
from fuzzcompile.execution.device import seed_everything
from fuzzcompile.execution.tensors import copy_tree

if TYPE_CHECKING:
    from torch._inductor.ir import Operation

_SEED = 11
_UNKNOWN = (NotEvaluable, AttributeError, RuntimeError, TypeError, KeyError, NotImplementedError)


@dataclass(frozen=True)
class Stored:
    """A buffer that a kernel wrote, beside the result of the buffer's loop on the inputs that the kernel had.

    Attributes:
        kernel: number of the kernel.
        buffer: name of the buffer in the IR.
        node: the FX node whose value it holds; None if that is not known.
        written: what the kernel wrote.
        meant: what the loop of the IR gives, in the program's own dtypes; None where the kernel is a library's.
        reads_unknown: the loop reads a value that no kernel stored, so that its exact bits are not known.
    """

    kernel: int
    buffer: str
    node: str | None
    written: torch.Tensor
    meant: torch.Tensor | None
    reads_unknown: bool


@dataclass(frozen=True)
class Applied:
    """An operator of the graph, computed by ATen and by its lowering on the same inputs.

    Attributes:
        node: the FX node.
        aten: what ATen gives.
        lowered: what the lowering's loop gives, before it is rounded to the dtype of the result; what the kernel wrote
            where a library computes it; None where that is not known.
        reads_unrounded: an input of the lowering was never rounded to its dtype, so that ATen had another one.
    """

    node: fx.Node
    aten: torch.Tensor
    lowered: torch.Tensor
    reads_unrounded: bool


class Followed(Evaluated):
    """The IR of one graph in the program's own dtypes, along one execution.

    Args:
        lowered: the graph.
        inputs: values of its placeholders, in order.
        given: values of the graph's nodes, which stand in for those of libraries that were not watched.
        call: the execution.
        inexact: whether the operators of a loop, by its buffer, leave its bits open: a sum may take any order.
    """

    def __init__(
        self, lowered: Lowered, inputs: Sequence[object], given: Values, call: GraphCall, inexact: Mapping[str, bool]
    ) -> None:
        self._written = {name: (number, value.cpu()) for (number, name), value in call.written.items()}
        self._inexact = inexact
        self.unknown: set[str] = set()
        self.stored: dict[str, Stored] = {}
        self._nodes = nodes_by_buffer(lowered)
        ran = {name: value for name, (_, value) in self._written.items()}
        super().__init__(lowered, inputs, given, ran, double=False)

    def unrounded(self, name: str) -> torch.Tensor:
        """The value of a lowered operator as its loop gives it, before it is rounded to its dtype.

        Raises:
            NotEvaluable: it cannot be followed.
        """
        value = self.lowered.values.get(name)
        if value is None or not hasattr(value, "make_loader") or not hasattr(value, "get_size"):
            raise NotEvaluable(f"{name} is no tensor of the IR")
        self.advance(self.lowered.marks.get(name, 0))
        with self._handlers():
            sizes = [self._size(size) for size in value.get_size()]
            result = run_loop(value.make_loader(), sizes, (), self, self.symbols)
        if not isinstance(result, torch.Tensor):
            raise NotEvaluable(f"{name} gives {type(result).__name__}")
        return result

    def buffer_of(self, node: str) -> Stored | None:
        """The buffer that holds a node's value, if a kernel stored it."""
        return next((stored for stored in self.stored.values() if stored.node == node), None)

    def finish(self) -> None:
        """Evaluate every operation."""
        self.advance(len(self._operations))

    def _evaluate(self, number: int) -> None:
        operation = self._operations[number]
        names = [buffer.get_name() for buffer in operation.get_outputs()]
        unknown, loop = self._reads_unknown(operation), type(operation).__name__ == "ComputedBuffer"
        super()._evaluate(number)
        for name in names:
            self._follow(name, loop=loop, unknown=unknown)

    def _follow(self, name: str, *, loop: bool, unknown: bool) -> None:
        """Put what the kernel wrote in the place of what the IR gave."""
        place = self._written.get(name)
        if place is None or self._root(name) != name or self._is_part(name):
            if unknown or self._inexact.get(name, True):
                self.unknown.add(name)
            return
        number, written = place
        meant = None
        with contextlib.suppress(*_UNKNOWN):
            held = self.viewed(self.flat(name), name)
            meant = held.clone() if loop else None
            if held.shape == written.shape:
                held.copy_(written)
        self.stored[name] = Stored(number, name, self._nodes.get(name), written, meant, unknown)

    def _reads_unknown(self, operation: Operation) -> bool:
        try:
            return any(name in self.unknown for name in operation.get_read_names())
        except _UNKNOWN:
            return True


def applications(followed: Followed, inputs: Sequence[object]) -> Iterator[Applied]:
    """Every operator whose lowering can be followed, in the order of the graph, on the inputs that it really had.

    Raises:
        Exception: of an operator that does not run on the values of the execution.
    """
    seed_everything(_SEED)
    following = _Following(followed)
    with torch.no_grad():
        following.run(*copy_tree(list(inputs)))
    return iter(following.applied)


class _Following(_Replayer):
    """Interprets a graph on ATen and goes on with the values that the compiled graph had."""

    def __init__(self, followed: Followed) -> None:
        super().__init__(followed.lowered.snapshot)
        self._followed = followed
        self._unrounded: set[str] = set()
        self.applied: list[Applied] = []

    def run_node(self, n: fx.Node) -> object:
        """Run one node; go on with the compiled graph's value of it."""
        aten = super().run_node(n)
        if n.op != "call_function" or not isinstance(aten, torch.Tensor) or aten.layout != torch.strided:
            return aten
        lowered = self._lowered(n.name)
        if lowered is None or lowered.shape != aten.shape:
            return aten
        tainted = any(source.name in self._unrounded for source in n.all_input_nodes)
        self.applied.append(Applied(n, aten, lowered, tainted))
        rounded = lowered.to(aten.dtype)
        moved = tainted and self._stored(n.name) is None and is_view(n)
        if moved or (lowered.is_floating_point() and _apart(rounded.to(lowered.dtype), lowered)):
            self._unrounded.add(n.name)
        stored = self._stored(n.name)
        compiled = stored.written if stored is not None and stored.written.shape == aten.shape else rounded
        return torch.empty_strided(aten.size(), aten.stride(), dtype=aten.dtype).copy_(compiled)

    def _stored(self, name: str) -> Stored | None:
        return self._followed.buffer_of(name)

    def _lowered(self, name: str) -> torch.Tensor | None:
        """Return the result of the lowering on the inputs that it read, or the value that a library's kernel wrote."""
        value = None
        with contextlib.suppress(*_UNKNOWN):
            value = self._followed.unrounded(name)
        stored = self._stored(name)
        if stored is None:
            return value
        return stored.meant if stored.meant is not None else stored.written


def _apart(rounded: torch.Tensor, value: torch.Tensor) -> bool:
    """Return whether rounding changes a value, NaN apart."""
    return bool(((rounded != value) & (value == value)).any())


def is_view(node: fx.Node) -> bool:
    """Return whether the result of a node shares memory with its argument."""
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and any(
        result.alias_info is not None for result in target._schema.returns
    )
