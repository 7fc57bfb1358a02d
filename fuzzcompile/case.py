"""A case: a module, its inputs, and how it is compiled, loaded from one self-contained Python file.

The file defines ``make()``, which seeds itself and returns ``(module_or_callable, inputs)``, and may
define ``GRAD``, ``BACKWARD``, ``OPTIONS``, ``CONFIG``, ``MODE``, ``DYNAMIC``, ``FULLGRAPH``, ``BACKEND``, ``PATH``,
``CALLS`` and ``run(model, inputs)`` (see "Contracts" in ARCHITECTURE.md).
"""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.casefiles import CaseFile, read_source
from fuzzcompile.errors import CaseError, message_of
from fuzzcompile.sides import AOTI, COMPILE, PATHS
from fuzzcompile.signatures import source_hash

GradMode = Literal["no_grad", "inference_mode", "enabled"]
_GRAD_MODES: tuple[GradMode, ...] = ("no_grad", "inference_mode", "enabled")


@dataclass(frozen=True)
class CompileSettings:
    """The arguments of ``torch.compile``, and the configuration patched around it.

    ``options`` go to ``torch.compile``; ``inductor``, ``dynamo`` and ``functorch`` patch torch's config modules.
    ``backend`` is a registered name or a callable of the user. ``path`` says what runs in the program's place (see
    :mod:`fuzzcompile.sides`): a program that is exported has no backend, mode or graph breaks.
    """

    backend: str | Callable[..., object] = "inductor"
    options: Mapping[str, object] = field(default_factory=dict)
    inductor: Mapping[str, object] = field(default_factory=dict)
    dynamo: Mapping[str, object] = field(default_factory=dict)
    functorch: Mapping[str, object] = field(default_factory=dict)
    mode: str | None = None
    dynamic: bool | None = None
    fullgraph: bool = False
    path: str = COMPILE

    @property
    def config_patches(self) -> dict[str, Mapping[str, object]]:
        """The entries patched in ``torch._<name>.config``, by that name; configs without any are left out."""
        patches = {"dynamo": self.dynamo, "functorch": self.functorch, "inductor": self.inductor}
        return {name: entries for name, entries in patches.items() if entries}


@dataclass(frozen=True)
class Arguments:
    """The inputs of one call that takes positional and keyword arguments."""

    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] = field(default_factory=dict)


pytree.register_pytree_node(
    Arguments,
    lambda call: ([call.args, dict(call.kwargs)], None),
    lambda parts, _: Arguments(*parts),
)


class Reachable(Protocol):
    """Everything that a callable can reach; ``tensors`` by the name that a user knows them by."""

    tensors: dict[str, torch.Tensor]

    def plain_attributes(self) -> Mapping[str, object]:
        """Attributes that are whole numbers, flags, strings or None, by path."""


class State(Protocol):
    """The state of a captured script that its callable can reach and change, inputs that are tensors excepted.

    A captured script runs in place: its closures, globals and objects stay the same, and their tensors are restored
    before every run.
    """

    def restore(self, device: torch.device, *, double: bool) -> None:
        """Restore everything to the moment before the first call, on ``device`` (and in float64)."""

    def enter(self, call: int) -> None:
        """Restore everything to the moment before a later call, counted from 0, with the arguments of ``restore``."""

    def reached(self) -> Reachable:
        """Return everything that the current call can reach now."""

    def owns(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is part of this state, and no input of its own."""

    def originals(self) -> Sequence[torch.Tensor]:
        """The tensors' copies from the moment of capture, in their original dtypes."""


@dataclass(frozen=True)
class Case:
    """A loaded case file, or a call captured from a script.

    Attributes:
        make: builds fresh state at every call, so that no run sees the mutations of another.
        state: if given, restores the state instead; ``make`` then returns the same objects every time.
        calls: inputs of further calls.
        run: calls the model in another way than ``model(*inputs)``.
        ambient: a context entered around every run (autocast and the like).
        reseed: sets the random state in which a run begins.
        notes: what a user should know about how the file was read.
    """

    name: str
    path: Path
    source: str
    make: Callable[[], tuple[Callable[..., object], object]]
    grad: GradMode
    backward: bool
    settings: CompileSettings
    calls: Sequence[object] | None
    run: Callable[[Callable[..., object], object], object] | None
    ambient: Callable[[], AbstractContextManager[object]] = nullcontext
    reseed: Callable[[], None] | None = None
    state: State | None = None
    notes: tuple[str, ...] = ()

    @property
    def differentiates(self) -> bool:
        """Return whether a run records what a backward pass needs."""
        return self.backward or self.grad == "enabled"

    @property
    def sha256(self) -> str:
        """Identity of the case: the hash of its source."""
        return source_hash(self.source)


def load_case(path: str | Path | CaseFile, rewrite: Callable[[ast.Module], ast.Module] = lambda tree: tree) -> Case:
    """Execute the case file at ``path`` and return the case that it defines.

    The file becomes a module in ``sys.modules``, where dynamo resolves the globals of the code that it traces.

    Args:
        path: the file, or what was read of it already.
        rewrite: changes its syntax tree before it is executed; lines must stay.

    Raises:
        CaseError: the file cannot be read, is not Python, raises while it is loaded, or has no ``make()``.
    """
    path, source = (path.path, path.source) if isinstance(path, CaseFile) else (Path(path), read_source(Path(path)))
    namespace = _execute(path, source, rewrite)
    make = namespace.get("make")
    if not callable(make):
        raise CaseError(
            f"{path} is no case: it defines no make() that returns (module, inputs); see 'Case files' in the README."
        )
    backward = bool(namespace.get("BACKWARD", False))
    return Case(
        name=path.stem,
        path=path,
        source=source,
        make=make,
        grad=_grad_mode(path, namespace, backward),
        backward=backward,
        settings=_settings(path, namespace, backward=backward),
        calls=namespace.get("CALLS"),
        run=namespace.get("run"),
    )


def _execute(path: Path, source: str, rewrite: Callable[[ast.Module], ast.Module]) -> dict[str, Any]:
    try:
        tree = rewrite(ast.parse(source))
        code = compile(tree, str(path.resolve()), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise CaseError(f"{path} is no case: it is not valid Python ({_one_line(error)}).") from error
    module = types.ModuleType(f"fuzzcompile_case_{source_hash(source)[:16]}")
    module.__file__ = str(path.resolve())
    sys.modules[module.__name__] = module
    torch.manual_seed(0)  # CALLS may be made of random numbers at module level
    try:
        exec(code, module.__dict__)
    except KeyboardInterrupt:
        raise
    except ModuleNotFoundError as error:
        if error.name is None:  # a library's own words for something that it cannot import
            raise CaseError(f"{path} cannot be loaded: {_one_line(error)}") from error
        raise CaseError(f"{path} needs the module {error.name!r}, which is not installed; install it.") from error
    except BaseException as error:  # user code: whatever it raises, SystemExit too, is an error of the case
        raise CaseError(
            f"{path} cannot be loaded: it raises {type(error).__name__} ({_one_line(error)}); fix the file."
        ) from error
    return module.__dict__


def _settings(path: Path, namespace: Mapping[str, Any], *, backward: bool) -> CompileSettings:
    config = namespace.get("CONFIG") or {}
    options = namespace.get("OPTIONS") or {}
    if not isinstance(config, Mapping) or not isinstance(options, Mapping):
        raise CaseError(f"{path}: OPTIONS and CONFIG must be dictionaries.")
    unknown = set(config) - {"dynamo", "functorch", "inductor"}
    if unknown:
        raise CaseError(f"{path}: CONFIG knows 'dynamo', 'functorch' and 'inductor', not {', '.join(sorted(unknown))}.")
    backend = namespace.get("BACKEND", "inductor")
    if not (isinstance(backend, str) or callable(backend)):
        raise CaseError(f"{path}: BACKEND is a {type(backend).__name__}; make it a registered name or a function.")
    return CompileSettings(
        backend=backend,
        options=dict(options),
        inductor=dict(config.get("inductor", {})),
        dynamo=dict(config.get("dynamo", {})),
        functorch=dict(config.get("functorch", {})),
        mode=namespace.get("MODE"),
        dynamic=namespace.get("DYNAMIC"),
        fullgraph=bool(namespace.get("FULLGRAPH", False)),
        path=_path(path, namespace, backward=backward),
    )


def _path(path: Path, namespace: Mapping[str, Any], *, backward: bool) -> str:
    wanted = namespace.get("PATH", COMPILE)
    if wanted not in PATHS:
        raise CaseError(f"{path}: PATH is {wanted!r}; use one of {', '.join(PATHS)}.")
    if wanted != COMPILE and any(namespace.get(name) for name in ("BACKEND", "MODE", "FULLGRAPH")):
        raise CaseError(f"{path}: BACKEND, MODE, FULLGRAPH are torch.compile's; remove them, or PATH = {wanted!r}.")
    if wanted == AOTI and backward:
        raise CaseError(f"{path}: AOTInductor computes no gradients; remove BACKWARD, or use PATH = 'export'.")
    return str(wanted)


def _grad_mode(path: Path, namespace: Mapping[str, object], backward: bool) -> GradMode:
    wanted = namespace.get("GRAD", "enabled" if backward else "no_grad")
    for mode in _GRAD_MODES:
        if wanted == mode:
            return mode
    raise CaseError(f"{path}: GRAD is {wanted!r}; use one of {', '.join(_GRAD_MODES)}.")


def _one_line(error: BaseException) -> str:
    return message_of(error, 200) or type(error).__name__
