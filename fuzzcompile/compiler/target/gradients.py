"""Gradients of fake tensors on a device that is not there.

Autograd's engine asks the device's driver for streams, so AOTAutograd cannot trace a backward for CUDA without one. The
graph of ``grad_fn`` nodes can be walked from Python as well, and each node called by itself. What the engine does
around such calls is done here as ``torch/csrc/autograd/engine.cpp`` has it: nodes run by falling sequence number,
gradients that meet are added up, and each is reduced to the shape and dtype of what it belongs to
(``validate_outputs``).
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

Gradients = tuple[torch.Tensor | None, ...]
_Key = tuple[Node, int]


def wrap(original: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """``torch.autograd.grad``, which walks the nodes itself for outputs on CUDA."""

    @functools.wraps(original)
    def grad(
        outputs: torch.Tensor | Sequence[torch.Tensor],
        inputs: torch.Tensor | Sequence[torch.Tensor],
        grad_outputs: torch.Tensor | Sequence[torch.Tensor | None] | None = None,
        *args: object,
        **kwargs: object,
    ) -> Gradients:
        listed = _listed(outputs)
        if not any(isinstance(output, torch.Tensor) and output.is_cuda for output in listed):
            return original(outputs, inputs, grad_outputs, *args, **kwargs)
        given = [None] * len(listed) if grad_outputs is None else _listed(grad_outputs)
        starts = [_one_like(out) if start is None else start for out, start in zip(listed, given, strict=True)]
        with torch.no_grad():
            return gradients(listed, starts, _listed(inputs))

    return grad


def gradients(
    outputs: Sequence[torch.Tensor], grad_outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> Gradients:
    """Gradients of ``outputs`` for ``inputs``, given those of the outputs; None for an input that none depends on."""
    roots = [get_gradient_edge(output) for output in outputs if output.requires_grad]
    starts = [start for output, start in zip(outputs, grad_outputs, strict=True) if output.requires_grad]
    wanted = [get_gradient_edge(tensor) if tensor.requires_grad else None for tensor in inputs]
    return _Walk(roots, starts, [edge for edge in wanted if edge is not None]).results(wanted)


class _Walk:
    def __init__(
        self, roots: Sequence[GradientEdge], starts: Sequence[torch.Tensor], wanted: Sequence[GradientEdge]
    ) -> None:
        self._ends: set[_Key] = {(edge.node, edge.output_nr) for edge in wanted}
        self._arrived: dict[Node, dict[int, torch.Tensor]] = defaultdict(dict)
        self._kept: dict[_Key, torch.Tensor] = {}
        self._waiting = _dependencies([edge.node for edge in roots])
        self._needed = _leading_to({edge.node for edge in wanted}, list(self._waiting))
        for edge, start in zip(roots, starts, strict=True):
            self._add(edge.node, edge.output_nr, start)
        self._run([edge.node for edge in roots])

    def results(self, wanted: Sequence[GradientEdge | None]) -> Gradients:
        """Return the gradient that arrived at each of the edges."""
        return tuple(None if edge is None else self._kept.get((edge.node, edge.output_nr)) for edge in wanted)

    def _run(self, roots: Sequence[Node]) -> None:
        order = itertools.count()
        ready = [(-_rank(node), next(order), node) for node in dict.fromkeys(roots) if not self._waiting[node]]
        heapq.heapify(ready)
        while ready:
            _, _, node = heapq.heappop(ready)
            self._step(node)
            for following in _following(node):
                self._waiting[following] -= 1
                if not self._waiting[following]:
                    heapq.heappush(ready, (-_rank(following), next(order), following))

    def _step(self, node: Node) -> None:
        arrived = self._arrived.pop(node, {})
        for position, gradient in arrived.items():
            if (node, position) in self._ends:
                self._kept[node, position] = gradient
        if not arrived or node not in self._needed or _accumulates(node):
            return
        results = _called(node, [arrived.get(position) for position in range(len(node._input_metadata))])
        for (following, place), result in zip(node.next_functions, results, strict=True):
            if following is not None and result is not None:
                self._add(following, place, result)

    def _add(self, node: Node, position: int, gradient: torch.Tensor) -> None:
        fitted = _fitted(gradient, node._input_metadata[position])
        before = self._arrived[node].get(position)
        self._arrived[node][position] = fitted if before is None else before + fitted


def _following(node: Node) -> list[Node]:
    return [following for following, _ in node.next_functions if following is not None]


def _accumulates(node: Node) -> bool:
    return type(node).__name__ == "AccumulateGrad"


def _rank(node: Node) -> int:
    return int(node._sequence_nr())


def _dependencies(roots: Sequence[Node]) -> dict[Node, int]:
    """Count the edges that lead to each node that can be reached."""
    counts = dict.fromkeys(roots, 0)
    pending = list(counts)
    while pending:
        for following in _following(pending.pop()):
            if following not in counts:
                counts[following] = 0
                pending.append(following)
            counts[following] += 1
    return counts


def _leading_to(ends: set[Node], nodes: Sequence[Node]) -> set[Node]:
    """The nodes whose calls lead to one of ``ends``; an end itself is called only if it leads to another."""
    before = defaultdict(list)
    for node in nodes:
        for following in _following(node):
            before[following].append(node)
    leading: set[Node] = set()
    pending = list(ends)
    while pending:
        for node in before[pending.pop()]:
            if node not in leading:
                leading.add(node)
                pending.append(node)
    return leading


def _called(node: Any, gradients: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Call one node; a ``torch.autograd.Function`` gets zeros for outputs without a gradient, as from the engine."""
    if not hasattr(node, "apply"):  # written in C++
        results = node(*gradients)
    else:
        filled = [
            _zeros(metadata) if gradient is None else gradient
            for gradient, metadata in zip(gradients, node._input_metadata, strict=True)
        ]
        results = node.apply(*filled)
    listed = list(results) if isinstance(results, (tuple, list)) else [results]
    surplus = len(listed) - len(node.next_functions)
    for position in reversed(range(len(listed))):  # arguments that are no tensors have no edge, and None as gradient
        if surplus > 0 and listed[position] is None:
            del listed[position]
            surplus -= 1
    return listed


def _fitted(gradient: torch.Tensor, metadata: Any) -> torch.Tensor:
    """A gradient in the shape and dtype of the tensor that it belongs to."""
    if tuple(gradient.shape) != tuple(metadata.shape):
        gradient = gradient.sum_to_size(metadata.shape)
    return gradient if gradient.dtype == metadata.dtype else gradient.to(metadata.dtype)


def _zeros(metadata: Any) -> torch.Tensor:
    return torch.zeros(metadata.shape, dtype=metadata.dtype, device=metadata.device)


def _one_like(output: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(output)


def _listed(values: Any) -> list[Any]:
    return [values] if isinstance(values, torch.Tensor) else list(values)
