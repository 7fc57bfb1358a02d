"""Python expressions for what a run shows: outputs, inputs, gradients, mutated state."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

_NAME = re.compile(r"(?:call(?P<call>\d+)\.)?(?P<gradient>gradient of )?(?P<what>.+?)(?: after the call)?$")


def expression(name: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> str | None:
    """How a script reaches the observable ``name`` after its calls; None if it is not there.

    With one call the script has ``model``, ``inputs`` and ``out``; with several ``calls`` and ``outs``.
    """
    match = _NAME.match(name)
    if match is None:
        return None
    call, what = int(match["call"] or 0), match["what"]
    several = len(inputs) > 1
    if call >= len(inputs) or (what.startswith("out") and call >= len(outputs)):
        return None
    reached = None
    if re.fullmatch(r"out\d+", what):
        reached = leaf(f"outs[{call}]" if several else "out", outputs[call], int(what[3:]))
    elif re.fullmatch(r"input\d+", what):
        reached = tensor_leaf(f"calls[{call}]" if several else "inputs", inputs[call], int(what[5:]))
    elif " " in what:
        reached = _state(*what.split(" ", 1))
    return f"{reached}.grad" if reached and match["gradient"] else reached


def leaf(base: str, tree: Any, index: int) -> str | None:
    """Expression for leaf ``index`` of ``tree``, which is called ``base``."""
    leaves = pytree.tree_leaves(tree)
    if index >= len(leaves):
        return None
    if pytree.tree_structure(tree) == pytree.tree_structure(0):
        return base
    flat = is_flat(tree)
    if flat and isinstance(tree, dict):
        return f"{base}[{list(tree)[index]!r}]".replace("'", '"')
    return f"{base}[{index}]" if flat else f"tree_leaves({base})[{index}]"


def tensor_leaf(base: str, tree: Any, index: int) -> str | None:
    """Expression for tensor number ``index`` of ``tree``, other leaves not counted."""
    positions = [n for n, value in enumerate(pytree.tree_leaves(tree)) if isinstance(value, torch.Tensor)]
    return leaf(base, tree, positions[index]) if index < len(positions) else None


def is_flat(tree: Any) -> bool:
    """Whether the tree is a tuple, a list or a dictionary by name with no further containers in it."""
    if type(tree) not in (tuple, list, dict):
        return False
    values = list(tree.values()) if isinstance(tree, dict) else list(tree)
    if isinstance(tree, dict) and not all(isinstance(key, str) for key in tree):
        return False
    return all(pytree.tree_structure(value) == pytree.tree_structure(0) for value in values)


def _state(kind: str, path: str) -> str | None:
    """A parameter or buffer by the name under which the module lists it."""
    if kind not in ("parameter", "buffer"):
        return None
    if all(part.isidentifier() for part in path.split(".")):
        return f"model.{path}"
    return f'model.get_{kind}("{path}")'
