"""From what a user names to a case: a case file, a call of a script, or a submodule of either."""

from __future__ import annotations

import ast
from pathlib import Path

import torch

from fuzzcompile.capture import load_script
from fuzzcompile.case import Case, load_case, read_source
from fuzzcompile.errors import CaseError
from fuzzcompile.submodules import submodule_case


def load(path: Path, device: torch.device, *, call: int | None = None, module: str | None = None) -> Case:
    """The case in the file at ``path``.

    Args:
        path: a case file, or a script that calls ``torch.compile``.
        device: where it will run; a script written for another kind of device is retargeted.
        call: which call of a compiled callable of a script is the case (1 is the first and the default).
        module: path of a submodule that is judged on the inputs that it gets, instead of the whole.

    Raises:
        CaseError: the file is no case and no such script, or has no such call or module.
    """
    source = read_source(path)
    if defines_make(source) or not mentions_compile(source):
        if call is not None:
            raise CaseError(f"{path} is a case file, whose calls are all judged; --call is for scripts.")
        case = load_case(path)
    else:
        case = load_script(path, source, device, call=call)
    return case if module is None else submodule_case(case, module, device)


def defines_make(source: str) -> bool:
    """Whether the text binds the name ``make`` at module level (text that is no Python does not)."""
    try:
        statements = ast.parse(source).body
    except (SyntaxError, ValueError):
        return False
    return any("make" in _bound_names(statement) for statement in statements)


def mentions_compile(source: str) -> bool:
    """Whether the text may call ``torch.compile`` or its older form, ``torch._dynamo.optimize``."""
    return "compile" in source or "optimize" in source


def _bound_names(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name for alias in statement.names}
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    return set()
