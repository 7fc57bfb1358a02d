"""Reduce the text of a case: leave out statements and arguments, simplify expressions, lower numbers.

For bugs outside the captured graphs: in written attributes, a custom ``run``, function transforms. Every candidate is
a whole file; one that raises in eager costs no compile.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator, Sequence

# The unused parts of a source: attributes never read, names never loaded, superfluous calls of a case.


def find_unused_statements(source: str) -> list[ast.stmt]:
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


def leave_out_calls(source: str) -> Iterator[str]:
    """The source with fewer CALLS: with none, with the last only, then without each single one."""
    calls = _calls(source)
    if calls is None or not isinstance(calls.value, ast.List | ast.Tuple):
        return
    elements = calls.value.elts
    yield _replace_calls(source, calls, None)
    if len(elements) > 1:
        yield _replace_calls(source, calls, elements[-1:])
        for index in range(len(elements)):
            yield _replace_calls(source, calls, [*elements[:index], *elements[index + 1 :]])


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


def _replace_calls(source: str, calls: ast.Assign, elements: Sequence[ast.expr] | None) -> str:
    if elements is None:
        return _without_lines(source, calls, [])
    texts = [ast.get_source_segment(source, element) or ast.unparse(element) for element in elements]
    return _without_lines(source, calls, [f"CALLS = [{', '.join(texts)}]"])


def _without_lines(source: str, node: ast.stmt, instead: list[str]) -> str:
    lines = source.splitlines()
    return "\n".join([*lines[: node.lineno - 1], *instead, *lines[node.end_lineno or node.lineno :]]) + "\n"


# Functions that a case file cannot do without.
_ENTRY = ("make", "run")


def reduce_text(source: str, holds: Callable[[str], bool]) -> str:
    """The smallest text found that still ``holds``.

    Args:
        source: Python text that holds.
        holds: the predicate, asked once for each text; an exception from it ends the search and propagates.
    """
    asked: dict[str, bool] = {source: True}

    def test(text: str) -> bool:
        if text not in asked:
            asked[text] = _parses(text) and holds(text)
        return asked[text]

    before = None
    while before != source:
        before = source
        source = _plainly_driven(source, test)
        source = _without_unused(source, test)
        source = _without_statements(source, test)
        source = _without_unused(source, test)
        source = _while_any_holds(source, test, _simpler_expressions)
        source = _while_any_holds(source, test, _without_arguments)
        source = _smaller_numbers(source, test)
    return source


def _plainly_driven(source: str, test: Callable[[str], bool]) -> str:
    """Leave out a custom ``run`` and as many further ``CALLS`` as possible."""
    plain = without_run(source)
    if plain is not None and test(plain):
        source = plain
    while True:
        fewer = next((candidate for candidate in leave_out_calls(source) if test(candidate)), None)
        if fewer is None:
            return source
        source = fewer


def _without_unused(source: str, test: Callable[[str], bool]) -> str:
    """Leave out all unused statements together, until none is left."""
    while True:
        unused = find_unused_statements(source)
        candidate = _cut(source, unused) if unused else source
        if candidate == source or not test(candidate):
            return source
        source = candidate


def _without_statements(source: str, test: Callable[[str], bool]) -> str:
    """Leave out statements, outermost and last first: all of one depth together, then in halves down to single ones."""
    depth = 0
    while True:
        count = len(_removable(source, depth))
        if count == 0:
            return source
        size = count
        while size >= 1:
            end = len(_removable(source, depth))
            while end > 0:  # uses go before definitions
                places = _removable(source, depth)[max(0, end - size) : end]
                candidate = _cut(source, places)
                if candidate != source and test(candidate):
                    source = candidate
                end -= size
            size //= 2
        depth += 1


def _removable(source: str, depth: int) -> list[ast.stmt]:
    """Statements at one depth of nesting, in the order of the text."""
    level: list[ast.stmt] = ast.parse(source).body
    for _ in range(depth):
        level = [inner for statement in level for inner in _inside(statement)]
    return [
        statement
        for statement in level
        if not isinstance(statement, ast.Pass)
        and not _is_initialiser(statement)
        and not (isinstance(statement, ast.FunctionDef) and statement.name in _ENTRY and depth == 0)
    ]


def _is_initialiser(statement: ast.stmt) -> bool:
    """``super().__init__()``: a module without it runs in some ways and fails in others."""
    return isinstance(statement, ast.Expr) and ast.unparse(statement) == "super().__init__()"


def _inside(statement: ast.stmt) -> Iterator[ast.stmt]:
    for name in ("body", "orelse", "finalbody"):
        yield from getattr(statement, name, [])


def _cut(source: str, statements: list[ast.stmt]) -> str:
    """The text without these statements, with ``pass`` in a body that would be empty."""
    lines = source.splitlines()
    gone = {(s.lineno, s.end_lineno) for s in statements}
    for node in ast.walk(ast.parse(source)):
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(node, ast.Module) or not isinstance(body, list) or not body:
                continue
            if all((s.lineno, s.end_lineno) in gone for s in body):
                lines[body[0].lineno - 1] = " " * body[0].col_offset + "pass\0"
    for statement in statements:
        first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", []))])
        for number in range(first, (statement.end_lineno or first) + 1):
            if not lines[number - 1].endswith("\0"):
                lines[number - 1] = "\0gone"
    kept = [line.removesuffix("\0") for line in lines if line != "\0gone"]
    return "\n".join(kept) + "\n"


def _while_any_holds(
    source: str, test: Callable[[str], bool], candidates: Callable[[str], Iterator[str | None]]
) -> str:
    """Take each of the ``candidates`` of the text that holds, and go on with those of the new text."""
    position = 0
    while True:
        try:
            candidate = next(itertools.islice(candidates(source), position, None))
        except StopIteration:
            return source
        if candidate is not None and candidate != source and test(candidate):
            source = candidate
        else:
            position += 1


def _simpler_expressions(source: str) -> Iterator[str | None]:
    """Replace expressions by a part of themselves: an operand, an argument, an element of a returned tuple."""
    return (_replace_expression(source, *pair) for node in ast.walk(ast.parse(source)) for pair in _parts(node))


def _parts(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Pairs of an expression and a part that may replace it."""
    if isinstance(node, ast.BinOp):
        yield from ((node, node.left), (node, node.right))
    elif isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
        yield from ((node.value, element) for element in node.value.elts)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield from ((node, argument) for argument in node.args[:2] if not isinstance(argument, ast.Constant))
        if not isinstance(node.func.value, ast.Name | ast.Constant):
            yield node, node.func.value
    elif isinstance(node, ast.Call):
        yield from ((node, argument) for argument in node.args[:1] if not isinstance(argument, ast.Constant))


def _replace_expression(source: str, whole: ast.expr, part: ast.expr) -> str | None:
    """The text with an expression replaced by a part of it; None if it spans several lines."""
    if whole.lineno != whole.end_lineno:
        return None
    inner = ast.get_source_segment(source, part) or ""
    return _replace_span(source, whole, f"({inner})" if isinstance(part, ast.BinOp | ast.GeneratorExp) else inner)


def _without_arguments(source: str) -> Iterator[str | None]:
    """Leave out keyword arguments of calls."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return (_without_span(source, keyword) for call in calls for keyword in call.keywords if keyword.arg)


def _without_span(source: str, node: ast.keyword) -> str | None:
    """The text without an argument and the comma before it; None if it spans several lines."""
    before = source.splitlines()[node.lineno - 1].encode()[: node.col_offset].rstrip()
    if node.lineno != node.end_lineno or not before.endswith(b","):
        return None
    return _replace_span(source, node, "", start=len(before) - 1)


def _replace_span(source: str, node: ast.expr | ast.keyword, text: str, *, start: int | None = None) -> str:
    """The source with a node on a single line replaced by ``text``, from column ``start`` (in bytes, as in ast) on."""
    lines = source.splitlines(keepends=True)
    line = lines[node.lineno - 1].encode()
    start = node.col_offset if start is None else start
    lines[node.lineno - 1] = (line[:start] + text.encode() + line[node.end_col_offset :]).decode()
    return "".join(lines)


def _smaller_numbers(source: str, test: Callable[[str], bool]) -> str:
    """Replace integers by 2, 1, 3 or a half, each value in all its places together."""
    done: set[int] = set()
    while True:
        numbers = sorted({n for n, _ in _numbers(source)} - done, reverse=True)
        if not numbers:
            return source
        number = numbers[0]
        done.add(number)
        for smaller in (2, 1, 3, number // 2):
            candidate = _with_number(source, number, smaller)
            if smaller < number and test(candidate):
                source = candidate
                break


def _numbers(source: str) -> Iterator[tuple[int, ast.Constant]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value > 3:
            yield node.value, node


def _with_number(source: str, number: int, smaller: int) -> str:
    places = [node for value, node in _numbers(source) if value == number]
    for node in sorted(places, key=lambda n: (n.lineno, n.col_offset), reverse=True):
        source = _replace_span(source, node, str(smaller))
    return source


def _parses(text: str) -> bool:
    try:
        compile(text, "case", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True
