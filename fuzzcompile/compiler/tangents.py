"""AOTAutograd's changes of tangents (the gradients that a backward pass is given) before its graph gets them.

It guesses their layout when it traces, and copies a tangent of another layout into memory of the guessed one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fuzzcompile.compiler.labels import source_of
from fuzzcompile.compiler.patching import Function
from fuzzcompile.compiler.recorder import Recorder
from fuzzcompile.execution.tensors import same_values

PLACE = ("torch._functorch._aot_autograd.runtime_wrappers", "coerce_to_expected_memory_format")
AS_THEY_COME: Mapping[str, object] = {"guess_tangent_strides_as_outputs": False}
"""The entries of ``torch._functorch.config`` without which no layout of a tangent is guessed from an output's."""


@dataclass(frozen=True)
class ChangedTangent:
    """A tangent that the copy changed.

    Attributes:
        shape: of the tangent, before and behind the copy.
        strides: of the copy.
        before: the tangent.
        after: its copy, in contiguous memory.
        line: of the function that copies, in its file.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    before: torch.Tensor
    after: torch.Tensor
    line: int | None


def wrap_coercion(recorder: Recorder, original: Function) -> Function:
    """Compare each tangent with its copy: another layout of it has the same values."""
    _, line = source_of(original)

    def coerce(tangent: object, layout: object) -> object:
        copied = original(tangent, layout)
        if copied is not tangent and isinstance(copied, torch.Tensor) and isinstance(tangent, torch.Tensor):
            before, after = (value.detach().clone(memory_format=torch.contiguous_format) for value in (tangent, copied))
            if not same_values(before, after):
                shape, strides = tuple(tangent.shape), tuple(copied.stride())
                recorder.ledger.changed_tangents.append(ChangedTangent(shape, strides, before, after, line))
        return copied

    return coerce
