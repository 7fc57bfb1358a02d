"""Inductor's Triton kernels, run by Triton's interpreter on tensors of the CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fuzzcompile.compiler.target.interpreted.fitness import unfit
from fuzzcompile.compiler.target.interpreted.log import (
    KernelLog,
    KernelTooLarge,
    Launch,
    Limits,
    NotInterpreted,
    Order,
)
from fuzzcompile.compiler.target.interpreted.places import PLACES
from fuzzcompile.compiler.target.places import installed
from fuzzcompile.targets import Target

#: How the question begins whether a matrix template or a library call is taken.
TEMPLATES = "the kernel of"

__all__ = [
    "PLACES",
    "TEMPLATES",
    "KernelLog",
    "KernelTooLarge",
    "Launch",
    "Limits",
    "NotInterpreted",
    "Order",
    "interpreting",
    "unfit",
]


@contextlib.contextmanager
def interpreting(
    target: Target,
    log: KernelLog,
    *,
    order: Order = Order.FORWARD,
    templates: bool = False,
    limits: Limits | None = None,
) -> Iterator[None]:
    """Interpret the Triton kernels that are compiled or launched in the block, which covers both.

    Args:
        target: the device that the kernels are made for.
        log: sources, launches and refusals are written here.
        order: the order in which the programs of each grid run.
        templates: take the first Triton template where a GPU would time it against a library call.
        limits: what one launch may cost; without it, the default.

    Raises:
        NotInterpreted: (in the block) a kernel that cannot be interpreted was launched.
    """
    from fuzzcompile.compiler.target.interpreted.launching import Session

    with installed(Session(target, log, order, limits or Limits(), templates), PLACES):
        yield
