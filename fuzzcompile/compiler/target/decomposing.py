"""Decompositions as the target takes them: some depend on the device of their arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from fuzzcompile.compiler.target.moving import CUDA, moved_tensor
from fuzzcompile.compiler.target.placing import call_on_cpu
from fuzzcompile.compiler.target.process import assumed, described

Function = Callable[..., Any]


def on_target(function: Function) -> Function:
    """``function`` on tensors of the CPU, computed as it decomposes on the target; itself without a target.

    It is traced on fake tensors of the target, and what was traced runs on the CPU. What cannot be traced runs as it
    is: a decomposition that asks for values.
    """
    if assumed() is None:
        return function

    @functools.wraps(function)
    def run(*args: object, **kwargs: object) -> object:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        try:
            graph, result_spec = _traced(function, leaves, spec)
        except Exception:  # of a decomposition, which may be any code: it is run on the CPU then, and judged there
            return function(*args, **kwargs)
        results = _Placed(graph).run(*tensors)
        return pytree.tree_unflatten(results, result_spec)

    return run


def _traced(function: Function, leaves: Sequence[object], spec: pytree.TreeSpec) -> tuple[fx.GraphModule, Any]:
    from torch._subclasses.fake_tensor import FakeTensorMode

    shape: list[pytree.TreeSpec] = []

    def flat(*tensors: torch.Tensor) -> list[object]:
        remaining = iter(tensors)
        given = [next(remaining) if isinstance(leaf, torch.Tensor) else _device(leaf) for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(given, spec)
        results, result_spec = pytree.tree_flatten(function(*args, **kwargs))
        shape.append(result_spec)
        return results

    with _disable_current_modes(), torch.no_grad(), described():
        mode = FakeTensorMode()
        fakes = [moved_tensor(mode.from_tensor(leaf)) for leaf in leaves if isinstance(leaf, torch.Tensor)]
        with mode:
            graph = make_fx(flat, tracing_mode="real")(*fakes)
    return graph, shape[-1]


def _device(leaf: object) -> object:
    return CUDA if isinstance(leaf, torch.device) and leaf.type == "cpu" else leaf


class _Placed(fx.Interpreter):
    """Runs a graph of the target on the CPU."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        return call_on_cpu(target, args, kwargs)
