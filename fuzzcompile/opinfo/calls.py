"""How an operator of the tables is called in a program: as a function of torch, a method, an operator, a property."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def forms(entry: Any, form: str) -> Iterator[str]:
    """Ways to call it, likely ones first, as text with ``{first}`` and ``{arguments}`` (those after the first).

    The tables often have a function of the test suite in the operator's place. Which of these is the same function is
    found by calling them.
    """
    if form == "in_place":
        name = entry.name.rpartition(".")[2]
        for method in (getattr(entry.inplace_variant, "__name__", ""), f"{name}_"):
            if hasattr(torch.Tensor, method):
                yield f"{{first}}.{method}({{rest}})"
        yield f"torch.{entry.name}({{all}}, inplace=True)"
        return
    for path in (entry.name.removeprefix("torch."), _native_path(entry)):
        if path is not None and callable(_resolved(path)):
            yield f"torch.{path}({{all}})"
    method = entry.name.rpartition(".")[2]
    attribute = getattr(torch.Tensor, method, None)
    if callable(attribute):
        yield f"{{first}}.{method}({{rest}})"
    elif attribute is not None:
        yield f"{{first}}.{method}"
    if callable(_resolved(f"ops.aten.{method}")):
        yield f"torch.ops.aten.{method}({{all}})"


def called(form: str, first: str, rest: list[str]) -> str:
    """The text of a call."""
    return form.format(first=first, rest=", ".join(rest), all=", ".join([first, *rest]))


def _native_path(entry: Any) -> str | None:
    """The path below ``torch`` of a function that says where it is from."""
    module, name = getattr(entry.op, "__module__", None), getattr(entry.op, "__name__", None)
    if not isinstance(module, str) or not isinstance(name, str) or not module.startswith("torch"):
        return None
    path = f"{module}.{name}".removeprefix("torch.").removeprefix("_ops.aten").lstrip(".")
    return path if "testing" not in path and _resolved(path) is entry.op else None


def _resolved(path: str) -> object:
    value: object = torch
    for part in path.split("."):
        value = getattr(value, part, None)
    return value
