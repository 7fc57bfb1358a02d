"""The function that splits a joint graph into forward and backward, and the plainest one to take its place."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Mapping
from typing import Any


def partitioner() -> tuple[str, Callable[..., Any] | None]:
    """Name and function of the partitioner in use: the user's own, or Inductor's."""
    config = importlib.import_module("torch._inductor.config")
    own = getattr(config, "custom_partitioner_fn", None)
    if own is not None:
        return type(own).__name__, type(own).__call__
    name = "min_cut_rematerialization_partition"
    return name, getattr(importlib.import_module("torch._inductor.compile_fx"), name, None)


def plain_partitioning() -> Mapping[str, Any] | None:
    """Entries of Inductor's config under which everything that backward needs is saved; None if this torch has none.

    That is AOTAutograd's default partition: nothing is computed twice, and no minimal cut is sought.
    """
    with contextlib.suppress(ImportError, AttributeError):
        base: Any = importlib.import_module("torch._inductor.custom_graph_pass").CustomPartitionerFn
        default = importlib.import_module("torch._functorch.partitioners").default_partition
        if not hasattr(importlib.import_module("torch._inductor.config"), "custom_partitioner_fn"):
            return None

        class DefaultPartition(base):  # type: ignore[misc]
            """AOTAutograd's default partition."""

            def __call__(self, gm: Any, joint_inputs: Any, **kwargs: Any) -> Any:
                kwargs.pop("compiler", None)
                return default(gm, joint_inputs, **kwargs)

            def uuid(self) -> Any:
                return None

        return {"custom_partitioner_fn": DefaultPartition()}
    return None
