"""Turn a submodule of a case into a case of its own, on the inputs that it gets in the whole."""

from __future__ import annotations

import contextlib
import copy
import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.hooks import RemovableHandle

from fuzzcompile.capture.ambient import Ambient
from fuzzcompile.case import Arguments, Case
from fuzzcompile.errors import CaseError
from fuzzcompile.execution.building import build
from fuzzcompile.execution.exhaustion import is_exhausted_memory
from fuzzcompile.execution.reachable import Reached
from fuzzcompile.execution.runs import observe
from fuzzcompile.execution.tensors import StorageCopier, map_tensors

T = TypeVar("T")
_NAMES_SHOWN = 6


def submodule_case(case: Case, path: str, device: torch.device) -> Case:
    """The submodule at ``path`` as a case: its state and inputs are those at its first call in an eager run.

    Inputs of later calls are kept up to the number of calls that the case has. Inputs that hold objects, such as a
    key-value cache, cannot be replayed one after the other: they are those of the first call in the case's last one.
    Settings are the case's; grad mode, autocast and random state are those in force around the submodule's call.

    Args:
        case: the whole.
        path: the submodule's name in ``named_modules``, such as ``layers.0.attn``.
        device: where the whole runs to record the inputs.

    Raises:
        CaseError: the callable is no module, has no such submodule, or never calls it.
    """
    program = build(case, device)
    whole = getattr(program.model, "__self__", program.model)  # of a bound method, such as model.forward
    if not isinstance(whole, nn.Module):
        raise CaseError(f"{case.name} compiles a plain callable, which has no submodules; leave out --module.")
    modules = dict(whole.named_modules(remove_duplicate=False))
    module = modules.get(path) if path else None
    if module is None:
        raise CaseError(f"{case.name} has no module {path!r}; {_closest(path, [name for name in modules if name])}")
    watch = _Watch(module, 1 + len(case.calls or ()))
    with watch.installed():
        seen = observe(case, program, program.model if case.run is not None else watch.counting(program.model))
    if not watch.calls:
        if seen.failure is not None:
            raise CaseError(f"{case.name} raises in eager before it calls {path} ({seen.failure}); fix the case.")
        raise CaseError(
            f"{case.name} never calls {path}, only things in it or nothing of it; name a module whose forward runs."
        )
    first, *later = watch.calls
    return replace(
        case,
        name=f"{case.name}:{path}",
        make=lambda: (watch.copied, first.fresh()),
        calls=[call.arguments for call in later] or None,
        run=None,
        grad=first.ambient.grad,
        backward=case.backward and first.ambient.grad == "enabled",
        ambient=first.ambient.entered,
        reseed=first.ambient.random.restore,
        state=None,
        notes=(*case.notes, f"judged: module {path} alone, on the inputs that it gets in {case.name}"),
    )


class _Seen(BaseException):
    """Unwinds the run once every wanted call is recorded. Not an ``Exception``, because programs catch those."""


@dataclass(frozen=True)
class _Call:
    """The arguments of one call of the submodule, and the state around it."""

    arguments: Arguments
    ambient: Ambient

    def fresh(self) -> Arguments:
        """The arguments, with objects that a call can change (a key-value cache) copied anew."""
        return copied_objects(self.arguments)


_PLAIN = (torch.Tensor, type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


class _Watch:
    """Records the first calls of a module, and a copy of the module from before the first."""

    def __init__(self, module: nn.Module, wanted: int) -> None:
        self._module = module
        self._wanted = wanted
        self._copier = StorageCopier()  # one for all calls: views of one buffer stay views of one buffer
        self._handle: RemovableHandle | None = None
        self._own: dict[int, torch.Tensor] = {}
        self._begun = wanted  # calls of the whole; all of them where they are not counted
        self.copied: nn.Module = module
        self.calls: list[_Call] = []

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Watch in the block."""
        self._watch()
        try:
            yield
        finally:
            self._unwatch()

    def counting(self, whole: Callable[..., object]) -> Callable[..., object]:
        """Wrap the whole program to count its calls."""
        self._begun = 0

        def call(*args: object, **kwargs: object) -> object:
            self._begun += 1
            return whole(*args, **kwargs)

        return call

    def _watch(self) -> None:
        self._handle = self._module.register_forward_pre_hook(self._called, prepend=True, with_kwargs=True)

    def _unwatch(self) -> None:
        if self._handle is not None:
            self._handle.remove()

    def _called(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        plain = all(isinstance(leaf, _PLAIN) for leaf in pytree.tree_leaves((args, kwargs)))
        if self.calls and not plain:
            raise _Seen  # its objects live from call to call: no run could start from fresh ones
        if not plain and self._begun < self._wanted:
            return
        ambient = Ambient.current()
        # Outside of inference mode and autograd, because the copies serve runs of every kind.
        with torch.inference_mode(False), torch.no_grad(), _disable_current_modes():
            if not self.calls:
                self._unwatch()  # or it would be copied with the module
                self.copied = _copied_module(module)
                own = Reached({"": self.copied}).tensors
                self._own = {id(tensor): own[name] for name, tensor in Reached({"": module}).tensors.items()}
                self._watch()
            call = _Call(copied_objects(map_tensors(self._place, Arguments(args, kwargs))), ambient)
        self.calls.append(call)
        if len(self.calls) >= self._wanted:
            raise _Seen

    def _place(self, tensor: torch.Tensor) -> torch.Tensor:
        own = self._own.get(id(tensor))  # a parameter that is an input as well stays one tensor
        return self._copier(tensor) if own is None else own


def _copied_module(module: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(module)
    except Exception as error:  # a user's __deepcopy__ may raise anything
        if is_exhausted_memory(error):
            raise
        return module  # the run ends after the recorded calls, so little can change it


def copied_objects(tree: T) -> T:
    """The tree with the objects that a call can change (a key-value cache) copied; its tensors stay themselves.

    In training a cache holds results of operators, which torch does not copy: their values are copied, detached.
    """
    memo: dict[int, object] = {}

    def copied(leaf: object) -> object:
        if isinstance(leaf, _PLAIN):
            return leaf
        for tensor in Reached({"": leaf}, functions=False).tensors.values():
            if not tensor.is_leaf:
                memo.setdefault(id(tensor), tensor.detach().clone())
        try:
            return copy.deepcopy(leaf, memo)
        except Exception:  # a user's __deepcopy__ may raise anything; such an object is hardly state
            return leaf

    fresh: T = pytree.tree_map(copied, tree)
    return fresh


def _closest(path: str, names: Sequence[str]) -> str:
    """Names that may be meant by ``path``, as the end of a sentence."""
    if not names:
        return "it has no submodules at all: leave out --module."
    close = difflib.get_close_matches(path, names, n=_NAMES_SHOWN, cutoff=0.5)
    # The same last part under another parent is more likely than a similar spelling.
    alike = [name for name in names if path and name.rpartition(".")[2] == path.rpartition(".")[2]]
    shown = list(dict.fromkeys([*close, *alike]))[:_NAMES_SHOWN]
    if shown:
        return f"close to it are {', '.join(shown)}."
    more = " ..." if len(names) > _NAMES_SHOWN else ""
    return f"it has {', '.join(names[:_NAMES_SHOWN])}{more}"
