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
    """A file's definitions, and what its imports are called where they come from."""

    file: str
    definitions: tuple[Definition, ...]
    imports: dict[str, str]
    tree: ast.Module = field(repr=False)

    @classmethod
    def parse(cls, file: str, text: str) -> DefinitionSource:
        """Read a file; raises `SyntaxError` if it is not Python."""
        tree = ast.parse(text)
        return cls(file, tuple(_iter_definitions(tree.body)), dict(_iter_imports(tree)), tree)

    @cached_property
    def names(self) -> set[str]:
        """The names of the definitions."""
        return {part.name for part in self.definitions}

    @property
    def codes(self) -> dict[str, list[str]]:
        """Of each name the code of its definitions: their syntax trees as text, of the empty name all other code."""
        codes, defining = defaultdict[str, list[str]](list), {part.tree for part in self.definitions}
        for part in self.definitions:
            tree = part.tree
            if isinstance(tree, ast.ClassDef):  # what is in it has definitions of its own
                tree = ast.ClassDef(tree.name, tree.bases, tree.keywords, [], tree.decorator_list)
            codes[part.name].append(ast.dump(tree))
        return {**codes, "": [ast.dump(statement) for statement in self.tree.body if statement not in defining]}

    def find_at(self, first: int, last: int) -> list[Definition]:
        """The definitions that have one of these lines; of a class and its method, the method."""
        met = [part for part in self.definitions if part.first <= last and first <= part.last]
        inner = {part.name.rpartition(".")[0] for part in met if part.first <= first and last <= part.last}
        return [part for part in met if part.name not in inner]


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
        elif isinstance(statement, (ast.If, ast.With, ast.Try, ast.For)):
            for name in ("body", "orelse", "finalbody"):
                yield from _iter_definitions(getattr(statement, name, []), within)


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


def _iter_imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Also those within functions: passes import what they need where they need it."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((alias.asname or alias.name, alias.name.rpartition(".")[2]) for alias in node.names)


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

    def find_places(self, span: Span) -> dict[DefinitionPlace, Span]:
        """The definitions that have a line of ``span``, and their lines."""
        source = self.find_source(span.file)
        parts = [] if source is None else source.find_at(span.first, span.last)
        return {(span.file, part.name): Span(span.file, part.first, part.last) for part in parts}

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
            elif head in source.imports:
                # A definition of another file, or the module that has it.
                name, inner = source.imports[head], rest.partition(".")[0]
                for file in self.files:
                    other, wanted = self.find_source(file), inner if PurePosixPath(file).stem == name else name
                    if other is not None and wanted in other.names:
                        yield file, wanted
