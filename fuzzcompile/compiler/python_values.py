"""What is comparable of Python values and tensors, in eager mode and as dynamo knows them, by a replay of its graph."""

from __future__ import annotations

import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy
import torch
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from fuzzcompile.compiler.graph_replay import replay_graph
from fuzzcompile.compiler.watch.ledger import Snapshot
from fuzzcompile.model.evidence import count_noun
from fuzzcompile.run.tensors import is_inexact, is_plain

# Elements up to which a tensor is summed up.
_MOST_ELEMENTS = 2**16
# How far sums of values of one dtype may lie apart, in its steps, of the sum of their absolute values.
_STEPS = 64


@dataclass(frozen=True)
class TensorSummary:
    """Dtype, shape and two sums of a tensor, one of them weighted; no ``sums`` where they are not known."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    needs_gradient: bool
    sums: tuple[float, ...] | None = None
    size: float = 0.0  # the sum of absolute values
    infinite: int = 0  # elements that are no number or infinite, which the sums have finite numbers for

    def __str__(self) -> str:
        """The tensor for a reader, by its sums."""
        held = "" if self.sums is None else f", of sum {self.sums[0]:.6g}, weighted {self.sums[1]:.6g}"
        held = f", {count_noun(self.infinite, 'element')} not finite" if self.infinite else held
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
    infinite = int((~torch.isfinite(flat)).sum())
    flat = torch.nan_to_num(flat.double(), nan=1e3, posinf=2e3, neginf=-2e3)
    weights = torch.cos(torch.arange(flat.numel(), dtype=torch.float64, device=flat.device))
    values = float(flat.sum()), float((flat * weights).sum())
    return TensorSummary(form.dtype, form.shape, needs_gradient, values, float(flat.abs().sum()), infinite)


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

    def forget(self, graph: int) -> None:
        """Forget what was traced into a graph, by its identity: it was given up."""
        for kept in (self._graphs, self._ends, self._asked):
            kept.pop(graph, None)

    def replay(self, captured: Iterable[tuple[Snapshot, Sequence[object]]], *, sums: bool) -> None:
        """Run the graphs that were traced on the inputs of a call, and look at their tensors behind each node.

        Without ``sums``, at their form alone: a replay draws other random numbers.
        """
        graphs = [(snapshot, inputs, {node.name for node in snapshot.graph.nodes}) for snapshot, inputs in captured]
        for key, graph in self._graphs.items():
            names = {node.name for node in graph.nodes if node.op != "output"}
            # What was traced last is what stayed in the trace; one of another frame may hold the same names and more.
            fitting = [(len(held), one, given) for one, given, held in reversed(graphs) if names and names <= held]
            if fitting:
                self._replay(key, *min(fitting, key=lambda each: each[0])[1:], sums=sums)

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


Digest = tuple[object, ...] | None
"""What is comparable of a Python value; None, also within it, where nothing is known."""

V = TypeVar("V")

_DEEPEST, _WIDEST = 3, 32
_NUMBERS = (bool, int, float, complex, str)
_PLAIN = (*_NUMBERS, bytes, type(None))
_SPANS = (range, slice)
_ORDERED, _UNORDERED = (list, tuple, torch.Size, deque), (set, frozenset)
_CONTAINERS = (*_ORDERED, *_UNORDERED, dict)
PLAIN_TYPES = frozenset((*_PLAIN, *_SPANS, *_CONTAINERS))
"""Python's own types whose values are compared whole."""
TENSOR, _OBJECT = ("tensor",), ("object",)


def digest_each(values: Mapping[str, V], digest: Callable[[V], Digest]) -> dict[str, Digest]:
    """Digest several values."""
    return {name: digest(value) for name, value in list(values.items())}


def digest_variable(
    variable: Any, depth: int = _DEEPEST, *, tensors: Callable[[Any], object] = lambda variable: None
) -> Digest:
    """Digest what dynamo knows of a value; None of one that only the run gives.

    ``tensors`` says what is comparable of a tensor.
    """
    try:
        if not getattr(variable, "is_realized", lambda: True)():
            return None  # an argument that nothing has been done to
        variable = variable.realize() if hasattr(variable, "realize") else variable
        if type(variable).__name__ == "CellVariable":
            return None  # eager mode shows what the cell holds
        if type(variable).__name__ == "ConstantVariable":
            return digest(variable.value)
        kind = variable.python_type()
        if issubclass(kind, (torch.Tensor, numpy.ndarray)):
            return (*TENSOR, tensors(variable))
        if kind in _PLAIN:
            return _digest_symbol(variable, kind)
        if kind in _SPANS:
            return digest(variable.as_python_constant())
        if kind not in _CONTAINERS:
            return (*_OBJECT, kind)
        if depth == 0:
            return (kind, None)
        if kind is dict or kind in _UNORDERED:
            held = [(digest_variable(getattr(key, "vt", key), 0), item) for key, item in variable.items.items()]
            if kind in _UNORDERED:
                return _digest_set(kind, [key for key, _ in held])
            items = tuple((key, digest_variable(item, depth - 1, tensors=tensors)) for key, item in held)
            return (kind, items if len(items) <= _WIDEST else None)
        # What a deque may hold at most is a part of it.
        listed = [*variable.items, *([variable.maxlen] if kind is deque else ())]
        if len(listed) > _WIDEST:
            return (kind, None)
        return (kind, tuple(digest_variable(item, depth - 1, tensors=tensors) for item in listed))
    except Exception:  # of dynamo, which does not know the value
        return None


def _digest_symbol(variable: Any, kind: type) -> Digest:
    """Digest a number that stands for sizes, by those that dynamo traces with; None of what only the run gives."""
    hint = variable.sym_num.node.hint
    return digest(kind(hint)) if isinstance(hint, (bool, int, float)) else None


def _digest_set(kind: type, keys: list[Digest]) -> Digest:
    if any(key is None or None in key for key in keys):
        return (kind, None)
    return (kind, frozenset(key[:1] if key is not None and key[:1] == _OBJECT else key for key in keys))


def digest(
    value: object, depth: int = _DEEPEST, *, tensors: Callable[[torch.Tensor], object] = lambda tensor: None
) -> Digest:
    """Digest a value to compare it: its type and what it holds; of a tensor, what ``tensors`` says of it.

    An array of NumPy's is a tensor, as it is to dynamo.
    """
    kind: type = type(value)
    if isinstance(value, numpy.ndarray):
        try:
            value = torch.from_numpy(value.copy() if value.size <= _MOST_ELEMENTS else value)
        except (TypeError, ValueError):  # of a dtype or of strides that torch does not have
            return (*TENSOR, None)
    if isinstance(value, torch.Tensor):
        return (*TENSOR, tensors(value))
    if kind in (*_PLAIN, *_SPANS):
        return (kind, repr(value))
    if kind not in _CONTAINERS:
        return (*_OBJECT, kind)
    if depth == 0:
        return (kind, None)
    if isinstance(value, (set, frozenset)):
        return _digest_set(kind, [digest(item, 0) for item in value])
    if len(value) > _WIDEST:  # type: ignore[arg-type]
        return (kind, None)
    if isinstance(value, dict):
        return (kind, tuple((digest(key, 0), digest(item, depth - 1, tensors=tensors)) for key, item in value.items()))
    items = [*value, *([value.maxlen] if isinstance(value, deque) else ())]  # type: ignore[misc]
    return (kind, tuple(digest(item, depth - 1, tensors=tensors) for item in items))


def agree(eager: object, traced: object) -> bool:
    """Return whether two digests can be of one value."""
    traced = _look_up(traced)
    if isinstance(eager, TensorSummary) and isinstance(traced, TensorSummary):
        return eager.fits(traced)
    if eager is None or traced is None or eager == traced:
        return True
    if not isinstance(eager, tuple) or not isinstance(traced, tuple):
        return False
    if _OBJECT in (eager[:1], traced[:1]):
        # A value of another class may be traced as what it derives from.
        return not {*eager[:1], *traced[:1]} & {*TENSOR, *_CONTAINERS}
    if len(eager) != len(traced):
        return False
    return all(map(agree, eager, traced))


def list_summaries(values: Mapping[str, Digest]) -> list[TensorSummary]:
    """List what is known of the tensors among several values, and in their containers."""
    return [each for each in pytree.tree_leaves(list(values.values())) if isinstance(each, TensorSummary)]


def _look_up(held: object) -> object:
    """What is known of a tensor; anything else as it is."""
    return held.summary if isinstance(held, TracedTensor) else held


def hold_alike(eager: Digest, traced: Digest) -> bool:
    """Return whether two digests are of tensors with the same values, of which one alone requires a gradient."""
    pair = [each[1] if each is not None and each[:1] == TENSOR else None for each in (eager, traced)]
    ours, theirs = map(_look_up, pair)
    return isinstance(ours, TensorSummary) and isinstance(theirs, TensorSummary) and ours.holds_alike(theirs)


def is_number(variable: Any) -> bool:
    """Return whether a variable of dynamo's is a number or a string, which it may or may not know."""
    try:
        return issubclass(variable.python_type(), _NUMBERS)
    except Exception:  # of dynamo, which does not know the type
        return False


def holds_items(handler: type | None) -> bool:
    """Return whether a class of dynamo is of a container, whose items are compared."""
    return handler is not None and handler.__module__.rpartition(".")[2] in ("lists", "dicts", "sets")


def word_digest(stored: Digest) -> str:
    """A value for a reader."""
    if stored is None:
        return "?"
    if stored[:1] == TENSOR:
        held = _look_up(stored[1])
        return TENSOR[0] if held is None else f"tensor ({held})"
    kind, held = stored[0], stored[-1]
    if stored[:1] == _OBJECT:
        return held.__name__ if isinstance(held, type) else _OBJECT[0]
    if isinstance(held, str):
        return held
    items: Any = held or ()
    words = [": ".join(map(word_digest, item)) if kind is dict else word_digest(item) for item in items]
    return f"{kind.__name__ if isinstance(kind, type) else kind}({', '.join(words)})"
