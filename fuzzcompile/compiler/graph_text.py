"""Graphs as text: one line a node, and differences of two graphs."""

from __future__ import annotations

import difflib
import functools
import inspect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils._dtype_abbrs import dtype_abbrs

from fuzzcompile.compiler.watch.ledger import Ledger, Snapshot
from fuzzcompile.compiler.watch.rule_labels import find_user_line
from fuzzcompile.model.culprit_contract import MatchedLineJson
from fuzzcompile.run.tensors import name_collective

_CONTEXT = 2  # unchanged lines around a change
_LONGEST = 200  # characters of a line
# Of float8, the whole name says more.
_DTYPES = {dtype: short for dtype, short in dtype_abbrs.items() if dtype.itemsize > 1 or not dtype.is_floating_point}


def format_graph(snapshot: Snapshot) -> list[str]:
    """The graph, one line a node: ``name: f32[2, 3] = aten.mul.Tensor(x, 2.0)``; bodies of operators are indented."""
    return [*map(_format_node, snapshot.graph.nodes), *_format_bodies(snapshot.attributes, "")]


def diff_graphs(before: Snapshot, after: Snapshot, *, most: int = 60) -> list[str]:
    """A unified diff of the two graphs with little around each change; no more than ``most`` lines."""
    found = difflib.unified_diff(format_graph(before), format_graph(after), n=_CONTEXT, lineterm="")
    lines = [line for line in found if not line.startswith(("--- ", "+++ "))]
    if len(lines) > most:
        lines = [*lines[:most], f"... and {len(lines) - most} more lines"]
    return lines


def find_changed_nodes(before: Snapshot, after: Snapshot) -> list[str]:
    """Names of the nodes of ``before`` that ``after`` does not have, or has with another target or arguments."""
    there = {node.name: _format_node(node) for node in after.graph.nodes}
    nodes = [node for node in before.graph.nodes if node.op != "output"]
    return [node.name for node in nodes if there.get(node.name) != _format_node(node)]


def list_user_lines(snapshot: Snapshot, names: Iterable[str]) -> list[MatchedLineJson]:
    """The lines of the user's program behind the nodes of these names, in their order, as far as the graph has them."""
    wanted = set(names)
    found: dict[tuple[str | None, str | None], list[str]] = {}
    for node in snapshot.graph.nodes:
        if node.name in wanted:
            found.setdefault(find_user_line(node), []).append(node.name)
    return [{"source": source, "code": code, "nodes": nodes} for (source, code), nodes in found.items()]


def format_target(node: fx.Node) -> str:
    """Return the target of a node in the words of a program: ``aten.mul.Tensor``, ``torch.add``, ``.view``."""
    target = node.target
    if isinstance(target, str):
        return f".{target}" if node.op == "call_method" else target
    if isinstance(target, functools.partial):  # the lowering that a pattern put in place of what it matched
        return f"lowering {getattr(target.func, '__name__', 'of a pattern')}"
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return str(target)
    module, name = getattr(target, "__module__", None), getattr(target, "__name__", None)
    if not isinstance(name, str):
        return str(target)
    if not isinstance(module, str) or module in ("builtins", "_operator"):
        return name
    return f"{module.replace('torch._C._nn', 'torch').replace('torch._C', 'torch')}.{name}"


def _format_bodies(attributes: Any, indent: str) -> Iterator[str]:
    for name, value in sorted(attributes.items()):
        if isinstance(value, fx.GraphModule):
            yield f"{indent}{name}:"
            yield from (f"{indent}  {_format_node(node)}" for node in value.graph.nodes)
            yield from _format_bodies(dict(value.named_children()), f"{indent}  ")


@functools.lru_cache(maxsize=1024)
def _list_parameters(target: object) -> Sequence[tuple[str, bool]]:
    """The names of a function's positional parameters, each with whether it may be left out; empty if not known."""
    if isinstance(target, torch._ops.OpOverload):
        return [(own.name, own.has_default_value()) for own in target._schema.arguments if not own.kwarg_only]
    try:
        parameters = inspect.signature(target).parameters.values() if callable(target) else ()
    except (TypeError, ValueError):  # a builtin
        return []
    return [(own.name, own.default is not own.empty) for own in parameters if own.kind is own.POSITIONAL_OR_KEYWORD]


def _iter_arguments(node: fx.Node) -> Iterator[str]:
    """The arguments of a call; a constant for a parameter that may be left out has its name."""
    known = _list_parameters(node.target) if node.op == "call_function" else ()
    for value, (name, optional) in itertools.zip_longest(node.args, known[: len(node.args)], fillvalue=("", False)):
        constant = not any(isinstance(leaf, fx.Node) for leaf in pytree.tree_leaves(value))
        yield f"{name}={_format_argument(value)}" if optional and constant else _format_argument(value)
    yield from (f"{key}={_format_argument(value)}" for key, value in node.kwargs.items())


def _format_node(node: fx.Node) -> str:
    given = ", ".join(_iter_arguments(node))
    made = {"placeholder": "input", "get_attr": f"constant {node.target}"}.get(node.op)
    text = f"{node.name}{_format_node_type(node)} = {made or f'{format_target(node)}({given})'}"
    text = f"return {given}" if node.op == "output" else text
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."


def _format_argument(value: object) -> str:
    if isinstance(value, fx.Node):
        return value.name
    if isinstance(value, (list, tuple)):
        inside = ", ".join(map(_format_argument, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' if len(value) == 1 else ''})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_format_argument(item)}" for key, item in value.items()) + "}"
    if isinstance(value, slice):
        return f"{_format_argument(value.start)}:{_format_argument(value.stop)}:{_format_argument(value.step)}"
    try:
        return " ".join(repr(value).split())
    except Exception:  # an object of the user's own
        return type(value).__name__


def _format_node_type(node: fx.Node) -> str:
    """``: f32[2, 3]``; of an operator with several results those of all; nothing where it is not known."""
    value = node.meta.get("val", node.meta.get("example_value"))
    found = [
        f"{_DTYPES.get(leaf.dtype, str(leaf.dtype).removeprefix('torch.'))}[{', '.join(map(str, leaf.shape))}]"
        for leaf in pytree.tree_leaves(value)
        if isinstance(leaf, torch.Tensor)
    ]
    if not found:
        return ""
    return f": {found[0]}" if isinstance(value, torch.Tensor) else f": ({', '.join(found)})"


# Collectives of the graphs of one rank beside those of another, which have to be the same.

Collective = tuple[str, str]
"""A collective as ``all_reduce: f32[8, 16], 'sum'``, and the direction of its graph."""


def list_collectives(ledger: Ledger) -> list[Collective]:
    """The collectives of all graphs, as the last pass left them, in order."""
    last = {(frame.index, record.direction): record for frame in ledger.frames for record in frame.records}
    return [
        (_format_collective(node), record.direction)
        for record in last.values()
        for node in (record.snapshots[-1].graph.nodes if record.snapshots else ())
        if name_collective(node.target) not in (None, "wait_tensor")
    ]


def _format_collective(node: fx.Node) -> str:
    # A group, which is the last argument, has another name in each part of a mesh.
    plain = (_format_argument(value) for value in node.args[:-1] if isinstance(value, (str, int)))
    return ", ".join([f"{name_collective(node.target)}{_format_node_type(node)}", *plain])


def compare_collectives(ours: Sequence[Collective], theirs: Sequence[Collective], rank: int) -> str | None:
    """Where the collectives of another rank's graphs part from the first one's, in a sentence; None if nowhere."""
    pairs = itertools.zip_longest(ours, theirs)
    parted = next(((own, other) for own, other in pairs if own != other), None)
    if parted is None:
        return None
    own, other = (f"{each[0]} ({each[1]} graph)" if each is not None else "no collective" for each in parted)
    return f"The graphs of the ranks part: rank {rank} calls {other} where rank 0 calls {own}."
