"""What a script's text shows of how it calls what it compiles, and of what it does with the results."""

from __future__ import annotations

import ast
from collections.abc import Iterator

# Calls that may raise for what a compiled call returned: they read its memory, or copy it.
_READING = {"numpy", "data_ptr", "deepcopy", "save", "dumps"}
# A backward pass, of which the first is made in judging the call itself.
_DIFFERENTIATING = {"backward", "grad", "vjp", "jvp"}
# Calls by which a script says that a result is not what it should be.
_CHECKING = {"assert_close", "assert_allclose", "assert_equal", "assert_array_equal", "exit"}
# Calls with a trailing underscore that a result does not refuse, but for those of ``torch.nn.init``.
_HARMLESS = {"requires_grad_", "init"}
_REPEATING = (ast.For, ast.While, ast.AsyncFor, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_AGAIN = (*_REPEATING, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def makes_one_call(source: str) -> bool:
    """Return whether a script's text shows that it calls what it compiles once, outside of loops and functions."""
    tree = ast.parse(source)
    names = _list_compiled(tree)
    compiling = sum(_compiles(node) for node in ast.walk(tree) if isinstance(node, ast.Call))
    used = [node for node in ast.walk(tree) if _is_read(node, names)]
    plain = [node for statement in tree.body if not isinstance(statement, _AGAIN) for node in _walk_once(statement)]
    called = [node.func for node in plain if isinstance(node, ast.Call)]  # and not given to another function
    if not used:  # what is compiled is called at once, if at all
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _compiles(node.func, within=False)]
        return len(calls) == 1 and bool(calls[0].args) and calls[0] in called
    return compiling <= 1 and len(used) == 1 and any(function is used[0] for function in called)


def tests_results(source: str) -> bool:
    """Return whether the code around the compiled calls of a script checks their results, or may fail by them.

    That is a write in place, a further backward pass, and what reads or copies a tensor's memory.
    """
    tree = ast.parse(source)
    again = [part for node in ast.walk(tree) if isinstance(node, _REPEATING) for part in ast.walk(node)]
    if sum(_name_call(node) in _DIFFERENTIATING for node in (*ast.walk(tree), *again)) > 1:
        return True
    for node in _walk_driving(tree, _list_compiled(tree)):
        name = _name_call(node)
        in_place = name.endswith("_") and not name.startswith("_") and _HARMLESS.isdisjoint(_name_parts(node))
        if name in _READING | _CHECKING or in_place or isinstance(node, ast.Assert | ast.Raise):
            return True
    return False


def _list_compiled(tree: ast.Module) -> set[str]:
    """The names that a script gives to what it compiles."""
    names = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and _compiles(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return names | {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and any(map(_compiles, node.decorator_list))
    }


def _walk_driving(tree: ast.Module, compiled: set[str]) -> Iterator[ast.AST]:
    """All nodes of the code around compiled calls: that of the module, and functions that name what is compiled."""
    for statement in tree.body:
        defines = isinstance(statement, ast.FunctionDef | ast.ClassDef)
        inside = [node for part in getattr(statement, "body", ()) for node in ast.walk(part)] if defines else []
        if not defines or any(_is_read(node, compiled) or _compiles(node, within=False) for node in inside):
            yield from ast.walk(statement)


def _walk_once(node: ast.AST) -> list[ast.AST]:
    """The parts of a statement that run at most once when it does."""
    parts: list[ast.AST] = [node]
    for child in ast.iter_child_nodes(node):
        parts += [] if isinstance(child, _AGAIN) else _walk_once(child)
    return parts


def _compiles(node: ast.AST, *, within: bool = True) -> bool:
    """Return whether a node, or one within it, is a function that compiles."""
    parts = ast.walk(node) if within else [node]
    return any(isinstance(part, ast.Attribute) and part.attr in ("compile", "optimize") for part in parts)


def _is_read(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load)


def _name_call(node: ast.AST) -> str:
    """The last name of the function that a call is of; empty of any other node."""
    return _name_parts(node)[0] if isinstance(node, ast.Call) else ""


def _name_parts(node: ast.AST) -> list[str]:
    """The names in the function that a call is of, the last first: ``init`` behind ``normal_`` of ``init.normal_``."""
    names = list[str]()
    part = node.func if isinstance(node, ast.Call) else node
    while isinstance(part, ast.Attribute):
        names.append(part.attr)
        part = part.value
    return [*names, part.id if isinstance(part, ast.Name) else ""]
