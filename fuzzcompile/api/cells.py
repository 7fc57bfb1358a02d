"""Run a notebook's cell up to its first compiled call, in the user's namespace."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import nn

from fuzzcompile.capture.interception import (
    CallReached,
    CompileArguments,
    CompiledCallable,
    CompiledModule,
    Interception,
    original,
)
from fuzzcompile.capture.invocation import Invocation, invocation_of, uncompiled_parts
from fuzzcompile.case import Arguments
from fuzzcompile.compiler.compiled import innermost, is_compiled, settings_of


class Compiler(Protocol):
    """The part of IPython's ``CachingCompiler`` that is used here."""

    def cache(self, transformed_code: str) -> str:
        """Keep the text of a cell for tracebacks, and return the file name under which it is kept."""


class Shell(Protocol):
    """The part of IPython's ``InteractiveShell`` that the magics use."""

    user_ns: dict[str, Any]
    compile: Compiler

    def register_magic_function(self, func: object, magic_kind: str, magic_name: str) -> None:
        """Make a function a magic."""

    def transform_cell(self, raw_cell: str) -> str:
        """A cell with its magics and shell lines as Python."""


def first_call(shell: Shell, cell: str) -> Invocation | None:
    """Run the cell until it calls what ``torch.compile`` returned, in it or before it; None if it calls none.

    The cell stops at that call, with the names bound that it has bound so far. What it compiled is compiled for real
    afterwards.
    """
    calls: list[Invocation] = []

    def on_call(record: CompiledCallable, arguments: Arguments, number: int) -> None:
        if not calls:
            with uncompiled_parts(record.target):  # or the walk of what it reaches would go through this interception
                calls.append(replace(invocation_of(record.target, arguments), settings=record.settings))
        raise CallReached  # again, where the cell has swallowed the first

    text = shell.transform_cell(cell)
    name = shell.compile.cache(text)
    interception = Interception(name, on_call, "line {}".format)
    code = compile(text, name, "exec", dont_inherit=True)
    with _stand_ins(shell.user_ns, interception), interception.installed(), contextlib.suppress(CallReached):
        exec(code, shell.user_ns)
    return calls[0] if calls else None


@contextlib.contextmanager
def _stand_ins(namespace: dict[str, Any], interception: Interception) -> Iterator[None]:
    """Intercept the namespace's compiled callables in the block; what the block compiles is real after it."""
    replaced = {}
    for name, value in list(namespace.items()):
        if is_compiled(value):
            replaced[name] = value, interception.compile(innermost(value), **_arguments(value))
            namespace[name] = replaced[name][1]
    try:
        yield
    finally:
        interception.active = False
        for name, (value, stand_in) in replaced.items():
            if namespace.get(name) is stand_in:
                namespace[name] = value
        _compile_for_real(namespace, interception)


def _arguments(value: object) -> CompileArguments:
    """The arguments of ``torch.compile`` that ``value`` was compiled with; none where torch does not show them."""
    with contextlib.suppress(LookupError):
        settings = settings_of(value)
        if settings is not None:
            return {
                "backend": settings.backend,
                "mode": settings.mode,
                "options": settings.options,
                "dynamic": settings.dynamic,
                "fullgraph": settings.fullgraph,
            }
    return {}


def _compile_for_real(namespace: dict[str, Any], interception: Interception) -> None:
    """Put what torch makes in place of the stand-ins that the cell has bound, and in modules compiled in place."""
    records = {id(record.target): record for record in interception.compiled}
    for name, value in list(namespace.items()):
        if isinstance(value, CompiledModule) or getattr(value, "__dict__", {}).get("_intercepted") is not None:
            record = records.get(id(original(value)))
            if record is not None:
                namespace[name] = _compiled(record.target, record.arguments)
    for record in interception.compiled:
        module = record.target
        if isinstance(module, nn.Module) and hasattr(vars(module).get("_compiled_call_impl"), "_intercepted"):
            vars(module)["_compiled_call_impl"] = _compiled(module._call_impl, record.arguments)


def _compiled(target: Callable[..., object], arguments: CompileArguments) -> object:
    given: dict[str, Any] = {name: value for name, value in arguments.items() if value is not None}
    return torch.compile(target, **given)
