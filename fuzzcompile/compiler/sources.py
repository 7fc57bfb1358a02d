"""From where a rewrite applied back to what the user's program calls there."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence

from torch import fx

from fuzzcompile.compiler.labels import location
from fuzzcompile.compiler.ledger import Ledger
from fuzzcompile.stage_names import PRE_GRAD

# Where a user finds the functions that dynamo puts into its graphs, the usual spelling first.
_HOMES = ("torch", "torch.nn.functional", "torch.special", "torch.fft", "torch.linalg")


def captured_functions(ledger: Ledger, site: str | None, nodes: Sequence[str]) -> dict[str, Callable[..., object]]:
    """The functions that dynamo captured at a line of the user's program, by the name under which a user has them.

    Args:
        ledger: of the compile.
        site: ``file.py:line #ordinal``; None finds nothing.
        nodes: names of nodes of dynamo's graph: if some of them stand on that line, only their functions are meant.

    Returns:
        Functions only: methods of tensors and Python's operators cannot be named to dynamo.
    """
    if site is None:
        return {}
    line = site.split(" #")[0]
    there = [node for node in _captured(ledger) if location([node]) == line]
    named = [node for node in there if node.name in nodes]
    found = {}
    for node in named or there:
        name = public_name(node.target)
        if name is not None and callable(node.target):
            found[name] = node.target
    return found


def _captured(ledger: Ledger) -> Iterator[fx.Node]:
    for frame in ledger.frames:
        record = frame.record(PRE_GRAD)
        if record is not None and record.snapshots:
            yield from (node for node in record.snapshots[0].graph.nodes if node.op == "call_function")


def public_name(function: object) -> str | None:
    """The function's name in torch's public modules; None for operators of Python and whatever has none."""
    name = getattr(function, "__name__", None)
    if name is None:
        return None
    for home in _HOMES:
        if getattr(importlib.import_module(home), name, None) is function:
            return f"{home}.{name}"
    return None
