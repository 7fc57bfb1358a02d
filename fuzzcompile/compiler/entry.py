"""The older way into the compiler, ``torch._dynamo.optimize``, and what a program sets in its configs."""

from __future__ import annotations

import contextlib
import importlib
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar, cast

import torch

from fuzzcompile.compiler.configs import CONFIGS, config_of
from fuzzcompile.compiler.patching import Function, Intended, installed
from fuzzcompile.compiler.unseen import Unseen

_Function = TypeVar("_Function", bound=Callable[..., object])


@dataclass(frozen=True)
class Interception:
    """A replacement of ``torch._dynamo.optimize``."""

    replacement: Function

    def missed(self, unseen: Unseen, error: BaseException | None = None) -> None:
        """Ignore it: a torch without the older way needs no replacement of it."""


def wrap_optimize(interception: Interception, original: Function) -> Function:
    """Call the replacement instead; what it raises is meant for the program."""

    def optimize(*args: object, **kwargs: object) -> object:
        try:
            return interception.replacement(*args, **kwargs)
        except Exception as error:  # of any kind: it rises in the program
            raise Intended(error) from error

    return optimize


@contextlib.contextmanager
def replaced_optimize(replacement: Function) -> Iterator[None]:
    """Have ``torch._dynamo.optimize`` and ``optimize_assert`` call ``replacement`` inside the block."""
    from fuzzcompile.compiler.patches import CAPTURE  # which lists the wrapper above

    with installed(Interception(replacement), CAPTURE):
        yield


def never_traced(function: Callable[..., object]) -> None:
    """Have dynamo run the frames of a function as they are; what the function calls may be compiled as ever."""
    importlib.import_module("torch._dynamo.eval_frame").skip_code(cast(types.FunctionType, function).__code__)


def uncompiled(function: _Function) -> _Function:
    """A decorator: dynamo leaves the function, and what it calls, alone."""
    left_alone: _Function = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return left_alone


def compiler_configs() -> dict[str, dict[str, object]]:
    """Every entry of the compiler's configs, by config (``inductor``, ``dynamo``, ``functorch``)."""
    return {name: config_of(name).get_config_copy() for name in CONFIGS}


def changed_configs(before: Mapping[str, Mapping[str, object]]) -> dict[str, dict[str, object]]:
    """The entries that are not what they were in ``before``, by config."""
    return {
        name: {key: value for key, value in entries.items() if not _same(value, before[name].get(key))}
        for name, entries in compiler_configs().items()
    }


def reset_compiler() -> None:
    """Forget everything that was compiled."""
    torch._dynamo.reset()


def _same(before: object, after: object) -> bool:
    if before is after:
        return True
    try:
        return bool(before == after)
    except Exception:  # values of the user's, whose __eq__ may raise anything
        return False
