"""Inputs that a graph of the compiler writes to, by its operators' schemas."""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
from torch import fx


def read_only(graph: fx.Graph) -> list[int]:
    """Positions of the placeholders that no node writes to; none for a graph with calls that have no schema.

    A graph at torch level, or one with opaque lowerings, has such calls.
    """
    written: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op not in ("placeholder", "get_attr", "call_function", "output"):
            return []
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        if not isinstance(node.target, torch._ops.OpOverload):
            return []
        written.update(_origin(argument) for argument in _written(node, node.target))
    placeholders = graph.find_nodes(op="placeholder")
    return [position for position, node in enumerate(placeholders) if node not in written]


def _written(node: fx.Node, target: torch._ops.OpOverload) -> Iterator[fx.Node]:
    """The arguments that a call writes to."""
    for position, argument in enumerate(target._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
            nodes: list[fx.Node] = []
            fx.node.map_arg(given, nodes.append)
            yield from nodes


def _origin(node: fx.Node) -> fx.Node:
    """The node whose memory ``node`` may be a view of."""
    while node.op == "call_function" and node.all_input_nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is not None and all(returned.alias_info is None for returned in schema.returns):
            return node
        node = node.all_input_nodes[0]
    return node
