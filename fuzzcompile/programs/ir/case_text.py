"""Case sources as text: the part kept in a reproducer, the difference between two cases, the program up to names."""

from __future__ import annotations

import ast
import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeGuard

_MAIN = ("__name__ == '__main__'", "'__main__' == __name__")
# Functions of torch that make a tensor on the default device, unless they are told another.
_MAKES = frozenset({
    "arange", "empty", "empty_permuted", "empty_strided", "eye", "full", "linspace", "logspace", "ones", "rand",
    "randint", "randn", "randperm", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros",
})  # fmt: skip


def extract_case(source: str) -> str:
    """The source without its module docstring and ``__main__`` part, one blank line between definitions.

    The text within statements stays as it is. Applied twice, it gives the same text as once.
    """
    tree = ast.parse(source)
    body, gone, inside = tree.body, set[int](), set[int]()
    for node in body:
        first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])
        dropped = _is_main(node) or (node is body[0] and ast.get_docstring(tree, clean=False) is not None)
        (gone if dropped else inside).update(range(first, (node.end_lineno or node.lineno) + 1))
    result: list[str] = []
    for number, line in enumerate(source.splitlines(), start=1):
        blank = not line.strip() and number not in inside
        if number in gone or (blank and (not result or not result[-1].strip())):
            continue
        result.append("" if blank else line)
    while result and not result[-1].strip():
        result.pop()
    return "\n".join(result) + "\n"


def only_difference(source: str, changed: str) -> tuple[str, str] | None:
    """The one line in which the sources differ, before and after; None if they differ in more."""
    before, after = (
        [line.strip() for line in extract_case(text).splitlines() if line.strip()] for text in (source, changed)
    )
    differ = [pair for pair in zip(before, after, strict=False) if pair[0] != pair[1]]
    return differ[0] if len(before) == len(after) and len(differ) == 1 else None


def find_bound_names(source: str) -> set[str]:
    """Names that the module's top-level statements bind, those in branches and comprehensions too."""
    return collect_bound_names(ast.parse(source).body)


def collect_bound_names(nodes: Iterable[ast.stmt]) -> set[str]:
    """Names that statements bind at their own level, those in branches and comprehensions too."""
    bound: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            bound.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        else:
            bound |= {inner.name for inner in ast.walk(node) if isinstance(inner, ast.FunctionDef)}
            names = (inner for inner in ast.walk(node) if isinstance(inner, ast.Name))
            bound |= {name.id for name in names if isinstance(name.ctx, ast.Store)}
    return bound


def makes_tensors(source: str) -> bool:
    """Return whether the program, ``make()`` apart, makes tensors without saying on which device."""
    program = (node for node in ast.parse(source).body if getattr(node, "name", None) != "make")
    calls = (node for part in program for node in ast.walk(part) if isinstance(node, ast.Call))
    undecided = [call for call in calls if "device" not in {keyword.arg for keyword in call.keywords}]
    return any(isinstance(call.func, ast.Attribute) and call.func.attr in _MAKES for call in undecided)


def _is_main(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in _MAIN


# Names that mean something to whoever runs a case, as does everything in capitals (``GRAD``, ``OPTIONS``…).
_MEANT = frozenset({"make", "run", "forward"})
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_ASSIGNED = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr)


def program_key(source: str, *, sizes: bool = True) -> str:
    """The hexadecimal SHA-256 of the program of a case file (or of a reproducer that contains one), up to names.

    Without ``sizes`` a number counts by its kind alone: 0, 1, another whole number, or a fraction.

    Names of variables, parameters, functions, classes and attributes, docstrings, comments, annotations, the
    ``__main__`` part and the spelling of imports do not count, nor does whether a value that is used once has a name of
    its own. A text that is no Python stands for itself.
    """
    with contextlib.suppress(SyntaxError, ValueError):  # ValueError: null characters
        tree = ast.parse(extract_case(source))
        meanings = _collect_imports(tree)
        _drop_what_computes_nothing(tree)
        tree = _ImportExpander(meanings).visit(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                node.body = _nest_values(node.body)
        if not sizes:
            _round_numbers(tree)
        attributes = {name: f"a{number}" for number, name in enumerate(dict.fromkeys(_find_own_attributes(tree)))}
        source = ast.unparse(ast.fix_missing_locations(_ScopeRenamer(attributes).visit(tree)))
    return hashlib.sha256(source.encode()).hexdigest()


def _round_numbers(tree: ast.Module) -> None:
    """Put one number in the place of all of a kind; 0 and 1 are kinds of their own, as every negative is of its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value not in (0, 1):
            node.value = 2 if isinstance(node.value, int) else 0.5


def _drop_what_computes_nothing(tree: ast.Module) -> None:
    """Drop imports, docstrings and annotations, and the order of keywords."""
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            if isinstance(statements := getattr(node, name, None), list):
                kept = [s for s in statements if not isinstance(s, ast.Import | ast.ImportFrom) and not _is_constant(s)]
                defines = name == "body" and isinstance(node, ast.FunctionDef | ast.ClassDef)
                setattr(node, name, kept or [ast.Pass()] * defines)
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.Call):
            node.keywords.sort(key=lambda keyword: keyword.arg or "")


def _is_constant(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _collect_imports(tree: ast.Module) -> dict[str, str]:
    meanings: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            meanings |= {alias.asname: alias.name for alias in node.names if alias.asname}
            roots = (alias.name.partition(".")[0] for alias in node.names if not alias.asname)
            meanings |= {root: root for root in roots}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            meanings |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return meanings


class _ImportExpander(ast.NodeTransformer):
    """Writes imported names in full, and annotated assignments plainly."""

    def __init__(self, meanings: Mapping[str, str]) -> None:
        self.meanings = meanings
        # Modules, and every path below them that a name may have been imported from.
        parts = [meaning.split(".") for meaning in meanings.values()]
        self.paths = {".".join(path[: length + 1]) for path in parts for length in range(len(path))}

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Without the annotation; a field of a class keeps its own."""
        self.generic_visit(node)
        return node if node.value is None else ast.copy_location(ast.Assign([node.target], node.value), node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """One name for a whole path into a module: ``torch.nn.functional.gelu``."""
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id in self.paths:
            return ast.Name(f"{node.value.id}.{node.attr}", node.ctx)
        return node

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.meanings.get(node.id, node.id), node.ctx)


def _nest_values(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements with every value that is used once written where it is used, unless something happens between.

    How a program is laid out in lines depends on how long its names are.
    """
    for index in reversed(range(len(body))):
        statement, reader = body[index], find_only_reader(body, index)
        if reader is None or not isinstance(statement, ast.Assign):
            continue
        name, user = get_assigned_name(statement) or "", body[reader]
        named = [node for part in (*body[:index], statement) for node in ast.walk(part) if _names(node, name)]
        scoped = any(isinstance(node, _SCOPES) for node in ast.walk(user))
        if len(named) > 1 or scoped or not isinstance(user, (*_ASSIGNED, ast.Return)):
            continue
        if all(get_assigned_name(between) is not None for between in body[index + 1 : reader]):
            put_value(user, name, statement.value)
            del body[index]
    return body


def get_assigned_name(statement: ast.stmt) -> str | None:
    """The one plain name that a statement assigns."""
    target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
    return target.id if isinstance(target, ast.Name) else None


def find_only_reader(body: Sequence[ast.stmt], index: int) -> int | None:
    """The place of the one later statement that has the name that a statement assigns, and only reads it, once."""
    name = get_assigned_name(body[index])
    if name is None:
        return None
    uses = [(place, n) for place, s in enumerate(body) if place > index for n in ast.walk(s) if _names(n, name)]
    return uses[0][0] if len(uses) == 1 and isinstance(uses[0][1].ctx, ast.Load) else None


def _names(node: ast.AST, name: str) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and node.id == name


def put_value(statement: ast.stmt, name: str, value: ast.expr) -> ast.stmt:
    """Write a value in the places where a statement reads the name that it is assigned to."""

    class Inliner(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return value if node.id == name and isinstance(node.ctx, ast.Load) else node

    written = Inliner().visit(statement)
    assert isinstance(written, ast.stmt)
    return written


def _find_own_attributes(tree: ast.Module) -> Iterator[str]:
    """Attributes that the source itself defines, in order: what it assigns on an object, and methods."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.ClassDef):
            yield from (
                part.name for part in node.body if isinstance(part, ast.FunctionDef) and not _is_meant(part.name)
            )


def _is_meant(name: str) -> bool:
    return name in _MEANT or name.isupper() or (name.startswith("__") and name.endswith("__"))


class _ScopeRenamer(ast.NodeTransformer):
    """Renames what the source binds, scope by scope, in the order in which it is used."""

    def __init__(self, attributes: Mapping[str, str]) -> None:
        self.attributes = attributes
        self.scopes: list[dict[str, str | None]] = []

    def visit_Module(self, node: ast.Module) -> ast.Module:
        self.scopes.append(dict.fromkeys(name for name in _find_bindings(node.body) if not _is_meant(name)))
        self.generic_visit(node)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.name = self._name(node.name)
        return self._function(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        node.name = self._name(node.name)
        node.bases = [self.visit(base) for base in node.bases]
        for part in node.body:
            if isinstance(part, ast.FunctionDef):
                part.name = self.attributes.get(part.name, part.name)
                self._function(part)
            else:
                self.visit(part)
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        self.scopes.append(dict.fromkeys(_walk_arguments(node.args)))
        self.generic_visit(node)
        self.scopes.pop()
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(self._name(node.arg))

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self._name(node.id), node.ctx)

    def visit_Attribute(self, node: ast.Attribute) -> ast.Attribute:
        self.generic_visit(node)
        node.attr = self.attributes.get(node.attr, node.attr)
        return node

    def _function(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """The body before the parameters, which are then numbered in the order of their use."""
        node.decorator_list = [self.visit(decorator) for decorator in node.decorator_list]
        self.scopes.append(dict.fromkeys([*_find_bindings(node.body), *_walk_arguments(node.args)]))
        for statement in node.body:
            self.visit(statement)
        self.visit(node.args)
        self.scopes.pop()
        return node

    def _name(self, name: str) -> str:
        """The name's number in the innermost scope that binds it; a name that none binds is kept."""
        for depth, scope in reversed(list(enumerate(self.scopes))):
            if name in scope:
                number = sum(value is not None for value in scope.values())
                scope[name] = scope[name] or f"v{depth}_{number}"
                return scope[name] or name
        return name


def _find_bindings(body: Sequence[ast.stmt]) -> Iterator[str]:
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif not isinstance(node, ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))


def _walk_arguments(arguments: ast.arguments) -> Iterator[str]:
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    yield from (argument.arg for argument in (*named, arguments.vararg, arguments.kwarg) if argument is not None)
