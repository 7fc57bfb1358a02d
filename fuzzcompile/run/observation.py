"""The observables of one run of a program."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

Phase = Literal["run", "compile"]

# How names of values begin where a case makes several calls.
_CALL = re.compile(r"call\d+\.")


@dataclass(frozen=True)
class GeneratedPlace:
    """A line of a generated program: the program's text, and the number of the line, from 1."""

    source: str
    line: int


@dataclass(frozen=True)
class Failure:
    """An exception that a run raised.

    Attributes:
        phase: whether the compiler or the program raised it.
        stage: the compiler's stage that raised it, if known.
        unsupported: dynamo cannot capture a part of the program.
        machine: what of the machine made it fail, if that was it.
        raised: file, line and function of the innermost frames of the compiler, innermost first.
        generated: where in the program that the compiler wrote, if that raised by itself.
    """

    type_name: str
    message: str
    phase: Phase = "run"
    stage: str | None = None
    unsupported: bool = False
    machine: str = ""
    raised: tuple[tuple[str, int, str], ...] = field(default=(), compare=False)
    generated: GeneratedPlace | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.type_name}: {self.message}"


@dataclass(frozen=True)
class Value:
    """One observable leaf: a tensor (detached copy) or a plain Python object.

    Attributes:
        value: a tensor, or any Python object.
        aliases: the inputs, parameters, buffers and earlier outputs that share memory with it: a write into one
            changes the other. (Whether an output *is* an input object is not kept: all that adds are autograd's
            metadata, which gradients show.)
        form: what a tensor stands for if the program returned something else: a sparse layout, a NumPy array.
        precision: for a Python ``float`` or ``complex``, the dtype of the tensors it was computed from.
    """

    name: str
    value: Any
    kind: Literal["output", "mutation", "gradient"]
    stride: tuple[int, ...] = ()
    aliases: tuple[str, ...] = ()
    form: str = ""
    precision: torch.dtype | None = None

    @property
    def is_tensor(self) -> bool:
        """Whether there is a tensor to compare."""
        return isinstance(self.value, torch.Tensor)

    @property
    def is_rounded_number(self) -> bool:
        """Whether it is a Python number subject to rounding, as ``.item()`` returns it."""
        return isinstance(self.value, float | complex)

    def as_tensor(self) -> Value:
        """The value with a Python ``float`` or ``complex`` as a tensor without dimensions."""
        if not self.is_rounded_number:
            return self
        wide = torch.tensor(self.value, dtype=torch.complex128 if isinstance(self.value, complex) else torch.float64)
        dtype = self.precision or torch.float64
        if wide.is_complex():
            dtype = torch.complex128 if dtype is torch.float64 else torch.complex64
        narrow = wide.to(dtype)
        overflows = bool(torch.isfinite(wide)) and not bool(torch.isfinite(narrow))
        return replace(self, value=wide if overflows else narrow)


@dataclass(frozen=True)
class Observation:
    """Everything observable of one run, or the exception that ended it.

    ``warnings`` are those that the run gave, the compiler's own left out.
    """

    values: Sequence[Value] = ()
    failure: Failure | None = None
    structure: str = ""
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()

    def named(self) -> dict[str, Value]:
        """The values by name; names are unique within a run."""
        return {value.name: value for value in self.values}

    def reusing_memory(self, eager: Observation) -> Observation:
        """The run without the memory that a call shares with outputs of other calls in this run and not in ``eager``.

        A CUDA graph writes its outputs to the same memory in each of its runs, as torch documents.
        """
        own = eager.named()
        return replace(self, values=tuple(_reusing(value, own.get(value.name)) for value in self.values))

    def sharing_as(self, eager: Observation, state: Collection[str]) -> Observation:
        """The run with eager's aliases of the tensors called ``state``, of which its outputs have copies."""
        own = eager.named()
        return replace(self, values=tuple(_sharing(value, own.get(value.name), state) for value in self.values))


def _sharing(value: Value, eager: Value | None, state: Collection[str]) -> Value:
    if eager is None or not set(eager.aliases) & set(state):
        return value
    return replace(value, aliases=tuple(a for a in eager.aliases if a in state or a in value.aliases))


def _reusing(value: Value, eager: Value | None) -> Value:
    call = value.name.partition(".")[0]
    shared = eager.aliases if eager is not None else ()
    kept = (
        alias for alias in value.aliases if alias in shared or not _CALL.match(alias) or alias.startswith(f"{call}.")
    )
    return replace(value, aliases=tuple(kept))
