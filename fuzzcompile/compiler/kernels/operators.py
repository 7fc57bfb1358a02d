"""Stable names for the operators of a graph that is lowered, and which of them can fall back to ATen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch import fx

from fuzzcompile.compiler.labels import location, source_of
from fuzzcompile.compiler.ledger import is_handler


def operator_labels(graph: fx.Graph, direction: str) -> dict[str, str]:
    """A label for every call of a graph, by node name: ``forward:aten.gelu.default@model.py:14#1``.

    It means the same operator in the next compile, whatever the nodes are then called.
    """
    seen: Counter[str] = Counter()
    labels = {}
    for node in graph.nodes:
        if node.op == "call_function":
            label = f"{direction}:{operator_name(node.target)}@{location([node]) or '?'}"
            seen[label] += 1
            labels[node.name] = f"{label}#{seen[label]}"
    return labels


def operator_of(label: str) -> str:
    """The operator's name in a label."""
    return label.partition(":")[2].partition("@")[0]


def operator_name(target: object) -> str:
    """The name that a reader knows: ``aten.gelu.default``."""
    if is_handler(target):
        return str(getattr(getattr(target, "func", None), "__name__", target))
    return str(target) if isinstance(target, torch._ops.OpOverload) else str(getattr(target, "__name__", target))


def can_fall_back(node: fx.Node) -> bool:
    """Return whether ATen can compute the node instead of its lowering: no view, no write to an argument."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return False
    if any(value.alias_info is not None for value in (*target._schema.arguments, *target._schema.returns)):
        return False
    # ATen has none for sizes that are symbols, and what makes constants has nothing to compute.
    if torch.Tag.nondeterministic_seeded in target.tags and not node.all_input_nodes:
        return True
    return any(isinstance(argument.meta.get("val"), torch.Tensor) for argument in node.all_input_nodes)


def lowering_source(target: Callable[..., object] | str) -> tuple[str | None, int | None]:
    """File and line of the function that lowers an operator (None, None where there is none)."""
    if is_handler(target):
        return source_of(target)
    from torch._inductor.lowering import lowerings

    return source_of(lowerings.get(target))
