"""Running calls of a target's graph on tensors of the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.target.process import assumed
from fuzzcompile.reference.fused_attention import stand_in

_CPU = torch.device("cpu")
T = TypeVar("T")


def running_device(device: torch.device) -> torch.device:
    """Where tensors of a graph's ``device`` are when the graph runs: with a target on the CPU."""
    return device if assumed() is None else _CPU


def devices_on_cpu(values: T) -> T:
    """The same arguments with the CPU for every device of the target."""
    return pytree.tree_map(_placed, values)  # type: ignore[no-any-return]


def call_on_cpu(operator: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """Call an operator of a target's graph with arguments on the CPU; one that the CPU lacks, by its reference."""
    args, kwargs = devices_on_cpu(args), devices_on_cpu(kwargs)
    if operator is torch.ops.prims.device_put.default:
        return args[0]
    return (stand_in(operator) or operator)(*args, **kwargs)


def _placed(value: object) -> object:
    if isinstance(value, torch.device):
        return _CPU
    return "cpu" if isinstance(value, str) and value.partition(":")[0] == "cuda" else value
