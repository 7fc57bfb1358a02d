"""What the tensors of a program hold: in eager mode, and those that dynamo traces, by a replay of its graph."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from fuzzcompile.compiler.graph_replay import replay_graph
from fuzzcompile.compiler.watch.ledger import Snapshot
from fuzzcompile.run.tensors import is_inexact, is_plain

# Elements up to which a tensor is summed up.
_MOST_ELEMENTS = 2**16
# How far sums of values of one dtype may lie apart, in its steps, of the sum of their absolute values.
_STEPS = 64


@dataclass(frozen=True)
class TensorSummary:
    """Dtype, shape and two weighted sums of a tensor; no ``sums`` where they are not known."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    needs_gradient: bool
    sums: tuple[float, ...] | None = None
    size: float = 0.0  # the sum of absolute values

    def __str__(self) -> str:
        """The tensor for a reader, by its first sum."""
        held = "" if self.sums is None else f", of sum {self.sums[0]:.6g}"
        return f"{self.dtype} {self.shape}{held}{', with gradient' if self.needs_gradient else ''}"

    def fits(self, other: TensorSummary) -> bool:
        """Return whether both can be of one tensor, up to rounding."""
        return self.needs_gradient == other.needs_gradient and self.holds_alike(other)

    def holds_alike(self, other: TensorSummary) -> bool:
        """Return whether both can have the same values, whether or not they require gradients."""
        if (self.dtype, self.shape) != (other.dtype, other.shape):
            return False
        if self.sums is None or other.sums is None:
            return True
        floating = is_inexact(self.dtype)
        allowed = _STEPS * torch.finfo(self.dtype).eps * max(self.size, other.size) if floating else 0.0
        return all(abs(ours - theirs) <= allowed for ours, theirs in zip(self.sums, other.sums, strict=True))


def summarise(tensor: torch.Tensor, *, needs_gradient: bool, sums: bool = True) -> TensorSummary | None:
    """The summary of a plain tensor; None for another, and for one without values."""
    try:
        return _summarise(tensor, needs_gradient=needs_gradient, sums=sums)
    except Exception:  # of torch: it is on no device, or of a dtype that nothing is computed in
        return None


def _summarise(tensor: torch.Tensor, *, needs_gradient: bool, sums: bool) -> TensorSummary | None:
    if not is_plain(tensor) or tensor.layout is not torch.strided:
        return None
    form = TensorSummary(tensor.dtype, tuple(tensor.shape), needs_gradient)
    if not sums or tensor.numel() > _MOST_ELEMENTS:
        return form
    flat = tensor.detach().resolve_conj().reshape(-1)
    flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    flat = torch.nan_to_num(flat.double(), nan=1e3, posinf=2e3, neginf=-2e3)
    weights = torch.cos(torch.arange(flat.numel(), dtype=torch.float64, device=flat.device))
    values = float(flat.sum()), float((flat * weights).sum())
    return TensorSummary(form.dtype, form.shape, needs_gradient, values, float(flat.abs().sum()))


class RunTensors:
    """Summaries of tensors of a run, each made once while no operator writes to it (``.data`` is not followed).

    Without ``sums``, of their form alone.
    """

    def __init__(self, *, sums: bool = True) -> None:
        self._sums = sums
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], int, TensorSummary | None]] = {}

    def __call__(self, tensor: torch.Tensor) -> TensorSummary | None:
        """The summary of a tensor as it is now."""
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            try:
                version = tensor._version
                known = self._known.get(id(tensor))
                if known is None or known[0]() is not tensor or known[1] != version:
                    made = summarise(tensor, needs_gradient=tensor.requires_grad, sums=self._sums)
                    self._known[id(tensor)] = known = weakref.ref(tensor), version, made
            except Exception:  # of torch, for a tensor that has no values
                return None
            return known[2]


@dataclass(frozen=True)
class TracedTensor:
    """A tensor of dynamo's while it traces: a node of its graph, as it is ``behind`` the last node so far."""

    graph: int
    node: str
    behind: str
    needs_gradient: bool
    tensors: TracedTensors = field(repr=False, compare=False)

    @property
    def summary(self) -> TensorSummary | None:
        """What it holds; None before its graph was run, and where that does not tell."""
        return self.tensors.get(self)


class TracedTensors:
    """The tensors of what dynamo traces, which are known once its graphs were replayed."""

    def __init__(self) -> None:
        self._known: dict[TracedTensor, TensorSummary | None] = {}
        self._inputs: list[TensorSummary] = []  # of the graphs that were replayed
        self._is_told = True
        self._graphs: dict[int, fx.Graph] = {}
        self._ends: dict[int, dict[str, None]] = defaultdict(dict)
        self._asked: dict[int, set[TracedTensor]] = defaultdict(set)

    def __call__(self, variable: Any) -> TracedTensor | None:
        """A variable of dynamo's that stands for a tensor."""
        node = variable.as_proxy().node
        graph, made = node.graph, node.meta.get("example_value")
        if not isinstance(made, torch.Tensor):
            return None
        key, last = id(graph), next(iter(reversed(graph.nodes))).name
        self._graphs[key] = graph
        self._ends[key].setdefault(last)
        traced = TracedTensor(key, node.name, last, made.requires_grad, self)
        self._asked[key].add(traced)
        return traced

    def get(self, traced: TracedTensor) -> TensorSummary | None:
        """What one of them holds; None where that is not known."""
        return self._known.get(traced) if self._is_told else None

    def compare_with(self, given: Iterable[TensorSummary]) -> None:
        """Tell what they hold only if the graphs were replayed on these arguments of a call."""
        compared = [each for each in self._inputs if each.sums is not None]
        self._is_told = all(any(known.holds_alike(each) for known in compared) for each in given if each.sums)

    def forget(self) -> None:
        """Forget what was traced so far: it was given up."""
        for kept in (self._graphs, self._ends, self._asked, self._known, self._inputs):
            kept.clear()

    def replay(self, captured: Iterable[tuple[Snapshot, Sequence[object]]], *, sums: bool) -> None:
        """Run the graphs that were traced on the inputs of a call, and look at their tensors behind each node.

        Without ``sums``, at their form alone: a replay draws other random numbers.
        """
        graphs = [(snapshot, inputs, {node.name for node in snapshot.graph.nodes}) for snapshot, inputs in captured]
        for key, graph in self._graphs.items():
            names = {node.name for node in graph.nodes if node.op != "output"}
            # What was traced last is what stayed in the trace.
            fitting = ((one, given) for one, given, held in reversed(graphs) if names and names <= held)
            if (found := next(fitting, None)) is not None:
                self._replay(key, *found, sums=sums)

    def _replay(self, key: int, snapshot: Snapshot, inputs: Sequence[object], *, sums: bool) -> None:
        held = {node.name for node in snapshot.graph.nodes}
        behind: dict[str, list[TracedTensor]] = defaultdict(list)
        last: dict[str, str] = {}  # of the nodes that are left, the one that each end is behind
        for name in self._ends[key]:
            last[name] = name if name in held else next(reversed(last.values()), "")
        for traced in self._asked[key]:
            behind[last[traced.behind]].append(traced)
        values, summaries = dict[str, object](), RunTensors(sums=sums)

        def look(node: fx.Node, run: Callable[[], object]) -> object:
            values[node.name] = result = run()
            for traced in behind.pop(node.name, ()):
                value = values.get(traced.node)
                if isinstance(value, torch.Tensor):
                    seen = summaries(value)
                    self._known[traced] = seen and replace(seen, needs_gradient=traced.needs_gradient)
            return result

        given = (summarise(each, needs_gradient=False) for each in inputs if isinstance(each, torch.Tensor))
        self._inputs += [each for each in given if each is not None]
        replay_graph(snapshot, inputs, double=False, on_node=look)
