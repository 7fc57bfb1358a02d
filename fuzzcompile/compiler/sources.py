"""Captured calls of the user's program behind the place where a rewrite applied."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Iterator, Sequence

from torch import fx

from fuzzcompile.compiler.breaks import Call
from fuzzcompile.compiler.labels import location
from fuzzcompile.compiler.ledger import Ledger
from fuzzcompile.stage_names import PRE_GRAD

_CALLS = ("call_function", "call_method")
# Where a user finds the functions that dynamo puts into its graphs, the usual spelling first.
_HOMES = ("torch", "torch.nn.functional", "torch.special", "torch.fft", "torch.linalg")


def captured_calls(ledger: Ledger, site: str | None, nodes: Sequence[str]) -> dict[str, Call]:
    """Return dynamo's captured calls at a line of the program that can be left to eager mode, by the user's names.

    Args:
        ledger: of the compile.
        site: ``file.py:line #ordinal``; None finds nothing.
        nodes: names of nodes of dynamo's graph: if some of them stand on that line, only their calls are meant.

    Returns:
        Functions of torch, methods of tensors (``torch.Tensor.add_``) and ``operator.setitem``. Behind another of
        Python's operators dynamo would leave the whole frame to Python, which proves nothing.
    """
    if site is None:
        return {}
    line = site.split(" #")[0]
    there = [node for node in _captured(ledger) if location([node]) == line]
    named = [node for node in there if node.name in nodes]
    found: dict[str, Call] = {}
    for node in named or there:
        name = call_name(node)
        if name is not None:
            found[name] = node.target
    return found


def call_name(node: fx.Node) -> str | None:
    """Return the user's name for a node of dynamo's graph: ``torch.max_pool1d``, ``torch.Tensor.cumsum``.

    None for another of Python's operators and whatever has no public name.
    """
    if isinstance(node.target, str):
        return f"torch.Tensor.{node.target}"
    return "operator.setitem" if node.target is operator.setitem else public_name(node.target)


def _captured(ledger: Ledger) -> Iterator[fx.Node]:
    for frame in ledger.frames:
        record = frame.record(PRE_GRAD)
        if record is not None and record.snapshots:
            yield from (node for node in record.snapshots[0].graph.nodes if node.op in _CALLS)


def public_name(function: object) -> str | None:
    """The function's name in torch's public modules; None for operators of Python and whatever has none."""
    name = getattr(function, "__name__", None)
    if name is None:
        return None
    for home in _HOMES:
        if getattr(importlib.import_module(home), name, None) is function:
            return f"{home}.{name}"
    return None
