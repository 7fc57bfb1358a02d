"""The function that splits a joint graph into forward and backward, and the plainest one to take its place."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from fuzzcompile.compiler.configs import config_of

_MINIMAL_CUT = "min_cut_rematerialization_partition"


def partitioner_in_use() -> Callable[..., object] | None:
    """The user's own partitioner, or Inductor's; None if this torch has none that is known."""
    own: Callable[..., object] | None = getattr(config_of("inductor"), "custom_partitioner_fn", None)
    return own or getattr(importlib.import_module("torch._inductor.compile_fx"), _MINIMAL_CUT, None)


def partitioner() -> tuple[str, Callable[..., object] | None]:
    """Name and function of the partitioner in use; the function is what holds its code."""
    function = partitioner_in_use()
    if function is None or hasattr(function, "__code__"):
        return _MINIMAL_CUT, function
    return type(function).__name__, type(function).__call__


def plain_partitioning() -> Mapping[str, object] | None:
    """Entries of Inductor's config under which everything that backward needs is saved; None if this torch has none.

    That is AOTAutograd's default partition: nothing is computed twice, and no minimal cut is sought.
    """
    with contextlib.suppress(ImportError, AttributeError):
        from torch._functorch.partitioners import default_partition
        from torch._inductor.custom_graph_pass import CustomPartitionerFn

        if not hasattr(config_of("inductor"), "custom_partitioner_fn"):
            return None

        class DefaultPartition(CustomPartitionerFn):
            """AOTAutograd's default partition."""

            def __call__(
                self, gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any
            ) -> tuple[fx.GraphModule, fx.GraphModule]:
                kwargs.pop("compiler", None)
                return default_partition(gm, joint_inputs, **kwargs)

            def uuid(self) -> None:
                return None

        return {"custom_partitioner_fn": DefaultPartition()}
    return None
