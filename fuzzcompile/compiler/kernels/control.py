"""What a compile is to do otherwise behind the graph passes, so that a fault there can be proved."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fuzzcompile.compiler.kernels.codegen_operators import in_scalars
from fuzzcompile.compiler.kernels.lowered import Lowered
from fuzzcompile.compiler.kernels.operators import can_fall_back, operator_of

EVERYTHING = "*"


@dataclass(frozen=True)
class Control:
    """What is to be done otherwise than the compiler does, by operator label, operator name, or ``*`` for all.

    ``fallbacks`` are computed by ATen, and with ``lowered`` everything that can be but these; ``realised`` get a
    buffer of their own; ``apart`` are fused with nothing; ``scalarised`` names operators of vectorised C++. With
    ``separate`` every fused loop nest is a kernel of its own: the C++ backend writes several into one function.
    """

    fallbacks: tuple[str, ...] = ()
    lowered: tuple[str, ...] | None = None
    realised: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    scalarised: tuple[str, ...] = ()
    separate: bool = False

    def __bool__(self) -> bool:
        return self != UNCHANGED


UNCHANGED = Control()


def chooses(chosen: Sequence[str], label: str | None) -> bool:
    """Whether an operator is among the chosen ones, which go by label, by name, or are all."""
    if EVERYTHING in chosen:
        return True
    return label is not None and (label in chosen or operator_of(label) in chosen)


def falls_back(control: Control, lowered: Lowered, node: Any) -> bool:
    """Whether ATen is to compute a node, and can."""
    label = lowered.labels.get(node.name)
    chosen = chooses(control.fallbacks, label)
    if control.lowered is not None:
        chosen = chosen or not chooses(control.lowered, label)
    return chosen and can_fall_back(node)


@contextlib.contextmanager
def scalarised(names: Sequence[str]) -> Iterator[None]:
    """Do the operators of vectorised C++ named here element by element, as it does those that it has no vectors for."""
    if not names:
        yield
        return
    from torch._inductor.codegen import cpp

    with contextlib.ExitStack() as stack:
        for name in names:
            scalar = getattr(cpp.CppOverrides, name, None)
            if scalar is None or not hasattr(cpp.CppVecOverrides, "_scalarize"):
                continue
            function = in_scalars(name, scalar)
            before = vars(cpp.CppVecOverrides).get(name)
            setattr(cpp.CppVecOverrides, name, staticmethod(function))
            if before is None:
                stack.callback(delattr, cpp.CppVecOverrides, name)
            else:
                stack.callback(setattr, cpp.CppVecOverrides, name, before)
        yield
