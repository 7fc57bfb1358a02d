"""A case file taken apart: what its script needs of it, as syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

# Module-level names that only say how a case is run; a script says that where it compiles.
_SETTINGS = ("GRAD", "BACKWARD", "OPTIONS", "CONFIG", "MODE", "DYNAMIC", "FULLGRAPH", "PATH")
Function = ast.FunctionDef | ast.AsyncFunctionDef
Node = TypeVar("Node", bound=ast.stmt)


@dataclass(frozen=True)
class Pieces:
    """A case as straight code.

    ``imports`` and ``definitions`` are those of the module; ``setup`` are the statements of ``make()``, ``callee`` and
    ``arguments`` what it returns. ``parameters`` are the names of the callee's arguments, as far as they are known.
    """

    imports: Sequence[ast.stmt]
    definitions: Sequence[ast.stmt]
    setup: Sequence[ast.stmt]
    callee: ast.expr
    arguments: ast.expr
    parameters: Sequence[str]

    @property
    def function(self) -> ast.FunctionDef | None:
        """The function that is compiled, if it is a plain one."""
        if not isinstance(self.callee, ast.Name):
            return None
        return defined(self.definitions, self.callee.id, ast.FunctionDef)

    @property
    def module(self) -> ast.ClassDef | None:
        """The class of the module that is compiled, if the callee makes one without arguments."""
        made = made_by(self.callee)
        return None if made is None else defined(self.definitions, made, ast.ClassDef)


def pieces_of(source: str) -> Pieces:
    """Take a case file apart.

    A ``make()`` that is no straight code stays a function, and the script calls it.
    """
    body = ast.parse(source).body
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    made = defined(body, "make", ast.FunctionDef)
    definitions = [node for node in body if node not in imports and not _is_setting(node)]
    straight = made is not None and _is_straight(made) and not (_bound(made.body) & _bound(definitions))
    if made is None or not straight:
        setup = ast.parse("model, inputs = make()").body
        return Pieces(imports, definitions, setup, _name("model"), _name("inputs"), ())
    definitions.remove(made)
    returned = made.body[-1]
    assert isinstance(returned, ast.Return) and isinstance(returned.value, ast.Tuple)
    callee, arguments = returned.value.elts
    pieces = Pieces(imports, definitions, made.body[:-1], callee, arguments, ())
    names = _parameters(pieces)
    return Pieces(imports, definitions, pieces.setup, callee, arguments, names)


def made_by(callee: ast.expr) -> str | None:
    """The class that an expression such as ``Model().eval()`` makes; None if that takes arguments."""
    while isinstance(callee, ast.Call) and not callee.args and not callee.keywords:
        if isinstance(callee.func, ast.Name):
            return callee.func.id
        callee = callee.func.value if isinstance(callee.func, ast.Attribute) else callee.func
    return None


def names_in(nodes: Iterable[ast.AST]) -> set[str]:
    """All names that are read or bound anywhere in some trees."""
    inner = [node for root in nodes for node in ast.walk(root)]
    names = {node.id for node in inner if isinstance(node, ast.Name)}
    names |= {node.arg for node in inner if isinstance(node, ast.arg)}
    return names | {node.name for node in inner if isinstance(node, Function | ast.ClassDef)}


def _bound(nodes: Iterable[ast.stmt]) -> set[str]:
    """Names that statements bind at their own level."""
    bound: set[str] = set()
    for node in nodes:
        if isinstance(node, Function | ast.ClassDef):
            bound.add(node.name)
        else:
            names = (inner for inner in ast.walk(node) if isinstance(inner, ast.Name))
            bound |= {name.id for name in names if isinstance(name.ctx, ast.Store)}
    return bound


def _is_straight(made: ast.FunctionDef) -> bool:
    """Return whether ``make()`` returns a pair at its end and nowhere else, and takes and declares nothing."""
    last = made.body[-1]
    pair = isinstance(last, ast.Return) and isinstance(last.value, ast.Tuple) and len(last.value.elts) == 2
    own = [node for statement in made.body[:-1] for node in _own(statement)]
    leaves = any(isinstance(node, ast.Return | ast.Yield | ast.Global | ast.Nonlocal) for node in own)
    takes = made.args.args or made.args.kwonlyargs or made.decorator_list
    return pair and not leaves and not takes


def _own(statement: ast.AST) -> Iterable[ast.AST]:
    """The nodes of a statement without the bodies of functions and classes in it."""
    yield statement
    for child in ast.iter_child_nodes(statement):
        if not isinstance(statement, Function | ast.ClassDef | ast.Lambda):
            yield from _own(child)


def _parameters(pieces: Pieces) -> Sequence[str]:
    function, skip = pieces.function, 0
    if function is None and pieces.module is not None:
        function, skip = defined(pieces.module.body, "forward", ast.FunctionDef), 1
    if function is None or function.args.vararg is not None:
        return ()
    return [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)][skip:]


def _is_setting(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and all(
        isinstance(target, ast.Name) and target.id in _SETTINGS for target in node.targets
    )


def defined(nodes: Iterable[ast.stmt], name: str, kind: type[Node]) -> Node | None:
    """The definition of that name and kind; None if there is none."""
    return next((node for node in nodes if isinstance(node, kind) and getattr(node, "name", None) == name), None)


def _name(text: str) -> ast.Name:
    return ast.Name(text, ast.Load())
