"""The unused parts of a source: attributes never read, names never loaded, superfluous calls of a case."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence


def unused_statements(source: str) -> list[ast.stmt]:
    """Statements that only bind attributes of ``self``, names, functions or classes that the source never reads.

    Their right-hand sides may still matter (by drawing random numbers, say), so the text without them has to be tested
    like any other candidate.
    """
    tree = ast.parse(source)
    read = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    loaded = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return list(_outermost(tree, read, loaded))


def _outermost(tree: ast.AST, read: set[str], loaded: set[str]) -> Iterator[ast.stmt]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.stmt) and _is_unused(node, read, loaded):
            yield node
        else:
            yield from _outermost(node, read, loaded)


def _is_unused(node: ast.stmt, read: set[str], loaded: set[str]) -> bool:
    if isinstance(node, ast.Assign):
        targets = [inner for target in node.targets for inner in _flat(target)]
        return bool(targets) and all(_is_idle(target, read, loaded) for target in targets)
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
        return getattr(node, "module", None) != "__future__" and not any(name in loaded for name in names)
    if isinstance(node, ast.FunctionDef):
        special = node.name in ("make", "run", "forward") or (node.name.startswith("__") and node.name.endswith("__"))
        return not special and node.name not in loaded and node.name not in read
    return isinstance(node, ast.ClassDef) and node.name not in loaded


def _flat(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for part in target.elts:
            yield from _flat(part)
    else:
        yield target


def _is_idle(target: ast.expr, read: set[str], loaded: set[str]) -> bool:
    """Return whether nothing reads the target; upper-case names are settings, which the judge reads."""
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
        return target.attr not in read
    return isinstance(target, ast.Name) and target.id not in loaded and not target.id.isupper()


def calls_left_out(source: str) -> Iterator[str]:
    """The source with fewer CALLS: with none, with the last only, then without each single one."""
    calls = _calls(source)
    if calls is None or not isinstance(calls.value, ast.List | ast.Tuple):
        return
    elements = calls.value.elts
    yield _replaced(source, calls, None)
    if len(elements) > 1:
        yield _replaced(source, calls, elements[-1:])
        for index in range(len(elements)):
            yield _replaced(source, calls, [*elements[:index], *elements[index + 1 :]])


def without_run(source: str) -> str | None:
    """The source without its ``run``; None if it has none."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == "run":
            return _without_lines(source, node, [])
    return None


def _calls(source: str) -> ast.Assign | None:
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "CALLS" for t in node.targets):
            return node
    return None


def _replaced(source: str, calls: ast.Assign, elements: Sequence[ast.expr] | None) -> str:
    if elements is None:
        return _without_lines(source, calls, [])
    texts = [ast.get_source_segment(source, element) or ast.unparse(element) for element in elements]
    return _without_lines(source, calls, [f"CALLS = [{', '.join(texts)}]"])


def _without_lines(source: str, node: ast.stmt, instead: list[str]) -> str:
    lines = source.splitlines()
    return "\n".join([*lines[: node.lineno - 1], *instead, *lines[node.end_lineno or node.lineno :]]) + "\n"
