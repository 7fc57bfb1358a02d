"""Triton functions as Python functions that the interpreter can run."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import triton.language as tl
from triton.runtime import interpreter

Function = Callable[..., Any]
_rewritten: dict[Any, Function] = {}


def interpreted(function: Function) -> Function:
    """``function``, the body of a Triton function, as Python that computes on Triton tensors.

    Assignments make Triton values of Python ones, as Triton's own interpreter has it, ``and``, ``or`` and ``not`` work
    on blocks, and no branch does.
    """
    if function not in _rewritten:
        _rewritten[function] = _rewrite(function)
    return _rewritten[function]


def _rewrite(function: Function) -> Function:
    source = textwrap.dedent(inspect.getsource(function))
    definition = next(node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    definition.decorator_list = []
    for parameter in (*definition.args.posonlyargs, *definition.args.args, *definition.args.kwonlyargs):
        parameter.annotation = None
    definition.returns = None
    module = ast.Module([definition], type_ignores=[])
    module = interpreter.FunctionRewriter.ast_transformer.visit(_Logic().visit(module))
    first = inspect.getsourcelines(function)[1]
    code = compile(ast.increment_lineno(ast.fix_missing_locations(module), first - 1), _file_of(function), "exec")
    names = {**_helpers(), **inspect.getclosurevars(function).nonlocals}
    scope = _Scope(function.__globals__, names)
    made: dict[str, Function] = {}
    exec(code, scope, made)
    result = made[definition.name]
    result.__defaults__, result.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return result


class _Scope(dict[str, Any]):
    """The globals of a function as they are when the function runs, and the names that its rewritten form needs."""

    def __init__(self, original: dict[str, Any], names: dict[str, Any]) -> None:
        super().__init__({**original, **names})


def _file_of(function: Function) -> str:
    return inspect.getsourcefile(function) or function.__code__.co_filename


def _helpers() -> dict[str, Any]:
    names = ("interpreter_semantic", "_InterpreterComparison")
    known = {name: getattr(interpreter, name) for name in names if hasattr(interpreter, name)}
    return {**known, "_logical": _logical, "_negated": _negated, "_decided": _decided}


class _Logic(ast.NodeTransformer):
    """Rewrites logic and branches as calls of functions that know blocks: Python would ask a block for its truth."""

    def visit(self, node: ast.AST) -> ast.AST:
        result: ast.AST = super().visit(node)
        if isinstance(result, (ast.If, ast.While, ast.IfExp)):
            test = ast.Call(ast.Name("_decided", ast.Load()), [result.test], [])
            result.test = ast.copy_location(test, result.test)
        return result

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        kind = ast.Constant("logical_and" if isinstance(node.op, ast.And) else "logical_or")
        nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        later: list[ast.expr] = [ast.Lambda(args=nothing, body=value) for value in node.values]
        return ast.copy_location(
            ast.Call(func=ast.Name("_logical", ast.Load()), args=[kind, *later], keywords=[]), node
        )

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Not):
            return node
        return ast.copy_location(ast.Call(ast.Name("_negated", ast.Load()), args=[node.operand], keywords=[]), node)


def _logical(kind: str, first: Callable[[], Any], *later: Callable[[], Any]) -> Any:
    """``and`` and ``or``: those of Triton between tensors, those of Python (which stop early) otherwise."""
    result = first()
    for following in later:
        if not isinstance(result, tl.tensor):
            if bool(_plain(result)) == (kind == "logical_or"):
                return result
            result = following()
            continue
        value = following()
        operand = value if isinstance(value, tl.tensor) else interpreter.interpreter_semantic.to_tensor(value, False)
        result = getattr(_truth(result), kind)(_truth(operand))
    return result


def _decided(test: Any) -> Any:
    """A condition; Triton has no branches on blocks."""
    if isinstance(test, tl.tensor) and test.type.is_block() and test.numel.value > 1:
        raise NotImplementedError("a branch on a block")
    return test


def _negated(value: Any) -> Any:
    return value.__not__() if isinstance(value, tl.tensor) else not _plain(value)


def _truth(value: Any) -> Any:
    """The tensor as one of ``tl.int1``."""
    return value if value.dtype == tl.int1 else value != 0


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, tl.constexpr) else value
