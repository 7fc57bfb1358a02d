"""The state that a captured callable can reach and change, restored before every run.

A script's callable may close over modules, optimizers, lists and counters, read them as globals, or get them as
arguments. Copies of these would break the identities that the program relies on (an optimizer's parameters, a
registered operator). They stay where they are: the contents of every container and the values of every tensor are saved
at the moment of capture and written back.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

from fuzzcompile.run.case import GradMode
from fuzzcompile.run.device import AutocastRegions, Numerics, apply_numerics, list_held
from fuzzcompile.run.reachable_state import ReachedObjects, list_undos
from fuzzcompile.run.sharded_tensors import adopt_dtype
from fuzzcompile.run.tensors import KnownCopies, StorageCopier, is_freed, is_wrapper, list_wrapped, measure_storages
from fuzzcompile.run.transforms import enter_level, is_level_entered, leave_function_modes, list_function_modes

# The state that surrounds a call: grad mode, autocast, numerics, defaults, random generators.

# Reads and writes of switches of the process that are none of its numerics.
_SWITCHES: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        lambda modes: torch.use_deterministic_algorithms(modes[0], warn_only=modes[1]),
    ),
    (lambda: torch.backends.mkldnn.enabled, partial(setattr, torch.backends.mkldnn, "enabled")),
)


@dataclass(frozen=True)
class RandomState:
    """The states of Python's, NumPy's and torch's generators, as the calls that set them."""

    setters: tuple[Callable[[], object], ...]

    @classmethod
    def current(cls) -> RandomState:
        """The states as they are now."""
        setters: list[Callable[[], object]] = [
            partial(random.setstate, random.getstate()),
            partial(numpy.random.set_state, numpy.random.get_state()),
            partial(torch.set_rng_state, torch.get_rng_state()),
        ]
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            setters.append(partial(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
        return cls(tuple(setters))

    def restore(self) -> None:
        """Set the generators back to these states."""
        for setter in self.setters:
            setter()


@dataclass(frozen=True)
class Ambient:
    """The state around a call, which surrounds each run of it again.

    ``has_tangents`` says that the call is made within a level of forward-mode differentiation, and ``modes`` are those
    of the script's own that see its calls of torch's functions.
    """

    grad: GradMode
    autocast: AutocastRegions
    numerics: Numerics
    random: RandomState
    switches: tuple[object, ...]
    precisions: tuple[str, ...]
    device: torch.device
    has_tangents: bool
    modes: tuple[TorchFunctionMode, ...]

    @classmethod
    def current(cls) -> Ambient:
        """The state as it is now."""
        modes = list_function_modes()
        with leave_function_modes():
            return cls._read(modes)

    @classmethod
    def _read(cls, modes: tuple[TorchFunctionMode, ...]) -> Ambient:
        recording: GradMode = "enabled" if torch.is_grad_enabled() else "no_grad"
        return cls(
            "inference_mode" if torch.is_inference_mode_enabled() else recording,
            AutocastRegions.current(),
            Numerics.current(),
            RandomState.current(),
            tuple(read() for read, _ in _SWITCHES),
            tuple(str(group.fp32_precision) for group in _precision_groups()),
            torch.get_default_device(),
            is_level_entered(),
            modes,
        )

    @contextlib.contextmanager
    def enter(self) -> Iterator[None]:
        """Apply the state in the block, except for grad mode, random state and modes, which a run sets itself."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(apply_numerics(self.numerics))
            for (read, write), value in zip(_SWITCHES, self.switches, strict=True):
                stack.callback(write, read())
                write(value)
            own = () if "float32_matmul" in list_held() else self.precisions
            for group, precision in zip(_precision_groups(), own, strict=bool(own)):
                # A setting made by the older API is among the numerics, which pin and restore it in both.
                if group.fp32_precision != precision and precision != "none":
                    group.fp32_precision = precision
            if self.device.type != "cpu":
                stack.enter_context(self.device)
            stack.enter_context(self.autocast.enter())
            if self.has_tangents:
                stack.enter_context(enter_level())
            yield


def _precision_groups() -> list[Any]:
    owners = [torch.backends, torch.backends.mkldnn, torch.backends.cudnn]
    parts = [getattr(owner, name, None) for owner in owners[1:] for name in ("matmul", "conv", "rnn")]
    return [group for group in (*owners, *parts) if hasattr(group, "fp32_precision")]


class _Kept(NamedTuple):
    """A tensor with its values, its gradient, and whether it requires one.

    ``values`` is None for a wrapper, of which the tensors that it is made of are kept, and for a buffer whose memory
    was given back (FSDP frees what it has gathered).
    """

    tensor: torch.Tensor
    values: torch.Tensor | None
    gradient: torch.Tensor | None
    requires_grad: bool

    def write_back(self, place: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Give the tensor its values and its gradient, each as ``place`` makes it."""
        self.tensor.grad = None  # before the data: a gradient must have its tensor's dtype
        if self.values is None and not is_wrapper(self.tensor):
            self.tensor.untyped_storage().resize_(0)
        adopt_dtype(self.tensor)
        given = [("data", self.values)] * (self.values is not None)
        for name, held in (*given, ("grad", self.gradient)):
            # Subclasses keep their values: torch refuses to replace them.
            with contextlib.suppress(RuntimeError), torch.inference_mode(self.tensor.is_inference()):
                setattr(self.tensor, name, None if held is None else place(held))
        if self.tensor.is_leaf and self.tensor.requires_grad != self.requires_grad:
            self.tensor.requires_grad_(self.requires_grad)


class World:
    """The state that ``roots`` reach, by name.

    Copies that an earlier world has made (its attribute ``known``) are shared where the bits are the same.
    """

    def __init__(self, roots: Mapping[str, object], known: KnownCopies | None = None) -> None:
        self.known: KnownCopies = dict(known or {})
        self._roots = dict(roots)
        reached = ReachedObjects(roots)
        self.complete = reached.complete
        modules = [value for value in reached.objects if isinstance(value, nn.Module)]
        hooks = {id(table) for module in modules for name, table in vars(module).items() if "_hooks" in name}
        self._undo = list_undos(value for value in reached.objects if id(value) not in hooks)
        self._undo_hooks = list_undos(value for value in reached.objects if id(value) in hooks)
        with torch.inference_mode(False), torch.no_grad():
            copier = StorageCopier(known=self.known)
            self._kept = [_keep(tensor, copier) for tensor in _list_held(reached)]
        addresses = measure_storages([kept.tensor for kept in self._kept])
        self.known = {key: copied for key, copied in self.known.items() if key[0] in addresses}
        self._owned = {id(kept.tensor) for kept in self._kept}
        self._replicas = [value for value in reached.objects if isinstance(value, DistributedDataParallel)]

    def reached(self) -> ReachedObjects:
        """Return everything reachable now; a program may have replaced some of it since the capture."""
        return ReachedObjects(self._roots)

    def owns(self, tensor: torch.Tensor) -> bool:
        """Return whether this state has the tensor."""
        return id(tensor) in self._owned

    def originals(self) -> list[torch.Tensor]:
        """Copies from the moment of capture."""
        return [kept.values for kept in self._kept if kept.values is not None]

    def restore(self, device: torch.device, *, double: bool, hooks: bool = True) -> None:
        """Restore the moment of capture on ``device``; with ``double``, floating tensors in float64.

        Without ``hooks``, the hooks of modules stay as they are.
        """
        for undo in (*self._undo, *(self._undo_hooks if hooks else ())):
            undo()
        copiers = {inference: StorageCopier(double=double, device=device) for inference in (False, True)}
        for kept in self._kept:
            kept.write_back(lambda values: copiers[torch.is_inference_mode_enabled()](values).detach())
        for replica in self._replicas:
            renew_reducer(replica)


class Worlds:
    """The state before each of several calls of one callable; implements :class:`fuzzcompile.run.case.CapturedState`.

    What a script does between two calls (a token appended to a mask, an optimizer's step) is thus part of each run.
    Calls behind the last state that is known go on from what the call before has left.
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
        if call >= len(self._worlds):
            return
        self._current = call
        device, double = self._where
        self._worlds[call].restore(device, double=double, hooks=call == 0)

    def reached(self) -> ReachedObjects:
        """Return everything that the current call can reach now."""
        return self._worlds[self._current].reached()

    def owns(self, tensor: torch.Tensor) -> bool:
        """Return whether the state before some call has this tensor."""
        return any(world.owns(tensor) for world in self._worlds)

    def originals(self) -> list[torch.Tensor]:
        """Copies from the moment of capture."""
        return [copy for world in self._worlds for copy in world.originals()]


class PresentState:
    """The present state of everything that ``roots`` reach, put back once runs of a :class:`World` are over.

    Runs write to memory of their own, so that no values are copied here: each tensor gets its own memory back, with
    the aliases that something outside may hold.
    """

    def __init__(self, roots: Mapping[str, object]) -> None:
        reached = ReachedObjects(roots)
        self._undo = list_undos(reached.objects)
        self._held = [
            _Kept(x, _read_data(x), x.grad if x.is_leaf else None, x.requires_grad) for x in _list_held(reached)
        ]

    def put_back(self) -> None:
        """Restore objects, tensors and gradients."""
        for undo in self._undo:
            undo()
        for kept in self._held:
            kept.write_back(lambda held: held)


def renew_reducer(replica: Any) -> None:
    """Let a module of DDP reduce gradients in the dtype that its parameters have now.

    A parameter of another dtype has another node in autograd, without the hook by which DDP hears of a gradient: from
    then on, each process would keep its own.
    """
    parameters, sparse = replica._build_params_for_reducer()
    names = replica._build_debug_param_to_name_mapping(parameters)
    replica._ddp_init_helper(parameters, sparse, names, replica.static_graph)
    for hook, state in replica._comm_hooks:  # the user's own reductions, which the reducer before had
        vars(torch.distributed)["_register_comm_hook"](replica.reducer, state, hook)


def _keep(tensor: torch.Tensor, copier: StorageCopier) -> _Kept:
    gradient = tensor.grad if tensor.is_leaf else None
    copied = None if gradient is None else copier(gradient).detach()
    values = _read_data(tensor)
    return _Kept(tensor, None if values is None else copier(tensor).detach(), copied, tensor.requires_grad)


def _read_data(tensor: torch.Tensor) -> torch.Tensor | None:
    """The values of a tensor that has any of its own."""
    return None if is_wrapper(tensor) or is_freed(tensor) else tensor.data


def _list_held(reached: ReachedObjects) -> list[torch.Tensor]:
    """The tensors of the program and of what distributes it, each behind those that it is made of, once."""
    held: dict[int, torch.Tensor] = {}
    for tensor in (*reached.tensors.values(), *reached.buffers):
        parts = [inner for _, inner in list_wrapped("", tensor)]
        held |= {id(each): each for each in (*reversed(parts), tensor)}
    return list(held.values())
