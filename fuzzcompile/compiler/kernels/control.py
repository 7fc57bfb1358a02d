"""What a compile is to do otherwise behind the graph passes, so that a fault there can be proved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
