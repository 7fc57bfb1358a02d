"""Views through which nothing can be written back: what functionalization does to the rest of their base."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from fuzzcompile.compiler.functional import can_functionalize, transforms_left
from fuzzcompile.compiler.ledger import Snapshot
from fuzzcompile.compiler.replay import _Replayer
from fuzzcompile.execution.tensors import copy_tree, same_values, share_storage


def lossy_views(snapshot: Snapshot, inputs: Sequence[object]) -> list[str]:
    """The nodes of a torch-level graph that make a view through which its own values cannot be written back.

    Writing a view's values to it again changes nothing. Functionalization computes the base anew from what was written,
    and a view that does not say all of its base may lose the rest.

    Args:
        snapshot: dynamo's graph.
        inputs: values of its placeholders, in order; copied before the run.
    """
    if not can_functionalize():
        return []
    interpreter = _Writing(snapshot)
    # Whatever ends the run, the nodes up to there are known.
    with torch.no_grad(), transforms_left(), contextlib.suppress(Exception):
        interpreter.run(*copy_tree(list(inputs)))
    return interpreter.lossy


class _Writing(_Replayer):
    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        self.lossy: list[str] = []

    def run_node(self, n: fx.Node) -> object:
        """Run one node and, if it made a view, write its values back to it."""
        value = super().run_node(n)
        base = (
            self.env.get(n.args[0]) if n.op.startswith("call") and n.args and isinstance(n.args[0], fx.Node) else None
        )
        if _is_view(value, base) and self._loses(n):
            self.lossy.append(n.name)
        return value

    def _loses(self, node: fx.Node) -> bool:
        tools = importlib.import_module("torch._functorch._aot_autograd.functional_utils")
        mode = importlib.import_module("torch._subclasses.functional_tensor").FunctionalTensorMode
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        before = args[0].detach().clone()
        with contextlib.suppress(RuntimeError, NotImplementedError), mode():
            base = tools.to_fun(args[0].detach().clone())
            view: Any = getattr(self, node.op)(node.target, (base, *args[1:]), kwargs)
            view.copy_(view.clone())
            after = tools.from_fun(base)
            return not same_values(before, after)
        return False  # a view that cannot be written to at all loses nothing


def _is_view(value: object, base: object) -> bool:
    if not isinstance(value, torch.Tensor) or not isinstance(base, torch.Tensor) or value is base:
        return False
    return share_storage(value, base)
