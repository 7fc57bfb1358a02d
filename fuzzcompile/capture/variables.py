"""Environment variables that a script sets too late: torch has read them when it was imported."""

from __future__ import annotations

import ast
import os
import shlex
from collections.abc import Iterator, Mapping

from fuzzcompile.compiler.settings import read_at_import


def set_too_late(tree: ast.Module, before: Mapping[str, str]) -> Iterator[str]:
    """Remarks on variables that changed since ``before`` and had no effect.

    Args:
        tree: the script.
        before: the environment that the script began with.
    """
    changed = [name for name, value in os.environ.items() if before.get(name) != value]
    late = read_at_import(changed)
    vain = [name for name in late if _follows_import(tree, name)]
    if vain:
        yield (
            f"the script sets {', '.join(vain)} after it imports torch, which reads it at import: without effect, "
            "here and in plain Python; set it before torch is imported"
        )
    if missed := [name for name in late if name not in vain]:
        export = shlex.join(["export", *(f"{name}={os.environ[name]}" for name in missed)])
        yield (
            f"the script sets {', '.join(missed)}, which torch reads when it is imported, and fuzzcompile imports it "
            f"before the script runs: without effect here; set it in the environment of fuzzcompile: `{export}`"
        )


def _follows_import(tree: ast.Module, name: str) -> bool:
    """Return whether the script imports torch in an earlier line than the first that has the variable's name."""
    statements = (node for node in ast.walk(tree) if isinstance(node, ast.stmt))
    imports = [statement.lineno for statement in statements if _imports_torch(statement)]
    names = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value == name]
    return bool(imports and names) and min(imports) < min(names)


def _imports_torch(node: ast.stmt) -> bool:
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").split(".")[0] == "torch" and not node.level
    return isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "torch" for alias in node.names)
