"""Evaluation of the IR of one graph on real inputs, and along one execution of the compiled graph."""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import fx

from fuzzcompile.compiler.graph_replay import GraphReplayer, NodeValues
from fuzzcompile.compiler.kernels.loop_body import NotEvaluable, find_compute_dtype, run_loop
from fuzzcompile.compiler.watch.ledger import GraphCall, LoweredGraph
from fuzzcompile.model.errors import describe_error
from fuzzcompile.run.device import seed_everything
from fuzzcompile.run.tensors import copy_tree, name_collective
from fuzzcompile.run.torch_attributes import ReplacedAttribute

if TYPE_CHECKING:
    from torch._inductor.ir import IRNode, Layout, Operation
    from torch._inductor.scheduler import BaseSchedulerNode

NOT_FOLLOWED = (NotEvaluable, AttributeError, RuntimeError, TypeError, KeyError)
"""Errors of the evaluation: a value that is not known. NotImplementedError is one of RuntimeError."""


@dataclass(frozen=True)
class StoredBuffer:
    """A buffer that kernel number ``kernel`` wrote, beside its loop's result on the inputs that the kernel had.

    ``meant`` is what the loop gives, in the program's own dtypes; None where the kernel is a library's. ``node`` is the
    FX node whose value it holds, if known. ``reads_unknown``: the loop reads a value that no kernel stored.
    """

    kernel: int
    buffer: str
    node: str | None
    written: torch.Tensor
    meant: torch.Tensor | None
    reads_unknown: bool


class GraphEvaluation:
    """Evaluates buffers of a graph on first use, in the order in which Inductor writes them.

    ``given`` are values of the graph's nodes from an interpreter; the results of library kernels are taken from there,
    and what nothing else gives from ``call``, one execution of the compiled graph, or (``as_run``) from there first,
    where the graph draws random numbers that the interpreter does not. With ``noise_seed`` every operator's result is
    moved by up to one ulp. What cannot be followed raises :class:`NotEvaluable`.

    With ``inexact`` the execution is followed: what a kernel stored takes the place of what its loop gives, so that
    each computation is repeated on what it really read, and both are kept in ``stored``. It says, by buffer, whether
    the operators of its loop leave its bits open: a sum may take any order.
    """

    def __init__(
        self,
        lowered: LoweredGraph,
        inputs: Sequence[object],
        given: NodeValues,
        call: GraphCall,
        *,
        double: bool = False,
        noise_seed: int | None = None,
        as_run: bool = False,
        inexact: Mapping[str, bool] | None = None,
    ) -> None:
        self._anew = functools.partial(GraphEvaluation, lowered, inputs, given, call, double=double, as_run=as_run)
        self.lowered, self.graph, self.double = lowered, lowered.graph, double
        self._given, self._as_run, self._inexact = given, as_run, inexact
        self._written = {name: (number, value.cpu()) for (number, name), value in call.written.items()}
        self.generator = None if noise_seed is None else torch.Generator().manual_seed(noise_seed)
        self.stored: dict[str, StoredBuffer] = {}
        self._open: set[str] = set()  # buffers that no kernel stored, and whose bits are open
        self._promised: dict[str, torch.Tensor] = {}  # what a collective gives, by buffer, until it is waited for
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
        self._nodes = map_buffers_to_nodes(lowered)
        with contextlib.suppress(*NOT_FOLLOWED, ValueError):  # an input that is not bound is not known when asked for
            self._bind(inputs)

    # -- values -------------------------------------------------------------------------------

    def evaluate_node(self, name: str, *, rounded: bool = True) -> torch.Tensor:
        """The value of a lowered operator, in its own shape; unless ``rounded``, before it is rounded to its dtype."""
        value: Any = self.lowered.values.get(name)
        if not hasattr(value, "make_loader") or not hasattr(value, "get_size"):
            raise NotEvaluable(f"{name} is no tensor of the IR")
        self._advance(self.lowered.marks.get(name, 0))
        node = self.lowered.find_node(self.lowered.find_producer(name))
        promises = node is not None and _is_promising(node.target)
        with self._install_handlers(), self._keep_promises() if promises else contextlib.nullcontext():
            result = run_loop(value.make_loader(), self._evaluate_sizes(value.get_size()), (), self)
        if not isinstance(result, torch.Tensor):
            raise NotEvaluable(f"{name} gives {type(result).__name__}")
        return result.to(self._find_storage_dtype(value.get_dtype())) if rounded else result

    def find_stored(self, node: str) -> StoredBuffer | None:
        """The buffer that holds a node's value, if a kernel stored it."""
        return next((stored for stored in self.stored.values() if stored.node == node), None)

    def evaluate_buffer(self, name: str) -> torch.Tensor:
        """The value of a buffer in its own shape and strides, once everything is written."""
        self.finish()
        return self._view_buffer(self.flat(name), name)

    def finish(self) -> None:
        """Evaluate every operation."""
        self._advance(len(self._operations))

    def _view_buffer(self, flat: torch.Tensor, name: str) -> torch.Tensor:
        with self._install_handlers():
            layout = self._find_layout(name)
            sizes, strides = self._evaluate_sizes(layout.size), self._evaluate_sizes(layout.stride)
            # A part of another buffer begins where its row of elements does.
            offset = 0 if self._is_part(name) else self._evaluate_size(getattr(layout, "offset", 0))
        return flat.as_strided(sizes, strides, flat.storage_offset() + offset)

    def run_scheduled(self, node: BaseSchedulerNode) -> dict[str, torch.Tensor]:
        """Compute the scheduler's own form of one node on right inputs, and return its results by buffer."""
        body, buffers = getattr(node, "_body", None), [buffer.get_name() for buffer in node.get_outputs()]
        if body is None:
            raise NotEvaluable("it is no loop")
        if any(self._find_root(name) != name for name in buffers):
            raise NotEvaluable("it writes into memory that holds something else")
        # What it reads may be overwritten later, so that all is computed again, up to here.
        before = self._anew()
        before._advance(min(self._by_buffer[name] for name in buffers))
        before._done.update(self._by_buffer[name] for name in buffers)
        with before._install_handlers():
            sizes = [before._evaluate_sizes(each) for each in body.sizes]
            run_loop(body, sizes[0], sizes[1], before, nested=True)
        return {name: before._view_buffer(before.flat(name), name) for name in buffers}

    # -- memory of the loops --------------------------------------------------------------------

    def flat(self, name: str) -> torch.Tensor:
        """The elements of the storage behind buffer ``name``, in a row; computed now if it was not yet."""
        root, offset = self._find_root(name), self._find_offset(name)
        number = self._by_buffer.get(name)
        if number is not None and number not in self._done:
            self._evaluate(number)
        if root in self._unknown:
            raise NotEvaluable(self._unknown[root])
        if root not in self._flat:
            if root in self.graph.constants:
                self._flat[root] = self._load_elements(self.graph.constants[root])
            elif root in self._by_buffer:
                self._flat[root] = self._allocate(root)
            else:
                raise NotEvaluable(f"{root} is not known")
        return self._flat[root][offset:] if offset else self._flat[root]

    def _advance(self, number: int) -> None:
        for earlier in range(min(number, len(self._operations))):
            if earlier not in self._done:
                self._evaluate(earlier)

    def _evaluate(self, number: int) -> None:
        self._done.add(number)
        operation = self._operations[number]
        names = [buffer.get_name() for buffer in operation.get_outputs()]
        if self._inexact is None:
            self._compute(operation, names)
            return
        reads_unknown = True
        with contextlib.suppress(*NOT_FOLLOWED):
            reads_unknown = any(name in self._open for name in operation.get_read_names())
        self._compute(operation, names)
        for name in names:
            self._follow(name, loop=type(operation).__name__ == "ComputedBuffer", reads_unknown=reads_unknown)

    def _compute(self, operation: Operation, names: Sequence[str]) -> None:
        if name_collective(getattr(operation, "op_overload", None)) is not None:
            with contextlib.suppress(*NOT_FOLLOWED):
                self._communicate(operation, names)
                return
        try:
            if self._run(operation):
                return
            reason = ""
        except NOT_FOLLOWED as error:
            reason = str(error)
        mutated = [str(name) for name in getattr(operation, "get_mutation_names", list)()]
        for name in dict.fromkeys([*names, *mutated]):
            self._take(name, reason, replaced=name in mutated)

    def _communicate(self, operation: Any, names: Sequence[str]) -> None:
        """Take the results of a collective from the interpreter, to be read once they are waited for; or wait for them.

        Until then their buffers hold nonsense: a program that reads them earlier may be right on one machine.
        """
        mutated = {out.get_name(): self._find_root(out.get_mutation_names()[0]) for out in operation.mutation_outputs}
        if not _is_promising(operation.op_overload):
            for name, root in mutated.items():
                promised = self._promised.pop(root, None)
                if self._as_run and name in self._written:
                    self._view_buffer(self._flat[root], root).copy_(self._written[name][1])
                elif promised is not None:
                    self._flat[root].copy_(promised)
            return
        results = self._given[next(node.name for node in operation.origins if _is_promising(node.target))]
        if not mutated and not isinstance(results, torch.Tensor):
            return  # each of them is an operation of its own
        roots = list(mutated.values()) or names
        for root, value in zip(roots, results if isinstance(results, (list, tuple)) else [results], strict=True):
            flat = self._flat[root] = self._flat.get(root, self._allocate(root))
            self._view_buffer(flat, root).copy_(value)
            self._promised[root] = flat.clone()
            flat.copy_(torch.full_like(flat, math.nan) if flat.is_floating_point() else ~flat)

    @contextlib.contextmanager
    def _keep_promises(self) -> Iterator[None]:
        """Have buffers hold in the block what collectives will have written there once they are waited for."""
        before = {root: self._flat[root].clone() for root in self._promised}
        try:
            for root, value in self._promised.items():
                self._flat[root].copy_(value)
            yield
        finally:
            for root, value in before.items():
                self._flat[root].copy_(value)

    def _follow(self, name: str, *, loop: bool, reads_unknown: bool) -> None:
        """Go on with what a kernel stored in a buffer."""
        place = self._written.get(name)
        if place is None or self._find_root(name) != name or self._is_part(name):
            if reads_unknown or (self._inexact or {}).get(name, True):
                self._open.add(name)
            return
        number, written = place
        meant = None
        with contextlib.suppress(*NOT_FOLLOWED):
            held = self._view_buffer(self.flat(name), name)
            meant = held.clone() if loop else None
            if held.shape == written.shape:
                held.copy_(written)
        self.stored[name] = StoredBuffer(number, name, self._nodes.get(name), written, meant, reads_unknown)

    def _run(self, operation: Operation) -> bool:
        from torch._inductor.ir import ComputedBuffer, NopKernel

        if isinstance(operation, NopKernel):
            for earlier in operation.inputs:
                self.flat(earlier.get_name())  # type: ignore[union-attr]
            return True
        if not isinstance(operation, ComputedBuffer) or not operation.has_store_function():
            return False
        with self._install_handlers():
            data, store = operation.data, operation.get_store_function()
            outer, reduced = map(self._evaluate_sizes, (data.get_pointwise_size(), data.get_reduction_size()))
            run_loop(store, outer, reduced, self, nested=bool(data.get_reduction_type()))
        return True

    def _take(self, name: str, reason: str, *, replaced: bool) -> None:
        root = self._find_root(name)
        value = self._given.get(self._nodes.get(name, ""))
        if replaced or not isinstance(value, torch.Tensor) or (self._as_run and name in self._written):
            value = self._written.get(name, (0, None))[1]
        if not isinstance(value, torch.Tensor):
            self._unknown[root] = reason or f"what {name} holds is not known"
            return
        try:
            flat = self._flat.get(root)
            flat = self._allocate(root) if flat is None else flat
            self._flat[root] = flat
            self._view_buffer(flat[self._find_offset(name) :], name).copy_(value)
        except NOT_FOLLOWED as error:
            self._unknown[root] = describe_error(error)

    # -- names, layouts, sizes ------------------------------------------------------------------

    def _find_root(self, name: str) -> str:
        from torch._inductor.ir import MutationLayoutSHOULDREMOVE, NonOwningLayout

        for _ in range(len(self._operations) + 1):
            layout = getattr(self._find_buffer(name), "layout", None)
            if isinstance(layout, NonOwningLayout):
                name = str(layout.view.get_name())
            elif isinstance(layout, MutationLayoutSHOULDREMOVE):
                name = str(layout.get_buffer().get_name())
            else:
                return name
        return name

    def _is_part(self, name: str) -> bool:
        return type(getattr(self._find_buffer(name), "layout", None)).__name__ == "NonOwningLayout"

    def _find_offset(self, name: str) -> int:
        return self._evaluate_size(getattr(self._find_layout(name), "offset", 0)) if self._is_part(name) else 0

    def _find_buffer(self, name: str) -> IRNode | None:
        buffer: Any = self.graph.name_to_buffer.get(name)
        if buffer is None and name in self.graph.graph_inputs:
            buffer = self.graph.graph_inputs[name]
            while hasattr(buffer, "data"):
                buffer = buffer.data
        return cast("IRNode | None", buffer)

    def _find_layout(self, name: str) -> Layout:
        from torch._inductor.ir import MutationLayoutSHOULDREMOVE, NonOwningLayout

        buffer = self._find_buffer(name)
        if buffer is None:
            raise NotEvaluable(f"{name} is not known")
        layout = buffer.get_layout()
        if isinstance(layout, NonOwningLayout):
            return layout.view.get_layout()
        return layout.real_layout() if isinstance(layout, MutationLayoutSHOULDREMOVE) else layout

    def _allocate(self, name: str) -> torch.Tensor:
        with self._install_handlers():
            layout = self._find_layout(name)
            span = _measure_span(self._evaluate_sizes(layout.size), self._evaluate_sizes(layout.stride))
            span += self._evaluate_size(getattr(layout, "offset", 0))
        return torch.zeros(span, dtype=self._find_storage_dtype(layout.dtype))

    def _find_storage_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return find_compute_dtype(dtype, double=True) if self.double else dtype

    def _load_elements(self, value: torch.Tensor) -> torch.Tensor:
        span = _measure_span(value.shape, value.stride())
        row = value.detach().as_strided((span,), (1,), value.storage_offset())
        return row.cpu().to(self._find_storage_dtype(value.dtype), copy=True)

    def _bind(self, inputs: Sequence[object]) -> None:
        sympy = importlib.import_module("sympy")  # which has no types
        for (name, place), value in zip(self.graph.graph_inputs.items(), inputs, strict=False):
            if isinstance(value, torch.Tensor):
                if value.layout == torch.strided:
                    self._flat[name] = self._load_elements(value)
                sizes = zip(place.get_size() if hasattr(place, "get_size") else (), value.shape, strict=False)
                self.symbols.update((size, int(known)) for size, known in sizes if isinstance(size, sympy.Symbol))
            elif isinstance(place, sympy.Symbol):
                self.symbols[place] = value

    def _evaluate_size(self, size: Any) -> int:
        sympy = importlib.import_module("sympy")
        return int(size.subs(self.symbols)) if isinstance(size, sympy.Expr) else int(size)

    def _evaluate_sizes(self, sizes: Sequence[Any]) -> list[int]:
        return [self._evaluate_size(size) for size in sizes]

    @contextlib.contextmanager
    def _install_handlers(self) -> Iterator[None]:
        from torch._inductor.virtualized import V

        with V.set_graph_handler(self.graph), FREE_INDEXING.replace(True):
            yield


def _probe_free_indexing() -> str | None:
    layout = FREE_INDEXING.find_owner()(torch.device("cpu"), torch.float32, [2])
    with FREE_INDEXING.replace(True):
        layout.make_indexer()
    return None


FREE_INDEXING = ReplacedAttribute("torch._inductor.ir", "FlexibleLayout.allow_indexing", probe=_probe_free_indexing)


def _is_promising(target: object) -> bool:
    """Return whether an operator is a collective, whose results are not there before they are waited for."""
    return name_collective(target) not in (None, "wait_tensor")


def map_buffers_to_nodes(lowered: LoweredGraph) -> dict[str, str]:
    """The FX node whose value a buffer holds, by buffer: the first that was lowered to it, views apart."""
    nodes: dict[str, str] = {}
    for name, value in lowered.values.items():
        inner = getattr(value, "data", None) if type(value).__name__ == "StorageBox" else value
        if hasattr(inner, "get_name") and not type(inner).__name__.endswith("View"):
            with contextlib.suppress(NotImplementedError, AttributeError, AssertionError):  # a value without a buffer
                nodes.setdefault(inner.get_name(), name)
    return nodes


def is_lowered_to_view(lowered: LoweredGraph, name: str) -> bool:
    """Return whether the IR of a node is a view of what it reads, whatever its operator's schema says."""
    return type(lowered.values.get(name)).__name__.endswith("View")


def _measure_span(sizes: Sequence[int], strides: Sequence[int]) -> int:
    if any(size == 0 for size in sizes):
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


# One execution of a lowered graph followed step by step: each computation is repeated on what it really read.

_SEED = 11


class AppliedOperator(NamedTuple):
    """An operator of the graph, computed by ATen and by its lowering on the same inputs.

    ``lowered`` is before it is rounded to the dtype of the result; where a library computes it, what the kernel wrote.
    ``reads_unrounded``: an input of the lowering was never rounded to its dtype, so that ATen had another one.
    """

    node: fx.Node
    aten: torch.Tensor
    lowered: torch.Tensor
    reads_unrounded: bool


def compare_operators(followed: GraphEvaluation, inputs: Sequence[object]) -> list[AppliedOperator]:
    """Every operator whose lowering can be followed, in the order of the graph, on the inputs that it really had.

    An operator that does not run on the values of the execution raises what it raises.
    """
    applied: list[AppliedOperator] = []
    unrounded: set[str] = set()

    def follow(node: fx.Node, run: Callable[[], object]) -> object:
        aten = run()
        if node.op != "call_function" or not isinstance(aten, torch.Tensor) or aten.layout != torch.strided:
            return aten
        # The result of the lowering on the inputs that it read, or the value that a library's kernel wrote.
        lowered: torch.Tensor | None = None
        with contextlib.suppress(*NOT_FOLLOWED):
            lowered = followed.evaluate_node(node.name, rounded=False)
        stored = followed.find_stored(node.name)
        if stored is not None:
            lowered = stored.meant if stored.meant is not None else stored.written
        if lowered is None or lowered.shape != aten.shape:
            return aten
        tainted = any(source.name in unrounded for source in node.all_input_nodes)
        applied.append(AppliedOperator(node, aten, lowered, tainted))
        rounded = lowered.to(aten.dtype)
        again = rounded.to(lowered.dtype)
        changed = lowered.is_floating_point() and bool(((again != lowered) & (lowered == lowered)).any())
        returned = node.target._schema.returns if isinstance(node.target, torch._ops.OpOverload) else ()
        if changed or (tainted and stored is None and any(result.alias_info is not None for result in returned)):
            unrounded.add(node.name)
        compiled = stored.written if stored is not None and stored.written.shape == aten.shape else rounded
        return torch.empty_strided(aten.size(), aten.stride(), dtype=aten.dtype).copy_(compiled)

    seed_everything(_SEED)
    with torch.no_grad():
        GraphReplayer(followed.lowered.snapshot, on_node=follow).run(*copy_tree(list(inputs)))
    return applied
