"""Run a notebook's cell up to its first compiled call, in the user's namespace."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import nn

from fuzzcompile.compiler.torch_api import is_compiled, read_compile_settings, unwrap_compiled
from fuzzcompile.front.api.report import Report
from fuzzcompile.front.api.triage import triage
from fuzzcompile.model.errors import FuzzcompileError, UsageError
from fuzzcompile.programs.capture.interception import (
    CallReached,
    CompiledCallable,
    CompiledModule,
    CompileInterception,
    original,
)
from fuzzcompile.programs.capture.invocation import Invocation, capture_invocation, run_parts_uncompiled
from fuzzcompile.run.case import Arguments, CompileSettings

IPythonShell: TypeAlias = Any  # IPython's ``InteractiveShell``, which has no types


def run_to_first_call(shell: IPythonShell, cell: str) -> Invocation | None:
    """Run the cell until it calls what ``torch.compile`` returned, in it or before it; None if it calls none.

    The cell stops at that call, with the names bound that it has bound so far. What it compiled is compiled for real
    afterwards.
    """
    calls: list[Invocation] = []

    def on_call(record: CompiledCallable, arguments: Arguments, number: int) -> None:
        if not calls:
            # Or the walk of what it reaches would go through this interception.
            with run_parts_uncompiled(record.target):
                calls.append(replace(capture_invocation(record.target, arguments), settings=record.settings))
        raise CallReached  # again, where the cell has swallowed the first

    text = shell.transform_cell(cell)
    name: str = shell.compile.cache(text)
    interception = CompileInterception(name, on_call, "line {}".format)
    code = compile(text, name, "exec", dont_inherit=True)
    with _install_stand_ins(shell.user_ns, interception), interception.install(), contextlib.suppress(CallReached):
        exec(code, shell.user_ns)
    return calls[0] if calls else None


@contextlib.contextmanager
def _install_stand_ins(namespace: dict[str, Any], interception: CompileInterception) -> Iterator[None]:
    """Intercept the namespace's compiled callables in the block; what the block compiles is real after it."""
    replaced = {}
    for name, value in list(namespace.items()):
        if is_compiled(value):
            replaced[name] = value, interception.wrap(unwrap_compiled(value), _read_settings(value))
            namespace[name] = replaced[name][1]
    try:
        yield
    finally:
        interception.active = False
        for name, (value, stand_in) in replaced.items():
            if namespace.get(name) is stand_in:
                namespace[name] = value
        _compile_for_real(namespace, interception)


def _read_settings(value: object) -> CompileSettings:
    """The arguments of ``torch.compile`` that ``value`` was compiled with; the defaults where torch shows none."""
    with contextlib.suppress(LookupError):
        return read_compile_settings(value) or CompileSettings()
    return CompileSettings()


def _compile_for_real(namespace: dict[str, Any], interception: CompileInterception) -> None:
    """Put what torch makes in place of the stand-ins that the cell has bound, and in modules compiled in place."""
    records = {id(record.target): record for record in interception.compiled}
    for name, value in list(namespace.items()):
        if isinstance(value, CompiledModule) or getattr(value, "__dict__", {}).get("_intercepted") is not None:
            record = records.get(id(original(value)))
            if record is not None:
                namespace[name] = _make_compiled(record.target, record.settings)
    for record in interception.compiled:
        module = record.target
        if isinstance(module, nn.Module) and hasattr(vars(module).get("_compiled_call_impl"), "_intercepted"):
            vars(module)["_compiled_call_impl"] = _make_compiled(module._call_impl, record.settings)


def _make_compiled(target: Callable[..., object], settings: CompileSettings) -> object:
    names = ("backend", "mode", "dynamic", "fullgraph")
    given: dict[str, Any] = {"options": dict(settings.options) or None, **{n: getattr(settings, n) for n in names}}
    return torch.compile(target, **given)


# ``%load_ext fuzzcompile``: the magics ``%%triage`` and ``%triage`` of IPython and Jupyter.

_CALL = "_fuzzcompile_called"


def load_ipython_extension(shell: IPythonShell) -> None:
    """Register the magics; IPython calls this for ``%load_ext fuzzcompile``."""

    def judge(line: str, cell: str | None = None) -> Report | None:
        """Judge the first compiled call of a cell, or the call that a line spells."""
        try:
            return judge_line(shell, line) if cell is None else judge_cell(shell, line, cell)
        except FuzzcompileError as error:
            print(f"fuzzcompile: {error}")  # noqa: T201 - a notebook's reader needs no traceback for it
            return None

    shell.register_magic_function(judge, "line_cell", "triage")


def judge_line(shell: IPythonShell, line: str) -> Report:
    """Judge the call that the line spells, such as ``model(x, mask=mask)``; the callable need not be compiled."""
    try:
        call = ast.parse(line.strip(), "<triage>", "eval").body
    except SyntaxError as error:
        raise UsageError(f"%triage takes a call, such as %triage model(x): {error.msg}.") from error
    if not isinstance(call, ast.Call):
        raise UsageError("%triage takes a call, such as %triage model(x); a cell begins with %%triage.")
    taken = ast.Call(ast.Name(_CALL, ast.Load()), [call.func, *call.args], call.keywords)
    code = compile(ast.fix_missing_locations(ast.Expression(taken)), "<triage>", "eval")

    def judge(model: object, /, *args: object, **kwargs: object) -> Report:
        return triage(model, *args, **kwargs)

    report: Report = eval(code, {**shell.user_ns, _CALL: judge})
    return report


def judge_cell(shell: IPythonShell, line: str, cell: str) -> Report:
    """Run the cell up to its first compiled call, and judge that call.

    ``line`` holds settings, as in ``%%triage dynamic=True, timeout=600``.
    """
    try:
        settings: dict[str, Any] = eval(f"dict({line})", dict(shell.user_ns))
    except Exception as error:  # the user's expressions, which may raise anything
        text = f"%%triage takes settings such as dynamic=True, not {line.strip()!r} ({error})."
        raise UsageError(text) from error
    judging = triage.options(**settings)
    call = run_to_first_call(shell, cell)
    if call is None:
        raise UsageError(
            "this cell calls nothing that torch.compile returned; call it here, or judge a call with %triage model(x)."
        )
    return judging.judge(call)
