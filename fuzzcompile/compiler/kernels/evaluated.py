"""The IR of one graph, evaluated on real inputs: the value of every buffer and of every lowered operator."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, SupportsInt, cast, runtime_checkable

import torch

from fuzzcompile.compiler.kernels.loop_operators import real
from fuzzcompile.compiler.kernels.loops import NotEvaluable, run_loop
from fuzzcompile.compiler.kernels.lowered import Lowered
from fuzzcompile.compiler.replay import Values

if TYPE_CHECKING:
    from torch._inductor.ir import IRNode, Layout, Operation
    from torch._inductor.scheduler import BaseSchedulerNode

_NOT_FOLLOWED = (NotEvaluable, AttributeError, RuntimeError, TypeError, KeyError)


@runtime_checkable
class _Value(Protocol):
    """A tensor of the IR."""

    def make_loader(self) -> Callable[..., object]: ...

    def get_size(self) -> Sequence[SupportsInt]: ...

    def get_dtype(self) -> torch.dtype: ...


class Evaluated:
    """Evaluates buffers on first use, in the order in which Inductor writes them.

    Args:
        lowered: the graph.
        inputs: values of its placeholders, in order.
        given: values of the graph's nodes from an interpreter, in the dtype of this evaluation; the results of
            library kernels are taken from there.
        ran: values that buffers had when the compiled graph ran, for those that nothing else gives.
        double: in float64.
        noise_seed: move every operator's result by up to one ulp.
        as_run: prefer ``ran`` to ``given``, where the graph draws random numbers that the interpreter does not.
    """

    def __init__(
        self,
        lowered: Lowered,
        inputs: Sequence[object],
        given: Values,
        ran: Mapping[str, torch.Tensor],
        *,
        double: bool,
        noise_seed: int | None = None,
        as_run: bool = False,
    ) -> None:
        self.as_run = as_run
        self._anew = functools.partial(Evaluated, lowered, inputs, given, ran, double=double, as_run=as_run)
        self.lowered, self.double, self.given, self.ran = lowered, double, given, ran
        self.graph = lowered.graph
        self.generator = None if noise_seed is None else torch.Generator().manual_seed(noise_seed)
        self.symbols: dict[object, object] = {}
        self._flat: dict[str, torch.Tensor] = {}
        self._unknown: dict[str, str] = {}
        self._done: set[int] = set()
        self._operations = list(self.graph.operations)
        self._by_buffer = {
            buffer.get_name(): number
            for number, operation in enumerate(self._operations)
            for buffer in operation.get_outputs()
        }
        self._by_node = nodes_by_buffer(lowered)
        with contextlib.suppress(*_NOT_FOLLOWED, ValueError):  # an input that is not bound is not known when asked for
            self._bind(inputs)

    # -- values -------------------------------------------------------------------------------

    def node(self, name: str) -> torch.Tensor:
        """The value of a lowered operator, in its own shape.

        Raises:
            NotEvaluable: it cannot be followed.
        """
        value = self.lowered.values.get(name)
        if not isinstance(value, _Value):
            raise NotEvaluable(f"{name} is no tensor of the IR")
        self.advance(self.lowered.marks.get(name, 0))
        with self._handlers():
            sizes = [self._size(size) for size in value.get_size()]
            dtype = value.get_dtype()
            result = run_loop(value.make_loader(), sizes, (), self, self.symbols)
        if not isinstance(result, torch.Tensor):
            raise NotEvaluable(f"{name} gives {type(result).__name__}")
        return result.to(self._stored(dtype))

    def buffer(self, name: str) -> torch.Tensor:
        """The value of a buffer in its own shape and strides, once everything is written.

        Raises:
            NotEvaluable: it cannot be followed.
        """
        self.advance(len(self._operations))
        return self.viewed(self.flat(name), name)

    def viewed(self, flat: torch.Tensor, name: str) -> torch.Tensor:
        """The elements of a storage in the shape of buffer ``name``."""
        with self._handlers():
            layout = self._layout(name)
            sizes, strides = [[self._size(size) for size in each] for each in (layout.size, layout.stride)]
            # A part of another buffer begins where its row of elements does.
            offset = 0 if self._is_part(name) else self._size(getattr(layout, "offset", 0))
        return flat.as_strided(sizes, strides, flat.storage_offset() + offset)

    def scheduled(self, node: BaseSchedulerNode) -> dict[str, torch.Tensor]:
        """Compute the scheduler's own form of one node on right inputs, and return its results by buffer.

        Raises:
            NotEvaluable: it cannot be followed.
        """
        body, buffers = getattr(node, "_body", None), [buffer.get_name() for buffer in node.get_outputs()]
        if body is None:
            raise NotEvaluable("it is no loop")
        if any(self._root(name) != name for name in buffers):
            raise NotEvaluable("it writes into memory that holds something else")
        # What it reads may be overwritten later, so that all is computed again, up to here.
        before = self._anew()
        before.advance(min(self._by_buffer[name] for name in buffers))
        for name in buffers:
            before._done.add(self._by_buffer[name])
        with before._handlers():
            sizes = [[before._size(size) for size in each] for each in body.sizes]
            run_loop(body, sizes[0], sizes[1], before, before.symbols, nested=True)
        return {name: before.viewed(before.flat(name), name) for name in buffers}

    # -- memory of the loops --------------------------------------------------------------------

    def flat(self, name: str) -> torch.Tensor:
        """The elements of the storage behind buffer ``name``, in a row; computed now if it was not yet.

        Raises:
            NotEvaluable: they are not known.
        """
        root, offset = self._root(name), self._within(name)
        number = self._by_buffer.get(name)
        if number is not None and number not in self._done:
            self._evaluate(number)
        if root in self._unknown:
            raise NotEvaluable(self._unknown[root])
        if root not in self._flat:
            if root in self.graph.constants:
                self._flat[root] = self._loaded(self.graph.constants[root])
            elif root in self._by_buffer:
                self._flat[root] = self._allocated(root)
            else:
                raise NotEvaluable(f"{root} is not known")
        return self._flat[root][offset:] if offset else self._flat[root]

    def advance(self, number: int) -> None:
        """Evaluate the first ``number`` operations."""
        for earlier in range(min(number, len(self._operations))):
            if earlier not in self._done:
                self._evaluate(earlier)

    def _evaluate(self, number: int) -> None:
        self._done.add(number)
        operation = self._operations[number]
        names = [buffer.get_name() for buffer in operation.get_outputs()]
        try:
            if self._run(operation):
                return
            reason = ""
        except _NOT_FOLLOWED as error:
            reason = str(error)
        mutated = [str(name) for name in getattr(operation, "get_mutation_names", list)()]
        for name in dict.fromkeys([*names, *mutated]):
            self._take(name, reason, replaced=name in mutated)

    def _run(self, operation: Operation) -> bool:
        """Compute what an operation writes, if it is a loop; whether it is a loop or gathers what loops wrote."""
        from torch._inductor.ir import ComputedBuffer, NopKernel

        if isinstance(operation, NopKernel):
            for earlier in operation.inputs:
                self.flat(earlier.get_name())  # type: ignore[union-attr]
            return True
        if not isinstance(operation, ComputedBuffer) or not operation.has_store_function():
            return False
        with self._handlers():
            data = operation.data
            sizes = [self._size(size) for size in data.get_pointwise_size()]
            reduced = [self._size(size) for size in data.get_reduction_size()]
            store = operation.get_store_function()
            run_loop(store, sizes, reduced, self, self.symbols, nested=bool(data.get_reduction_type()))
        return True

    def _take(self, name: str, reason: str, *, replaced: bool) -> None:
        """Take a buffer's value from the interpreter, or from the run."""
        root = self._root(name)
        value = self.given.get(self._by_node.get(name, ""))
        if replaced or not isinstance(value, torch.Tensor) or (self.as_run and name in self.ran):
            value = self.ran.get(name)
        if not isinstance(value, torch.Tensor):
            self._unknown[root] = reason or f"what {name} holds is not known"
            return
        try:
            flat = self._flat.get(root)
            flat = self._allocated(root) if flat is None else flat
            self._flat[root] = flat
            self.viewed(flat[self._within(name) :], name).copy_(value)
        except (NotEvaluable, NotImplementedError, AttributeError, RuntimeError, TypeError) as error:
            self._unknown[root] = f"{type(error).__name__}: {error}"

    # -- names, layouts, sizes ------------------------------------------------------------------

    def _root(self, name: str) -> str:
        """The buffer or input whose storage ``name`` lives in."""
        from torch._inductor.ir import MutationLayoutSHOULDREMOVE, NonOwningLayout

        for _ in range(len(self._operations) + 1):
            layout = getattr(self._buffer(name), "layout", None)
            if isinstance(layout, NonOwningLayout):
                name = str(layout.view.get_name())
            elif isinstance(layout, MutationLayoutSHOULDREMOVE):
                name = str(layout.get_buffer().get_name())
            else:
                return name
        return name

    def _is_part(self, name: str) -> bool:
        return type(getattr(self._buffer(name), "layout", None)).__name__ == "NonOwningLayout"

    def _within(self, name: str) -> int:
        """Return the offset of a part in the storage of another buffer (0 for a buffer of its own)."""
        if not self._is_part(name):
            return 0
        return self._size(getattr(self._layout(name), "offset", 0))

    def _buffer(self, name: str) -> IRNode | None:
        buffer: IRNode | None = self.graph.name_to_buffer.get(name)
        if buffer is None and name in self.graph.graph_inputs:
            place: object = self.graph.graph_inputs[name]
            while hasattr(place, "data"):
                place = place.data
            buffer = cast("IRNode", place)
        return buffer

    def _layout(self, name: str) -> Layout:
        from torch._inductor.ir import MutationLayoutSHOULDREMOVE, NonOwningLayout

        buffer = self._buffer(name)
        if buffer is None:
            raise NotEvaluable(f"{name} is not known")
        layout = buffer.get_layout()
        if isinstance(layout, NonOwningLayout):
            return layout.view.get_layout()
        return layout.real_layout() if isinstance(layout, MutationLayoutSHOULDREMOVE) else layout

    def _allocated(self, name: str) -> torch.Tensor:
        with self._handlers():
            layout = self._layout(name)
            sizes, strides = [[self._size(size) for size in each] for each in (layout.size, layout.stride)]
            span = _span(sizes, strides) + self._size(getattr(layout, "offset", 0))
        return torch.zeros(span, dtype=self._stored(layout.dtype))

    def _stored(self, dtype: torch.dtype) -> torch.dtype:
        return real(dtype, double=True) if self.double else dtype

    def _loaded(self, value: torch.Tensor) -> torch.Tensor:
        """The elements of a real tensor in a row, as the wrapper hands them to kernels."""
        span = _span(value.shape, value.stride())
        row = value.detach().as_strided((span,), (1,), value.storage_offset())
        return row.cpu().to(self._stored(value.dtype), copy=True)

    def _bind(self, inputs: Sequence[object]) -> None:
        """Storages of the inputs, and the values of sizes that are symbols."""
        sympy = importlib.import_module("sympy")  # which has no types
        for (name, place), value in zip(self.graph.graph_inputs.items(), inputs, strict=False):
            if isinstance(value, torch.Tensor):
                if value.layout == torch.strided:
                    self._flat[name] = self._loaded(value)
                sizes = place.get_size() if hasattr(place, "get_size") else ()
                self.symbols.update(
                    (size, int(known))
                    for size, known in zip(sizes, value.shape, strict=False)
                    if isinstance(size, sympy.Symbol)
                )
            elif isinstance(place, sympy.Symbol):
                self.symbols[place] = value

    def _size(self, size: SupportsInt) -> int:
        sympy = importlib.import_module("sympy")
        return int(size.subs(self.symbols)) if isinstance(size, sympy.Expr) else int(size)

    @contextlib.contextmanager
    def _handlers(self) -> Iterator[None]:
        from torch._inductor.ir import FlexibleLayout
        from torch._inductor.virtualized import V

        before = getattr(FlexibleLayout, "allow_indexing", False)
        with V.set_graph_handler(self.graph):
            FlexibleLayout.allow_indexing = True
            try:
                yield
            finally:
                FlexibleLayout.allow_indexing = before


def nodes_by_buffer(lowered: Lowered) -> dict[str, str]:
    """The FX node whose value a buffer holds, by buffer: the first that was lowered to it, views apart."""
    nodes: dict[str, str] = {}
    for name, value in lowered.values.items():
        inner = getattr(value, "data", None) if type(value).__name__ == "StorageBox" else value
        if hasattr(inner, "get_name") and not type(inner).__name__.endswith("View"):
            with contextlib.suppress(NotImplementedError, AttributeError, AssertionError):  # a value without a buffer
                nodes.setdefault(inner.get_name(), name)
    return nodes


def _span(sizes: Sequence[int], strides: Sequence[int]) -> int:
    if any(size == 0 for size in sizes):
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
