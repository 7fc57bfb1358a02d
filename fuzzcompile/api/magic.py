"""``%load_ext fuzzcompile``: the magics ``%%triage`` and ``%triage`` of IPython and Jupyter.

A cell runs in the user's namespace up to its first compiled call, and stops there; that call is judged. What the cell
changed before it stays changed, as it would in any cell.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from fuzzcompile.api.cells import Shell, first_call
from fuzzcompile.api.report import Report
from fuzzcompile.api.triage import triage
from fuzzcompile.errors import FuzzcompileError, UsageError

_CALL = "_fuzzcompile_called"


def load_ipython_extension(shell: Shell) -> None:
    """Register the magics; IPython calls this for ``%load_ext fuzzcompile``."""

    def judge(line: str, cell: str | None = None) -> Report | None:
        """Judge the first compiled call of a cell, or the call that a line spells."""
        try:
            return judge_line(shell, line) if cell is None else judge_cell(shell, line, cell)
        except FuzzcompileError as error:
            print(f"fuzzcompile: {error}")  # noqa: T201 - a notebook's reader needs no traceback for it
            return None

    shell.register_magic_function(judge, "line_cell", "triage")


def judge_line(shell: Shell, line: str) -> Report:
    """Judge the call that the line spells, such as ``model(x, mask=mask)``; the callable need not be compiled.

    Raises:
        UsageError: the line is no call.
        EnvironmentUnfit: nothing can be said of the call.
    """
    try:
        call = ast.parse(line.strip(), "<triage>", "eval").body
    except SyntaxError as error:
        raise UsageError(f"%triage takes a call, such as %triage model(x): {error.msg}.") from error
    if not isinstance(call, ast.Call):
        raise UsageError("%triage takes a call, such as %triage model(x); a cell begins with %%triage.")
    taken = ast.Call(ast.Name(_CALL, ast.Load()), [call.func, *call.args], call.keywords)
    code = compile(ast.fix_missing_locations(ast.Expression(taken)), "<triage>", "eval")

    def judged(model: object, /, *args: object, **kwargs: object) -> Report:
        return triage(model, *args, **kwargs)

    report: Report = eval(code, {**shell.user_ns, _CALL: judged})
    return report


def judge_cell(shell: Shell, line: str, cell: str) -> Report:
    """Run the cell up to its first compiled call, and judge that call.

    Args:
        shell: holds the user's namespace.
        line: settings behind ``%%triage``, as in ``dynamic=True, timeout=600``.
        cell: the text below.

    Raises:
        UsageError: it compiles nothing, never calls what it compiles, or ``line`` is no settings.
        EnvironmentUnfit: nothing can be said of the call.
    """
    judging = triage.options(**_settings(shell, line))
    call = first_call(shell, cell)
    if call is None:
        raise UsageError(
            "this cell calls nothing that torch.compile returned; call it here, or judge a call with %triage model(x)."
        )
    return judging.judge(call)


def _settings(shell: Shell, line: str) -> Mapping[str, Any]:
    try:
        settings: dict[str, Any] = eval(f"dict({line})", dict(shell.user_ns))
    except Exception as error:  # the user's expressions, which may raise anything
        text = f"%%triage takes settings such as dynamic=True, not {line.strip()!r} ({error})."
        raise UsageError(text) from error
    return settings
