"""The definitions of a Python file, what each uses, and which definitions use which, across files."""

from __future__ import annotations

import ast
import contextlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath

from fuzzcompile.model.focus_plan import Span

DefinitionPlace = tuple[str, str]
"""A file, relative to the folder that holds torch, and the name of a definition in it."""


@dataclass(frozen=True)
class Definition:
    """A function, method, class body or top-level assignment."""

    name: str  # ``function``, ``Class.method``, ``Class`` or the name that is assigned
    first: int  # its first line, decorators included
    last: int  # its last line
    tree: ast.stmt = field(repr=False, compare=False)  # its syntax tree

    @property
    def uses(self) -> set[str]:
        """The names and dotted names in it."""
        return set(_iter_names(self.tree))


@dataclass(frozen=True)
class DefinitionSource:
    """A file's definitions and imports: by name, the dotted module and the name in it (empty for the module itself)."""

    file: str
    definitions: tuple[Definition, ...]
    imports: dict[str, tuple[str, str]]
    tree: ast.Module = field(repr=False)

    @classmethod
    def parse(cls, file: str, text: str) -> DefinitionSource:
        """Read a file; raises `SyntaxError` if it is not Python."""
        tree = ast.parse(text)
        return cls(file, tuple(_iter_definitions(tree.body)), dict(_iter_imports(tree, file)), tree)

    @cached_property
    def names(self) -> set[str]:
        """The names of the definitions."""
        return {part.name for part in self.definitions}

    @property
    def codes(self) -> dict[str, list[str]]:
        """Of each name the code of its definitions: their syntax trees as text, of the empty name all other code."""
        codes, inner = defaultdict[str, list[str]](list), {part.tree for part in self.definitions}
        for part in self.definitions:
            codes[part.name].append(ast.dump(_strip(part.tree, inner)))
        other = [_strip(statement, inner) for statement in self.tree.body if statement not in inner]
        return {**codes, "": list(map(ast.dump, other))}

    def find_at(self, first: int, last: int) -> list[Definition]:
        """The definitions that have one of these lines; of a class and its method, the method."""
        met = [part for part in self.definitions if part.first <= last and first <= part.last]
        inner = {part.name.rpartition(".")[0] for part in met if part.first <= first and last <= part.last}
        return [part for part in met if part.name not in inner]


_BLOCKS = (ast.If, ast.With, ast.Try, ast.For)
_BODIES = {"body", "orelse", "finalbody"}


def _strip(tree: ast.stmt, inner: Collection[ast.stmt]) -> ast.stmt:
    """A statement without those in it that are definitions themselves."""
    if not isinstance(tree, (ast.ClassDef, *_BLOCKS)):
        return tree
    fields = dict(ast.iter_fields(tree))
    bodies = {
        name: [_strip(each, inner) for each in fields[name] if each not in inner] for name in _BODIES & fields.keys()
    }
    return type(tree)(**{**fields, **bodies})


def _iter_definitions(body: Iterable[ast.stmt], within: str = "") -> Iterator[Definition]:
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield _make_definition(f"{within}{statement.name}", statement)
            if isinstance(statement, ast.ClassDef):
                yield from _iter_definitions(statement.body, f"{statement.name}.")
        elif isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
            yield from (_make_definition(f"{within}{name}", statement) for name in names)
        elif isinstance(statement, _BLOCKS):
            for name, value in ast.iter_fields(statement):
                if name in _BODIES:
                    yield from _iter_definitions(value, within)


def _make_definition(name: str, statement: ast.stmt) -> Definition:
    decorators = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(node.lineno for node in decorators)])
    return Definition(name, first, statement.end_lineno or first, statement)


def _iter_names(tree: ast.AST) -> Iterator[str]:
    """The names that are read, and dotted ones whole: ``fuse_attention.scaled_dot``, ``self.method``.

    Annotations are left out: a handler that names the class `Match` does not run its methods.
    """
    if isinstance(tree, ast.Name):
        yield tree.id
    elif isinstance(tree, ast.Attribute) and all(part.isidentifier() for part in ast.unparse(tree).split(".")):
        yield ast.unparse(tree)
    for name, value in ast.iter_fields(tree):
        if name not in ("annotation", "returns"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _iter_names(child)


def _iter_imports(tree: ast.Module, file: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Also those within functions: passes import what they need where they need it."""
    package = list(PurePosixPath(file).parent.parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name, (alias.name, "")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *((node.module or "").split(".") if node.module else [])])
            yield from ((alias.asname or alias.name, (module, alias.name)) for alias in node.names)


@dataclass
class CodeGraph:
    """Which definitions use which, in ``files`` below ``root`` (the folder that holds torch).

    What the files in ``shared`` use is not followed: their machinery runs for every rule.
    """

    root: Path
    files: Collection[str]
    shared: frozenset[str] = frozenset()
    _sources: dict[str, DefinitionSource | None] = field(default_factory=dict)

    def find_source(self, file: str) -> DefinitionSource | None:
        """A file's definitions; None if there is no such file, or it is not Python of this version."""
        if file not in self._sources:
            self._sources[file] = None
            with contextlib.suppress(OSError, SyntaxError, ValueError):
                self._sources[file] = DefinitionSource.parse(file, (self.root / file).read_text(encoding="utf-8"))
        return self._sources[file]

    def find_places(self, span: Span) -> dict[DefinitionPlace, list[Span]]:
        """The definitions that have a line of ``span``, and the lines of all of that name."""
        if (source := self.find_source(span.file)) is None:
            return {}
        return {
            (span.file, met.name): [
                Span(span.file, part.first, part.last) for part in source.definitions if part.name == met.name
            ]
            for met in source.find_at(span.first, span.last)
        }

    def find_reached(self, places: Collection[DefinitionPlace]) -> set[DefinitionPlace]:
        """The definitions that these use, directly or through others, themselves included."""
        reached, waiting = set(places), list(places)
        while waiting:
            used = self._uses.get(waiting.pop(), set()) - reached
            reached |= used
            waiting += used
        return reached

    def find_users(self, places: Collection[DefinitionPlace]) -> set[DefinitionPlace]:
        """The definitions of the same files that use these directly, beside themselves."""
        wanted = set(places)
        return {user for user, used in self._uses.items() if any(user[0] == p[0] for p in used & wanted)} - wanted

    @cached_property
    def _uses(self) -> dict[DefinitionPlace, set[DefinitionPlace]]:
        edges = defaultdict[DefinitionPlace, set[DefinitionPlace]](set)
        for source in filter(None, (self.find_source(file) for file in self.files if file not in self.shared)):
            for part in source.definitions:
                edges[source.file, part.name] |= set(self._resolve(source, part)) - {(source.file, part.name)}
        return edges

    def _resolve(self, source: DefinitionSource, part: Definition) -> Iterator[DefinitionPlace]:
        owner, own = part.name.rpartition(".")[0], source.names
        if not owner:  # a class uses its methods
            yield from ((source.file, name) for name in own if name.startswith(f"{part.name}."))
        for used in part.uses:
            head, _, rest = used.partition(".")
            if head in ("self", "cls") and f"{owner}.{rest}" in own:
                yield source.file, f"{owner}.{rest}"
            elif used in own or head in own:
                yield source.file, used if used in own else head
            elif head in source.imports or used in source.imports:
                yield from self._resolve_import(*source.imports[used if used in source.imports else head], rest)

    def _resolve_import(self, module: str, name: str, rest: str) -> Iterator[DefinitionPlace]:
        """``name`` of ``module`` may be a module itself, of which ``rest`` is used."""
        for path, wanted in ((module, name or rest), (f"{module}.{name}", rest)):
            stem, wanted = path.replace(".", "/"), wanted.split(".")[0]
            for file in (f"{stem}.py", f"{stem}/__init__.py"):
                source = self.find_source(file) if file in self.files else None
                if source is not None and wanted in source.names:
                    yield file, wanted
