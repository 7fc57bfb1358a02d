"""Python expressions for the observables of a run: outputs, inputs, gradients, mutated state."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterable, Mapping

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fuzzcompile.execution.promised import RANDOM_STATE
from fuzzcompile.reduction.scripts.probe import Probe

_NAME = re.compile(r"(?:call(?P<call>\d+)\.)?(?P<gradient>gradient of )?(?P<what>.+?)(?: after the call)?$")
_LEAF = re.compile(r"(?P<kind>out|input|argument)(?P<index>\d+)(?:\.(?P<path>.+))?")


def expression(name: str, probe: Probe) -> str | None:
    """The expression by which a script reaches the observable ``name`` after its calls; None if it cannot.

    With one call the script has ``model``, ``inputs`` and ``out``; with several ``calls`` and ``outs``.
    """
    if name == RANDOM_STATE:
        return "torch.get_rng_state()"
    match = _NAME.match(name)
    if match is None:
        return None
    leaf_match = _LEAF.fullmatch(match["what"])
    if leaf_match is not None:
        reached = _of_call(leaf_match, int(match["call"] or 0), probe)
    else:
        reached = _state(*match["what"].split(" ", 1), model=probe.model) if " " in match["what"] else None
    return f"{reached}.grad" if reached and match["gradient"] else reached


def is_tensor(name: str, probe: Probe) -> bool:
    """Return whether the observable ``name`` is a tensor in the program too, not a NumPy array compared as one."""
    match = _NAME.match(name)
    leaf_match = _LEAF.fullmatch(match["what"]) if match else None
    if match is None or leaf_match is None or leaf_match["kind"] != "out":
        return match is not None
    leaves = pytree.tree_leaves(probe.outputs[int(match["call"] or 0)])
    return not leaf_match["path"] and isinstance(leaves[int(leaf_match["index"])], torch.Tensor)


def _of_call(leaf_match: re.Match[str], call: int, probe: Probe) -> str | None:
    """An output or an input of a call; the match's ``path`` leads into a dataclass or the like."""
    several, index = len(probe.inputs) > 1, int(leaf_match["index"])
    of_output = leaf_match["kind"] == "out"
    trees = probe.outputs if of_output else probe.inputs
    if call >= len(trees):
        return None
    name = ("outs" if of_output else "calls") if several else ("out" if of_output else "inputs")
    base = f"{name}[{call}]" if several else name
    if leaf_match["kind"] == "input":
        return tensor_leaf(base, trees[call], index)
    reached = leaf(base, trees[call], index)
    if reached is None or leaf_match["path"] is None:
        return reached
    inner = _within(pytree.tree_leaves(trees[call])[index], leaf_match["path"].split("."))
    return None if inner is None else reached + inner


def _within(value: object, path: list[str]) -> str | None:
    """The attributes and indices that lead along ``path`` into a value; None if it has no such part."""
    written = ""
    for part in path:
        listed = re.fullmatch(r"([A-Za-z_]\w*?)(\d+)", part)  # a field that holds a list: its name and a number
        if part.isidentifier() and hasattr(value, part):
            value, step = getattr(value, part), f".{part}"
        elif isinstance(value, Mapping) and part in value:
            value, step = value[part], f'["{part}"]'
        elif isinstance(value, list | tuple) and part.isdigit() and int(part) < len(value):
            value, step = value[int(part)], f"[{part}]"
        elif listed and isinstance(getattr(value, listed[1], None), list | tuple):
            value, step = getattr(value, listed[1])[int(listed[2])], f".{listed[1]}[{listed[2]}]"
        else:
            return None
        written += step
    return written


def leaf(base: str, tree: object, index: int) -> str | None:
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


def tensor_leaf(base: str, tree: object, index: int) -> str | None:
    """Expression for tensor number ``index`` of ``tree``, other leaves not counted."""
    positions = [n for n, value in enumerate(pytree.tree_leaves(tree)) if isinstance(value, torch.Tensor)]
    return leaf(base, tree, positions[index]) if index < len(positions) else None


def is_flat(tree: object) -> bool:
    """Return whether the tree is a tuple, a list or a dictionary by name with no further containers in it."""
    if type(tree) is dict:
        values: Iterable[object] = tree.values() if all(isinstance(key, str) for key in tree) else [tree]
    elif isinstance(tree, tuple | list) and type(tree) in (tuple, list):
        values = tree
    else:
        return False
    return all(pytree.tree_structure(value) == pytree.tree_structure(0) for value in values)


def _state(kind: str, path: str, *, model: object) -> str | None:
    """A tensor of the module, of a function's closure, or of the file."""
    if kind not in ("parameter", "buffer", "tensor"):
        return None
    parts = path.split(".")
    if isinstance(model, nn.Module):
        if kind != "tensor" and not all(part.isidentifier() for part in parts):
            return f'model.get_{kind}("{path}")'
        inner = _within(model, parts)
        if inner is not None:
            return f"model{inner}"
    function = getattr(type(model), "forward", None) if isinstance(model, nn.Module) else model
    if not isinstance(function, types.FunctionType):
        return None
    variables = inspect.getclosurevars(function)
    for names, where in ((variables.nonlocals, "inspect.getclosurevars(model).nonlocals"), (variables.globals, "")):
        inner = _within(names.get(parts[0]), parts[1:])
        if parts[0] in names and inner is not None and not (where and function is not model):
            return (f'{where}["{parts[0]}"]' if where else parts[0]) + inner
    return None
