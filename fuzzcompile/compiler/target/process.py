"""The target that this process compiles for: one for the life of a process, as the compiler caches its properties."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import fx

from fuzzcompile.compiler.patching import Intended
from fuzzcompile.compiler.target.described import Description
from fuzzcompile.compiler.target.interpreted import KernelLog, Order, interpreting, unfit
from fuzzcompile.compiler.target.moving import NotMoved, move
from fuzzcompile.compiler.unseen import reason
from fuzzcompile.errors import UsageError
from fuzzcompile.targets import Target

_assumed: list[Description] = []


def assumed() -> Target | None:
    """The target that this process compiles for; None if it compiles for the device that runs."""
    return _assumed[0].target if _assumed else None


def assume(target: Target) -> None:
    """Compile everything in this process for ``target`` from now on.

    Raises:
        UsageError: it compiles for another one already.
        EnvironmentUnfit: this build of torch cannot be told of the target.
    """
    if not _assumed:
        _assumed.append(Description(target))
    elif _assumed[0].target != target:
        raise UsageError(f"This process compiles for {_assumed[0].target.name}; start another one for {target.name}.")


def device_of_values(traced: torch.device) -> torch.device:
    """Return the device of the values of a graph traced on ``traced``: the CPU if the process compiles for a target."""
    return torch.device("cpu") if assumed() is not None else traced


@contextlib.contextmanager
def described() -> Iterator[None]:
    """Tell torch of the target for the time of the block; change nothing in a process without one."""
    if not _assumed:
        yield
        return
    with _assumed[0].in_force():
        yield


def kernels_unfit() -> str | None:
    """Return why no kernel of the target can be run here, in a few words; None if they can, and without a target."""
    target = assumed()
    return None if target is None else unfit()


@contextlib.contextmanager
def own_kernels_run() -> Iterator[None]:
    """Run Triton kernels that a program launches itself in this block, eager runs included."""
    if kernels_unfit() is not None:
        yield
        return
    with kernels_run(KernelLog(), order=Order.FORWARD, templates=False):
        yield


@contextlib.contextmanager
def kernels_run(log: KernelLog, *, order: Order, templates: bool) -> Iterator[None]:
    """Run kernels that are compiled for the target in this block; change nothing in a process without one.

    Args:
        log: what they did is written here.
        order: which program of a kernel runs first.
        templates: whether a matrix template stands where a device would time it against a library.
    """
    target = assumed()
    if target is None:
        yield
        return
    with interpreting(target, log, order=order, templates=templates):
        yield


def moved_to_target(model: object, inputs: object) -> object:
    """The inputs of a captured graph on the target, its graph rewritten for it; as they are without a target.

    Raises:
        Intended: the graph cannot be moved.
    """
    if assumed() is None or not isinstance(model, fx.GraphModule):
        return inputs
    try:
        return move(model, cast("Sequence[object]", inputs))
    except Exception as error:  # whatever it is, the graph must not be compiled for the CPU instead
        why = error if isinstance(error, NotMoved) else NotMoved(f"its graph cannot be moved there ({reason(error)})")
        raise Intended(why) from error
