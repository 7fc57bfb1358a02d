"""Changes to a compile behind the graph passes, which prove a fault there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx

from fuzzcompile.compiler.kernels.lowered import Lowered
from fuzzcompile.compiler.kernels.operators import can_fall_back, operator_of

EVERYTHING = "*"


@dataclass(frozen=True)
class Control:
    """Changes to a compile, each by operator label, operator name, or ``*`` for all.

    Attributes:
        fallbacks: operators that ATen computes.
        lowered: ATen computes everything that it can but these; None leaves that as it is.
        realised: operators that get a buffer of their own.
        apart: operators that are fused with nothing.
        scalarised: operators of vectorised C++ that are computed element by element.
        selected: what Triton code masks is selected by its mask once more, which changes nothing in right code.
        separate: every fused loop nest is a kernel of its own; the C++ backend writes several into one function.
        stored: buffers that one kernel alone reads are stored too, so that their values can be seen.
    """

    fallbacks: tuple[str, ...] = ()
    lowered: tuple[str, ...] | None = None
    realised: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    scalarised: tuple[str, ...] = ()
    selected: bool = False
    separate: bool = False
    stored: bool = False

    def __bool__(self) -> bool:
        return self != UNCHANGED


UNCHANGED = Control()


def chooses(chosen: Sequence[str], label: str | None) -> bool:
    """Return whether ``chosen`` has an operator: by its label, by its name, or because it has all."""
    if EVERYTHING in chosen:
        return True
    return label is not None and (label in chosen or operator_of(label) in chosen)


def falls_back(control: Control, lowered: Lowered, node: fx.Node) -> bool:
    """Return whether ATen is to compute a node, and can."""
    label = lowered.labels.get(node.name)
    chosen = chooses(control.fallbacks, label)
    if control.lowered is not None:
        chosen = chosen or not chooses(control.lowered, label)
    return chosen and can_fall_back(node)
