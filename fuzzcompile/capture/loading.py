"""Load a case: a case file, a call of a script, or a submodule of either."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import torch

from fuzzcompile.capture import load_script
from fuzzcompile.capture.retarget import retargeted
from fuzzcompile.capture.submodules import submodule_case
from fuzzcompile.case import Case, load_case, read_source
from fuzzcompile.compiler.target.process import assumed
from fuzzcompile.errors import CaseError


def load(path: Path, device: torch.device, *, call: int | None = None, module: str | None = None) -> Case:
    """The case in the file at ``path``.

    Args:
        path: a case file, or a script that calls ``torch.compile``.
        device: where it will run; a script written for another kind of device is retargeted, and so is a case file in a
            process that compiles for a target.
        call: which call of a compiled callable of a script is the case (1 is the first and the default).
        module: path of a submodule, judged on the inputs it gets, in place of the whole.

    Raises:
        CaseError: the file is no case and no such script, or has no such call or module.
    """
    source = read_source(path)
    if not defines_make(source):
        source = as_program(source)
    if defines_make(source) or not mentions_compile(source):
        if call is not None:
            raise CaseError(f"{path} is a case file, whose calls are all judged; --call is for scripts.")
        # Compiled for a target it runs on the CPU, whatever device it is written for.
        case = load_case(path) if assumed() is None else load_case(path, lambda tree: retargeted(tree, device)[0])
    else:
        case = load_script(path, source, device, call=call)
    return case if module is None else submodule_case(case, module, device)


def defines_make(source: str) -> bool:
    """Whether the text is valid Python and binds the name ``make`` at module level."""
    try:
        statements = ast.parse(source).body
    except (SyntaxError, ValueError):
        return False
    return any("make" in _bound_names(statement) for statement in statements)


def as_program(source: str) -> str:
    """Pasted text as Python: without Markdown fences, interpreter prompts and a notebook's ``%`` and ``!`` lines.

    Returns text that is valid Python already, or stays invalid, unchanged. Lines keep their numbers.
    """
    if _parses(source):
        return source
    lines = ["" if line.lstrip().startswith(("```", "%", "!")) else line for line in source.splitlines()]
    if any(line.startswith(">>> ") for line in lines):
        lines = [line[4:] if line.startswith((">>> ", "... ")) else "" for line in lines]
    lines = [_NOTEBOOK_PROMPT.sub("", line) for line in lines]
    cleaned = "\n".join(lines) + "\n"
    return cleaned if _parses(cleaned) else source


_NOTEBOOK_PROMPT = re.compile(r"^In \[\d+\]: ")


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    return True


def mentions_compile(source: str) -> bool:
    """Whether the text may call ``torch.compile`` or its older form, ``torch._dynamo.optimize``."""
    return "compile" in source or "optimize" in source


def _bound_names(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.FunctionDef):
        # A function with required arguments is a helper of a script.
        needed = len(statement.args.args) - len(statement.args.defaults) + statement.args.kw_defaults.count(None)
        return set() if needed else {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name for alias in statement.names}
    if isinstance(statement, ast.Assign):
        return {node.id for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)}
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return {statement.target.id}
    return set()
