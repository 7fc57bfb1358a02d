"""What one run of a program lets its caller observe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

Phase = Literal["run", "compile"]


@dataclass(frozen=True)
class Failure:
    """An exception that a run raised. ``phase`` tells whether the compiler or the program raised it."""

    type_name: str
    message: str
    phase: Phase = "run"
    stage: str | None = None
    unsupported: bool = False

    def __str__(self) -> str:
        return f"{self.type_name}: {self.message}"


@dataclass(frozen=True)
class Value:
    """One observable leaf: a tensor (detached copy) or a plain Python object, and what it aliased."""

    name: str
    value: Any
    kind: Literal["output", "mutation", "gradient"]
    stride: tuple[int, ...] = ()
    aliases: tuple[str, ...] = ()

    @property
    def is_tensor(self) -> bool:
        """Whether there is a tensor to compare."""
        return isinstance(self.value, torch.Tensor)


@dataclass(frozen=True)
class Observation:
    """Everything observable of one run, or the exception that ended it."""

    values: Sequence[Value] = ()
    failure: Failure | None = None
    structure: str = ""
    seconds: float = 0.0
    notes: Mapping[str, Any] = field(default_factory=dict)

    def named(self) -> dict[str, Value]:
        """The values by name; names are unique within a run."""
        return {value.name: value for value in self.values}
