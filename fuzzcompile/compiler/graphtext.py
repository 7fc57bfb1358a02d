"""Graphs as text: one line a node, and the difference of two graphs."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.ledger import Snapshot

_CONTEXT = 2  # unchanged lines around a change
_LONGEST = 200  # characters of a line
_FRAME = re.compile(r'File "(?P<path>[^"]+)", line (?P<line>\d+), in [^\n]*\n(?P<code>[^\n]*)')
_DTYPES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "b8",
    torch.complex64: "c64",
    torch.complex128: "c128",
}


def text_of(snapshot: Snapshot) -> list[str]:
    """The graph, one line a node: ``name: f32[2, 3] = aten.mul.Tensor(x, 2.0)``.

    Dtypes and shapes are those that the compiler believes (``b8`` is bool). Bodies of higher-order operators follow,
    indented.
    """
    return [*_lines(snapshot.graph), *_bodies(snapshot.attributes, "")]


def difference(before: Snapshot, after: Snapshot, *, most: int = 60) -> list[str]:
    """A unified diff of the two graphs with little around each change; no more than ``most`` lines.

    Empty where they read the same.
    """
    found = difflib.unified_diff(text_of(before), text_of(after), n=_CONTEXT, lineterm="")
    lines = [line for line in found if not line.startswith(("--- ", "+++ "))]
    if len(lines) > most:
        lines = [*lines[:most], f"... and {len(lines) - most} more lines"]
    return lines


def changed_nodes(before: Snapshot, after: Snapshot) -> list[str]:
    """Names of the nodes of ``before`` that ``after`` does not have, or has with another target or arguments."""
    there = {node.name: _line(node) for node in after.graph.nodes}
    return [node.name for node in before.graph.nodes if there.get(node.name) != _line(node) and node.op != "output"]


def user_lines(snapshot: Snapshot, names: Iterable[str]) -> list[dict[str, Any]]:
    """The lines of the user's program behind the nodes of these names, with the nodes of each, in their order.

    Each has ``source`` (``file.py:12``), ``code`` (what stands there) and ``nodes``; ``source`` and ``code`` are None
    where the compiler kept no track. Names that the graph does not have are left out.
    """
    wanted = set(names)
    found: dict[tuple[str | None, str | None], list[str]] = {}
    for node in snapshot.graph.nodes:
        if node.name in wanted:
            found.setdefault(user_line(node), []).append(node.name)
    return [{"source": source, "code": code, "nodes": nodes} for (source, code), nodes in found.items()]


def user_line(node: fx.Node) -> tuple[str | None, str | None]:
    """``file.py:12`` of the user's program behind the node, and what stands there; None where it is not known."""
    frames = list(_FRAME.finditer(node.meta.get("stack_trace") or ""))
    if not frames:
        return None, None
    last = frames[-1]
    file = re.split(r"[/\\]", last["path"])[-1]
    return f"{file}:{last['line']}", last["code"].strip() or None


def target_name(node: fx.Node) -> str:
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


# -- private --------------------------------------------------------------------------------------


def _lines(graph: fx.Graph) -> Iterator[str]:
    return (_line(node) for node in graph.nodes)


def _bodies(attributes: Any, indent: str) -> Iterator[str]:
    for name, value in sorted(attributes.items()):
        if isinstance(value, fx.GraphModule):
            yield f"{indent}{name}:"
            inner = f"{indent}  "
            yield from (f"{inner}{line}" for line in _lines(value.graph))
            yield from _bodies(dict(value.named_children()), inner)


def _line(node: fx.Node) -> str:
    if node.op == "output":
        text = f"return {_shown(node.args[0])}"
    elif node.op == "placeholder":
        text = f"{node.name}{_typed(node)} = input"
    elif node.op == "get_attr":
        text = f"{node.name}{_typed(node)} = constant {node.target}"
    else:
        given = [_shown(arg) for arg in node.args] + [f"{key}={_shown(value)}" for key, value in node.kwargs.items()]
        text = f"{node.name}{_typed(node)} = {target_name(node)}({', '.join(given)})"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."


def _shown(value: object) -> str:
    """An argument: nodes by name, everything else as Python writes it."""
    if isinstance(value, fx.Node):
        return value.name
    if isinstance(value, (list, tuple)):
        inside = ", ".join(map(_shown, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' if len(value) == 1 else ''})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_shown(item)}" for key, item in value.items()) + "}"
    if isinstance(value, slice):
        return f"{_shown(value.start)}:{_shown(value.stop)}:{_shown(value.step)}"
    try:
        return " ".join(repr(value).split())
    except Exception:  # an object of the user's own
        return type(value).__name__


def _typed(node: fx.Node) -> str:
    """``: f32[2, 3]``; of an operator with several results those of all; nothing where it is not known."""
    value = node.meta.get("val", node.meta.get("example_value"))
    found = [_type(leaf) for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    if not found:
        return ""
    return f": {found[0]}" if isinstance(value, torch.Tensor) else f": ({', '.join(found)})"


def _type(value: torch.Tensor) -> str:
    dtype = _DTYPES.get(value.dtype, str(value.dtype).removeprefix("torch."))
    return f"{dtype}[{', '.join(str(size) for size in value.shape)}]"
