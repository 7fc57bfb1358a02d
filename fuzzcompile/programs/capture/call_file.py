"""A call written to a file for another process: what is defined in the running program goes along by value.

torch writes the tensors, so that views of one buffer stay views of one buffer, and cloudpickle the rest. A function or
class that the other process can import goes by name; those of ``__main__``, of a notebook, and of modules that no
finder finds (a test file that pytest loads from its path) go by value, with the globals that they name.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import linecache
import pickle
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import cloudpickle
import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.torch_config import load_config
from fuzzcompile.model.errors import CaseError
from fuzzcompile.programs.capture.invocation import Invocation, run_parts_uncompiled
from fuzzcompile.run.reachable_state import ReachedObjects, is_user_file


class Unsendable(Exception):
    """A call that cannot be written for another process; the message says why, in one line."""


@dataclass(frozen=True)
class _CallFile:
    """The contents of a file.

    ``gradients`` belong to ``owners``, because a tensor is pickled without its own. ``results`` are the positions of
    the tensors among the arguments that are results of operators, and would arrive as leaves. ``texts`` are the
    sources of functions' files that are in memory only, as those of a notebook are, by name.
    """

    invocation: Invocation
    owners: list[torch.Tensor]
    gradients: list[torch.Tensor]
    results: frozenset[int]
    texts: Mapping[str, str]


def send(invocation: Invocation, path: Path) -> None:
    """Write the call to ``path``.

    Raises:
        Unsendable: something that it reaches cannot be pickled.
        OSError: the file cannot be written.
    """
    owners = [tensor for tensor in invocation.tensors if tensor.is_leaf and tensor.grad is not None]
    leaves = pytree.tree_leaves(invocation.arguments)
    results = {n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and not leaf.is_leaf}
    gradients = [tensor.grad for tensor in owners if tensor.grad is not None]
    sent = _CallFile(invocation, owners, gradients, frozenset(results), dict(_texts(invocation)))
    module = types.SimpleNamespace(__name__=__name__, Pickler=_Pickler)  # all that torch.save uses of one
    with run_parts_uncompiled(invocation.target), _modules_by_value():
        try:
            torch.save(sent, path, pickle_module=module, pickle_protocol=pickle.DEFAULT_PROTOCOL)
        except (OSError, MemoryError):
            raise
        except Exception as error:  # pickling runs the objects' own code, which may raise anything
            raise Unsendable(f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]) from error


def receive(path: Path, device: torch.device) -> Invocation:
    """The call in a file that :func:`send` wrote, its tensors on ``device``.

    Raises:
        CaseError: this process cannot rebuild it.
    """
    try:
        sent: _CallFile = torch.load(path, map_location=device, weights_only=False)
    except MemoryError:
        raise
    except Exception as error:  # unpickling imports modules and runs the objects' own code
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise CaseError(f"{path.stem} cannot be rebuilt in another process: {said}") from error
    for name, text in sent.texts.items():
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    for tensor, gradient in zip(sent.owners, sent.gradients, strict=True):
        tensor.grad = gradient
    leaves, spec = pytree.tree_flatten(sent.invocation.arguments)
    with torch.enable_grad():
        fresh = [leaf.clone() if number in sent.results else leaf for number, leaf in enumerate(leaves)]
    # Entries of the sender's configs that this process has otherwise.
    changed: dict[str, Any] = {}
    for name, held in sent.invocation.configs.items():
        own = load_config(name).get_config_copy() if held else {}
        changed[name] = {key: value for key, value in held.items() if key in own and own[key] != value}
    settings = replace(sent.invocation.settings, **changed)
    return replace(sent.invocation, arguments=pytree.tree_unflatten(fresh, spec), settings=settings)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc] # it has no types
    """Gives functions that go by value the globals of a module of their name, where dynamo looks them up."""

    def __init__(self, file: IO[bytes], protocol: int | None = None) -> None:
        super().__init__(file, protocol=protocol)
        for module in list(sys.modules.values()):
            name, path = getattr(module, "__name__", None), getattr(module, "__file__", None)
            if isinstance(name, str) and (name == "__main__" or is_user_file(path or "")):
                self.globals_ref[id(vars(module))] = _Globals(name, path)

    def reducer_override(self, obj: object) -> object:
        """Operators go by name; pickle knows nothing of them."""
        if isinstance(obj, OpOverload):
            return _find_operator, (*obj._schema.name.split("::"), obj._overloadname)
        if isinstance(obj, OpOverloadPacket):
            return _find_operator, tuple(obj._qualified_op_name.split("::"))
        if isinstance(obj, type(torch.ops.aten)):
            return _find_operator, (obj.name,)
        return (_find_operator, ()) if obj is torch.ops else super().reducer_override(obj)


def _find_operator(*path: str) -> object:
    return functools.reduce(getattr, path, torch.ops)


@dataclass(frozen=True)
class _Globals:
    """Pickles as the globals of a module that the other process makes."""

    name: str
    file: str | None

    def __reduce__(self) -> tuple[object, ...]:
        return _make_globals, (self.name, self.file)


def _make_globals(name: str, file: str | None) -> dict[str, object]:
    module = types.ModuleType(name)
    module.__file__ = file
    sys.modules[name] = module
    return vars(module)


@contextlib.contextmanager
def _modules_by_value() -> Iterator[None]:
    """Pickle the user's modules by value that another process would not import from the same file."""
    with contextlib.ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            file = str(getattr(module, "__file__", None) or "")
            own = name != "__main__" and getattr(module, "__name__", None) == name and is_user_file(file)
            if own and _origin(name) != Path(file).resolve():
                cloudpickle.register_pickle_by_value(module)
                stack.callback(cloudpickle.unregister_pickle_by_value, module)
        yield


def _origin(name: str) -> Path | None:
    parent = sys.modules.get(name.rpartition(".")[0])
    where = getattr(parent, "__path__", None) if "." in name else None
    if "." in name and where is None:
        return None
    try:
        spec = importlib.machinery.PathFinder.find_spec(name, where)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).resolve() if spec is not None and spec.origin else None


def _texts(invocation: Invocation) -> Iterator[tuple[str, str]]:
    functions = [value for value in ReachedObjects(invocation.roots).objects if isinstance(value, types.FunctionType)]
    for name in {function.__code__.co_filename for function in functions}:
        if not Path(name).exists() and (lines := linecache.getlines(name)):
            yield name, "".join(lines)
