"""Matches of lowering patterns, kept so that the Python handler that stands in their place can be replayed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.copies import Row, State
from fuzzcompile.compiler.ledger import Keep, Opaque, attributes_of, is_handler, sub_graph


def lowered_match(
    before: State, match: Any, nodes: list[fx.Node], output: fx.Node, module: fx.GraphModule, keep: Keep
) -> dict[int, Opaque]:
    """The matched ``nodes``, by identity of the handler that is new in ``module`` since ``before``; empty if none."""
    handlers = [node for node in module.graph.nodes if is_handler(node.target)]
    if not handlers:
        return {}
    rows = dict(before.every())
    created = [handler for handler in handlers if handler not in rows]
    opaque = _as_graph(match, nodes, rows, output, module, keep) if created else None
    return {id(handler.target): opaque for handler in created} if opaque is not None else {}


def _as_graph(
    match: Any, nodes: list[fx.Node], rows: Mapping[fx.Node, Row], output: fx.Node, module: fx.GraphModule, keep: Keep
) -> Opaque | None:
    """The matched nodes as they were, as a graph; None if they use values that are no arguments of the match."""
    graph, feeds = sub_graph(nodes, rows, output)
    flat = pytree.tree_leaves((tuple(match.args), match.kwargs))
    places = {id(argument): position for position, argument in reversed(list(enumerate(flat)))}
    if any(id(feed) not in places for feed in feeds):
        return None
    return Opaque(graph, attributes_of(graph, module, keep), tuple(places[id(feed)] for feed in feeds))


def is_plain(value: object) -> bool:
    """Return whether a value is a tensor with values in a storage: no fake one, none prepacked for a library."""
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided  # type: ignore[attr-defined]
