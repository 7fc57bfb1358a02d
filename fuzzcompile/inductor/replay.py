"""Replay: running a snapshot of the compiler's graph eagerly, on the real inputs of the program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from fuzzcompile.execution.device import seed_everything
from fuzzcompile.execution.float64 import Float64Mode
from fuzzcompile.execution.tensors import copy_tree
from fuzzcompile.inductor.ledger import Opaque, Snapshot, is_handler

_REPLAY_SEED = 11
# Random operators of a graph: two graphs that draw differently cannot be compared value by value.
_RANDOM = ("rand", "bernoulli", "dropout", "multinomial", "normal_", "philox", "uniform", "exponential")


class NotReplayable(Exception):
    """The graph holds a lowering whose operators are not known: it says nothing about the program."""


class Replayed:
    """Result of a replay: outputs and inputs as they are afterwards, or the error that ended it.

    Inputs that the graph did not write to are the captured tensors themselves: copies of every parameter for
    every snapshot would be the largest part of the memory that a triage takes.
    """

    def __init__(self, outputs: list[Any], inputs: list[Any], error: BaseException | None = None) -> None:
        self.outputs = outputs
        self.inputs = inputs
        self.error = error


def replay(snapshot: Snapshot, inputs: Sequence[Any], *, double: bool) -> Replayed:
    """Run ``snapshot`` on copies of ``inputs``, natively or (``double``) in float64.

    Args:
        snapshot: a graph at ATen level or at torch level.
        inputs: values of its placeholders, in order; copied storage by storage before the run.
        double: cast inputs, constants and every named low-precision dtype to float64.
    """
    arguments = copy_tree(list(inputs), double=double)
    versions = [_version(argument) for argument in arguments]
    seed_everything(_REPLAY_SEED)
    interpreter = _Replayer(snapshot)
    try:
        with torch.no_grad():
            if double:
                with Float64Mode(keep_casts=False):
                    result = interpreter.run(*arguments)
            else:
                result = interpreter.run(*arguments)
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:
        return Replayed([], [], error)
    after = [
        copied if _version(copied) != version else given
        for copied, given, version in zip(arguments, inputs, versions, strict=True)
    ]
    return Replayed(pytree.tree_leaves(result), after)


def interpret(snapshot: Snapshot, inputs: Sequence[Any]) -> Any:
    """Run ``snapshot`` on ``inputs`` themselves, which it may mutate, as a compiled graph would."""
    with torch.no_grad():
        return _Replayer(snapshot).run(*inputs)


def random_calls(snapshot: Snapshot) -> list[str]:
    """The random operators of the graph, in order: graphs with the same ones draw the same numbers."""
    return [call for call in snapshot.calls if any(word in call for word in _RANDOM)]


def _version(value: Any) -> int:
    """Counts the in-place writes to a tensor."""
    return value._version if isinstance(value, torch.Tensor) and not value.is_inference() else 0


class _Replayer(fx.Interpreter):
    """Interprets a snapshot; a lowering pattern's opaque node runs what the pattern replaced."""

    def __init__(self, snapshot: Snapshot) -> None:
        root = nn.Module()
        for path, value in snapshot.attributes.items():
            _place(root, path, value)
        super().__init__(root, graph=snapshot.graph)
        self._opaque = snapshot.opaque

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        opaque = self._opaque.get(id(target))
        if opaque is not None:
            return _run_opaque(opaque, args, kwargs)
        if is_handler(target):
            raise NotReplayable(f"{target} is a lowering")
        return super().call_function(target, args, kwargs)


def _run_opaque(opaque: Opaque, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    flat = pytree.tree_leaves((args, kwargs))
    inner = Snapshot(opaque.graph, opaque.attributes, {})
    return _Replayer(inner).run(*(flat[position] for position in opaque.inputs))


def _place(root: nn.Module, path: str, value: Any) -> None:
    *parents, leaf = path.split(".")
    for part in parents:
        if not hasattr(root, part):
            root.add_module(part, nn.Module())
        root = getattr(root, part)
    if isinstance(value, nn.Module):
        root.add_module(leaf, value)
    else:
        object.__setattr__(root, leaf, value)
