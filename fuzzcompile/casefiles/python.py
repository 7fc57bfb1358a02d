"""Python text without running it: whether it is valid, what it defines at module level, pasted text put right."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

_PROMPT = re.compile(r"^In \[\d+\]: ")
_BLOCKS = (ast.If, ast.Try, ast.With, ast.For, ast.While, ast.TryStar)


@dataclass(frozen=True)
class Invalid:
    """A syntax error: the parser's message, and the line (from 1; 0 if the parser names none) with its text."""

    message: str
    line: int = 0
    text: str = ""


def parsed(source: str) -> ast.Module | Invalid:
    """The syntax tree of ``source``, which also compiles; or why there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as invalid escape sequences: the run shows them
        try:
            tree = ast.parse(source)
            compile(tree, "<case>", "exec", dont_inherit=True)
        except SyntaxError as error:
            lines, number = source.splitlines(), error.lineno or 0
            text = lines[number - 1] if 0 < number <= len(lines) else error.text or ""
            return Invalid(error.msg, number, text.strip())
        except ValueError as error:  # a null byte
            return Invalid(str(error))
        except (RecursionError, MemoryError):
            return Invalid("its expressions nest too deeply for Python's parser")
    return tree


def as_program(source: str) -> str:
    """Pasted text as Python: without Markdown fences, interpreter prompts and a notebook's ``%`` and ``!`` lines.

    Returns text that is valid Python already, or stays invalid, unchanged. Lines keep their numbers.
    """
    if isinstance(parsed(source), ast.Module):
        return source
    lines = ["" if line.lstrip().startswith(("```", "%", "!")) else line for line in source.splitlines()]
    if any(line.startswith(">>> ") for line in lines):
        lines = [line[4:] if line.startswith((">>> ", "... ")) else "" for line in lines]
    lines = [_PROMPT.sub("", line) for line in lines]
    cleaned = "\n".join(lines) + "\n"
    return cleaned if isinstance(parsed(cleaned), ast.Module) else source


def defines_make(source: str) -> bool:
    """Return whether the text is valid Python and binds the name ``make`` at module level."""
    tree = parsed(source)
    return isinstance(tree, ast.Module) and binds_make(tree)


def binds_make(tree: ast.Module) -> bool:
    """Return whether the module binds ``make``, to something that may be called without arguments."""
    return any("make" in _bound_names(statement) for statement in at_module_level(tree.body))


def at_module_level(statements: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when the module does, those inside of ``if``, ``try``, ``with`` and loops among them."""
    for statement in statements:
        yield statement
        if isinstance(statement, _BLOCKS):
            for name in ("body", "orelse", "finalbody"):
                yield from at_module_level(getattr(statement, name, []))
            for handler in getattr(statement, "handlers", []):
                yield from at_module_level(handler.body)


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
