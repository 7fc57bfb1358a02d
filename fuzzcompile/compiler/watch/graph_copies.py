"""Copies of the compiler's graphs: taken in microseconds, built into graphs only when they are read.

A compile is inspected more than a hundred times and its graphs are copied a dozen times, so neither may cost more
than a walk in C over the nodes. It rests on one property of fx: a node's ``args`` and ``kwargs`` are immutable, and
an assignment to them makes new objects. What is the same object has not changed, and what was copied stays as it was.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from typing import Any

from torch import fx

Row = tuple[Any, Any, Any, str]
_ROW = operator.attrgetter("target", "args", "kwargs", "name")
_OWN = ("get_attr", "call_module")


class GraphState:
    """A graph as it stands, with the graphs of its submodules; holds the live nodes and costs no copy.

    ``held`` are the values that its nodes name in its module.
    """

    __slots__ = ("children", "held", "nodes", "rows")

    def __init__(self, module: fx.GraphModule, graph: fx.Graph | None = None) -> None:
        graph = graph or module.graph  # or another whose nodes name what the module has
        self.nodes: list[fx.Node] = list(graph.nodes)
        self.rows: list[Row] = list(map(_ROW, self.nodes))
        named = (str(node.target) for op in _OWN for node in graph.find_nodes(op=op))
        self.held = [(name, resolve_path(module, name)) for name in named]
        self.children = [GraphState(value) for _, value in self.held if isinstance(value, fx.GraphModule)]

    def is_same(self, other: GraphState) -> bool:
        """Return whether nothing changed between the two; a part that was rebuilt exactly counts as the same."""
        if len(self.nodes) != len(other.nodes) or len(self.children) != len(other.children):
            return False
        flat = itertools.chain.from_iterable
        if not all(map(operator.is_, flat(self.rows), flat(other.rows))) and not self._reads_the_same(other):
            return False
        if [name for name, _ in self.held] != [name for name, _ in other.held]:
            return False
        if not all(
            a is b or isinstance(a, fx.GraphModule) for (_, a), (_, b) in zip(self.held, other.held, strict=True)
        ):
            return False
        return all(one.is_same(two) for one, two in zip(self.children, other.children, strict=True))

    def _reads_the_same(self, other: GraphState) -> bool:
        """Compare as text where objects differ: sizes are symbols, and comparing those would make guards."""
        for one, two, mine, yours in zip(self.rows, other.rows, self.nodes, other.nodes, strict=True):
            if all(map(operator.is_, one, two)):
                continue
            if mine.op != yours.op or one[3] != two[3] or repr(one[1:3]) != repr(two[1:3]):
                return False
            if one[0] is not two[0] and not (isinstance(one[0], str) and one[0] == two[0]):
                return False
        return True

    def iterate_nodes(self) -> Iterator[tuple[fx.Node, Row]]:
        """All nodes with what they held, those of submodules too."""
        yield from zip(self.nodes, self.rows, strict=True)
        for child in self.children:
            yield from child.iterate_nodes()


class GraphCopy:
    """The copy of one graph."""

    __slots__ = ("_metas", "_nodes", "_rows")

    def __init__(self, state: GraphState) -> None:
        self._nodes, self._rows = state.nodes, state.rows
        self._metas = [node.meta.copy() for node in state.nodes]

    @property
    def called_targets(self) -> set[Any]:
        """The targets of the nodes: operators, functions, names of methods."""
        rows = zip(self._nodes, self._rows, strict=True)
        return {target for node, (target, _, _, _) in rows if node.op in ("call_function", "call_method")}

    def build(self) -> fx.Graph:
        """A graph of its own in a topological order that keeps the present order wherever it can.

        Some rules leave the live graph out of order until their stage ends. Of one with a cycle, which has no order,
        a graph that raises stands in.
        """
        graph = fx.Graph()
        made: dict[fx.Node, fx.Node] = {}
        held = {node: position for position, node in enumerate(self._nodes)}
        ordered = self._sort_nodes(held)
        for node in [node for node in self._nodes if node.op == "placeholder"] if ordered is None else ordered:
            target, args, kwargs, name = self._rows[held[node]]
            new_args, new_kwargs = (fx.node.map_arg(given, made.__getitem__) for given in (args, kwargs))
            made[node] = graph.create_node(node.op, target, new_args, new_kwargs, name, node.type)
            made[node].meta = self._metas[held[node]]
        if ordered is None:
            graph.output(graph.call_function(_raise_cycle))
        return graph

    def _sort_nodes(self, held: dict[fx.Node, int]) -> list[fx.Node] | None:
        """The nodes in order; None if some need each other."""
        sources: list[dict[fx.Node, None]] = []
        for _, args, kwargs, _ in self._rows:
            sources.append({})
            fx.node.map_arg((args, kwargs), sources[-1].setdefault)
        done: set[fx.Node] = set()
        waiting: set[fx.Node] = set()
        ordered: list[fx.Node] = []
        for root in self._nodes:
            stack = [root]
            while stack:
                node = stack[-1]
                missing = [source for source in sources[held[node]] if source not in done]
                if node in done:
                    stack.pop()
                elif missing and (node in waiting or not all(source in held for source in missing)):
                    return None
                elif missing:
                    waiting.add(node)
                    stack.extend(reversed(missing))
                else:
                    done.add(node)
                    waiting.discard(node)
                    ordered.append(node)
                    stack.pop()
        return ordered


def _raise_cycle() -> None:
    raise ValueError("the graph is no graph of a program: its nodes need each other, or one that is not in it")


def resolve_path(module: Any, path: str) -> Any:
    """Return the value that a dotted path names in a module; None if there is none."""
    for part in path.split("."):
        module = getattr(module, part, None)
    return module
