"""The state that a captured callable can reach and change, restored before every run.

A script's callable may close over modules, optimizers, lists and counters, read them as globals, or get them as
arguments. Copies of these would break the identities that the program relies on (an optimizer's parameters, a
registered operator). They stay where they are: the contents of every container and the values of every tensor are saved
at the moment of capture and written back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from fuzzcompile.capture.undo import Undo, undo_for
from fuzzcompile.execution.reachable import Reached
from fuzzcompile.execution.tensors import KnownCopies, StorageCopier, storages


@dataclass(frozen=True)
class _Kept:
    tensor: torch.Tensor
    copy: torch.Tensor
    gradient: torch.Tensor | None
    requires_grad: bool


class World:
    """The state that ``roots`` reach.

    Args:
        roots: where to begin, by name.
        known: copies that an earlier world has made (its attribute ``known``), shared where the bits are the same.
    """

    def __init__(self, roots: Mapping[str, object], known: KnownCopies | None = None) -> None:
        self.known: KnownCopies = dict(known or {})
        self._roots = dict(roots)
        reached = Reached(roots)
        self.complete = reached.complete
        hooks = {id(table) for value in reached.objects for table in _hook_tables(value)}
        self._undo = _undos(value for value in reached.objects if id(value) not in hooks)
        self._undo_hooks = _undos(value for value in reached.objects if id(value) in hooks)
        with torch.inference_mode(False), torch.no_grad():
            copier = StorageCopier(known=self.known)
            self._kept = [_keep(tensor, copier) for tensor in reached.tensors.values()]
        addresses = storages([kept.tensor for kept in self._kept])
        self.known = {key: copied for key, copied in self.known.items() if key[0] in addresses}
        self._owned = {id(kept.tensor) for kept in self._kept}

    def reached(self) -> Reached:
        """Return everything reachable now; a program may have replaced some of it since the capture."""
        return Reached(self._roots)

    def owns(self, tensor: torch.Tensor) -> bool:
        """Return whether this state has the tensor."""
        return id(tensor) in self._owned

    def originals(self) -> list[torch.Tensor]:
        """Copies from the moment of capture."""
        return [kept.copy for kept in self._kept]

    def restore(self, device: torch.device, *, double: bool, hooks: bool = True) -> None:
        """Restore the moment of capture on ``device``; with ``double``, floating tensors in float64.

        Without ``hooks``, the hooks of modules stay as they are.
        """
        for undo in (*self._undo, *(self._undo_hooks if hooks else ())):
            undo()
        copiers = {inference: StorageCopier(double=double, device=device) for inference in (False, True)}
        for kept in self._kept:
            kept.tensor.grad = None  # before the data: a gradient must have its tensor's dtype
            inference = kept.tensor.is_inference()
            copier = copiers[inference]
            with contextlib.suppress(RuntimeError), torch.inference_mode(inference):  # subclasses keep their values
                kept.tensor.data = copier(kept.copy).detach()
                kept.tensor.grad = None if kept.gradient is None else copier(kept.gradient).detach()
            if kept.tensor.is_leaf and kept.tensor.requires_grad != kept.requires_grad:
                kept.tensor.requires_grad_(kept.requires_grad)


class Worlds:
    """The state before each of several calls of one callable; implements :class:`fuzzcompile.case.State`.

    What a script does between two calls (a token appended to a mask, an optimizer's step) is thus part of each run.
    """

    def __init__(self, worlds: Sequence[World]) -> None:
        self._worlds = worlds
        self._current = 0
        self._where: tuple[torch.device, bool] = torch.device("cpu"), False

    def restore(self, device: torch.device, *, double: bool) -> None:
        """Restore the state before the first call."""
        self._where = device, double
        self.enter(0)

    def enter(self, call: int) -> None:
        """Restore the state before a call, counted from 0; hooks that watch the modules of a run stay."""
        self._current = call
        device, double = self._where
        self._worlds[call].restore(device, double=double, hooks=call == 0)

    def reached(self) -> Reached:
        """Return everything that the current call can reach now."""
        return self._worlds[self._current].reached()

    def owns(self, tensor: torch.Tensor) -> bool:
        """Return whether the state before some call has this tensor."""
        return any(world.owns(tensor) for world in self._worlds)

    def originals(self) -> list[torch.Tensor]:
        """Copies from the moment of capture."""
        return [copy for world in self._worlds for copy in world.originals()]


class Originals:
    """The present state of everything that ``roots`` reach, put back once runs of a :class:`World` are over.

    Runs write to memory of their own, so that no values are copied here: each tensor gets its own memory back, with
    the aliases that something outside may hold.
    """

    def __init__(self, roots: Mapping[str, object]) -> None:
        reached = Reached(roots)
        self._undo = _undos(reached.objects)
        tensors = reached.tensors.values()
        self._held = [(tensor, tensor.data, tensor.grad, tensor.requires_grad) for tensor in tensors]

    def put_back(self) -> None:
        """Restore objects, tensors and gradients."""
        for undo in self._undo:
            undo()
        for tensor, memory, gradient, requires_grad in self._held:
            tensor.grad = None  # before the data: a gradient must have its tensor's dtype
            with contextlib.suppress(RuntimeError), torch.inference_mode(tensor.is_inference()):
                tensor.data = memory  # of subclasses torch refuses it, and no run has replaced theirs
            if tensor.is_leaf:
                tensor.requires_grad_(requires_grad)
                tensor.grad = gradient


def _undos(objects: Iterable[object]) -> list[Undo]:
    return [undo for undo in map(undo_for, objects) if undo is not None]


def _hook_tables(value: object) -> list[object]:
    return [table for name, table in vars(value).items() if "_hooks" in name] if isinstance(value, nn.Module) else []


def _keep(tensor: torch.Tensor, copier: StorageCopier) -> _Kept:
    gradient = tensor.grad if tensor.is_leaf else None
    copied = None if gradient is None else copier(gradient).detach()
    return _Kept(tensor, copier(tensor).detach(), copied, tensor.requires_grad)
