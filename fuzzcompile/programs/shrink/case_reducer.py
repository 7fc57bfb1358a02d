"""Reduce the text of a case: leave out statements and arguments, unwrap blocks, simplify expressions, lower numbers.

For bugs outside the captured graphs: in Python state that a custom ``run`` changes, in written attributes, in function
transforms. Every candidate is a whole file; one that raises in eager costs no compile.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import TypeGuard

from fuzzcompile.programs.ir.case_source import MOST_LITERALS
from fuzzcompile.run.seats import read_size

# Functions that a case file cannot do without.
_ENTRY = ("make", "run")
_BODIES = ("body", "orelse", "finalbody")
_FORMS_GROUP = re.compile(r"[\w.]*\binit_process_group\(")
Test = Callable[[str], bool]


def reduce_text(source: str, holds: Test) -> str:
    """The smallest Python text found that still ``holds``, as ``source`` does.

    Each text is asked about once; an exception from ``holds`` ends the search and propagates.
    """
    asked: dict[str, bool] = {source: True}
    known = _find_unbound_names(source)

    def test(text: str) -> bool:
        if text not in asked:
            asked[text] = _parses(text) and _find_unbound_names(text) <= known and holds(text)
        return asked[text]

    before = None
    while before != source:
        before = source
        for candidates in (without_run, leave_out_calls, _leave_out_unused, _return_one_value, _fill_plainly):
            source = _while_any_holds(source, test, candidates)
        source = _leave_out_statements(source, test)
        for candidates in (
            _unwrap_blocks,
            _leave_out_inputs,
            _leave_out_unused,
            _simplify_expressions,
            _leave_out_elements,
            _leave_out_keywords,
            _leave_out_targets,
        ):
            source = _while_any_holds(source, test, candidates)
        source = _lower_numbers(source, test)
    return source


def _parses(text: str) -> bool:
    try:
        compile(text, "case", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def _find_unbound_names(text: str) -> set[str]:
    """Names that a text reads and binds nowhere: it would raise where it does."""
    read, bound = set[str](), {"__file__", *dir(builtins)}
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                read.add(name)
            case ast.Name(id=name) | ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                bound.add(name)
            case ast.alias(name=module, asname=name):
                bound.add(name or module.partition(".")[0])
            case ast.ClassDef(name=str(name)) | ast.ExceptHandler(name=str(name)):
                bound.add(name)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                bound.add(name)
    return set() if "*" in bound else read - bound


def _while_any_holds(source: str, test: Test, candidates: Callable[[str], Iterator[str]]) -> str:
    """The text after every candidate that holds, each made of the one before."""
    position = 0
    while (candidate := next(itertools.islice(candidates(source), position, None), None)) is not None:
        if candidate != source and test(candidate):
            source = candidate
        else:
            position += 1
    return source


# The way a case is driven: a custom ``run``, further ``CALLS``.


def without_run(source: str) -> Iterator[str]:
    """The source without its ``run``, if it has one."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == "run":
            yield _replace_lines(source, node, [])


def leave_out_calls(source: str) -> Iterator[str]:
    """The source with fewer CALLS: with none, with the last only, then without each single one."""
    assigned = [node for node in ast.parse(source).body if isinstance(node, ast.Assign)]
    calls = next((node for node in assigned if "CALLS" in map(ast.unparse, node.targets)), None)
    if calls is None or not isinstance(calls.value, ast.List | ast.Tuple):
        return
    texts = [ast.get_source_segment(source, element) or ast.unparse(element) for element in calls.value.elts]
    yield _replace_lines(source, calls, [])
    if len(texts) > 1:
        for kept in (texts[-1:], *([*texts[:index], *texts[index + 1 :]] for index in range(len(texts)))):
            yield _replace_lines(source, calls, [f"CALLS = [{', '.join(kept)}]"])


def _replace_lines(source: str, node: ast.stmt, instead: list[str]) -> str:
    lines = source.splitlines()
    return "\n".join([*lines[: node.lineno - 1], *instead, *lines[node.end_lineno or node.lineno :]]) + "\n"


# Statements: attributes never read, names never loaded, then any.


def find_unused_statements(source: str) -> list[ast.stmt]:
    """Statements that only bind attributes of ``self``, names, functions or classes that the source never reads.

    Their right-hand sides may still matter (by drawing random numbers, say), so the text without them has to be tested
    like any other candidate.
    """
    tree = ast.parse(source)
    in_class = {id(own) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for own in node.body}
    read = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    loaded = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return list(_find_outermost(tree, read, loaded, in_class))


def _find_outermost(tree: ast.AST, read: set[str], loaded: set[str], in_class: set[int]) -> Iterator[ast.stmt]:
    for node in ast.iter_child_nodes(tree):
        # What a class body binds is read as an attribute.
        if isinstance(node, ast.stmt) and _is_unused(node, read, loaded | read if id(node) in in_class else loaded):
            yield node
        else:
            yield from _find_outermost(node, read, loaded, in_class)


def _is_unused(node: ast.stmt, read: set[str], loaded: set[str]) -> bool:
    if isinstance(node, ast.Assign):
        return all(_is_idle(target, read, loaded) for target in node.targets)
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
        return getattr(node, "module", None) != "__future__" and not any(name in loaded for name in names)
    if isinstance(node, ast.FunctionDef):
        special = node.name in (*_ENTRY, "forward") or (node.name.startswith("__") and node.name.endswith("__"))
        return not special and node.name not in loaded and node.name not in read
    return isinstance(node, ast.ClassDef) and node.name not in loaded


def _is_idle(target: ast.expr, read: set[str], loaded: set[str]) -> bool:
    """Return whether nothing reads the target; upper-case names are settings, which the judge reads."""
    if isinstance(target, ast.Tuple | ast.List):
        return bool(target.elts) and all(_is_idle(part, read, loaded) for part in target.elts)
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
        return target.attr not in read
    return isinstance(target, ast.Name) and target.id not in loaded and not target.id.isupper()


def _leave_out_unused(source: str) -> Iterator[str]:
    if unused := find_unused_statements(source):
        yield _cut(source, unused)


def _leave_out_statements(source: str, test: Test) -> str:
    """Leave out statements, outermost and last first: all of one depth together, then in halves down to single ones."""
    for depth in itertools.count():
        size = len(_list_removable(source, depth))
        if not size:
            break
        while size >= 1:
            end = len(_list_removable(source, depth))
            while end > 0:  # uses go before definitions
                candidate = _cut(source, _list_removable(source, depth)[max(0, end - size) : end])
                if candidate != source and test(candidate):
                    source = candidate
                end -= size
            size //= 2
    return source


def _list_removable(source: str, depth: int) -> list[ast.stmt]:
    level: list[ast.stmt] = ast.parse(source).body
    for _ in range(depth):
        level = [inner for statement in level for block in _list_blocks(statement) for inner in block]
    return [
        statement
        for statement in level
        if not isinstance(statement, ast.Pass)
        # A module without it runs in some ways and fails in others.
        and ast.unparse(statement) != "super().__init__()"
        and not (isinstance(statement, ast.FunctionDef) and statement.name in _ENTRY and depth == 0)
        and not _is_of_group(statement)
    ]


def _is_of_group(statement: ast.stmt) -> bool:
    """Return whether a statement says how many processes run the case, or forms their group."""
    if isinstance(statement, ast.Assign):
        return ast.unparse(statement.targets[0]) == "NPROC"
    return isinstance(statement, ast.Expr) and _FORMS_GROUP.match(ast.unparse(statement)) is not None


def _list_blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    """The blocks of statements within a statement: bodies, and those of its handlers and cases."""
    blocks = [getattr(statement, name, []) for name in _BODIES]
    blocks += [part.body for name in ("handlers", "cases") for part in getattr(statement, name, [])]
    return [block for block in blocks if block]


def _unwrap_blocks(source: str) -> Iterator[str]:
    """The source with one of its blocks in the place of the whole ``if``, ``with``, ``for``, ``try`` or ``match``."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.If | ast.With | ast.For | ast.While | ast.Try | ast.Match):
            continue
        if not lines[node.lineno - 1][: node.col_offset].strip():  # an ``elif`` begins within a line
            for block in _list_blocks(node):
                inner = textwrap.dedent("\n".join(lines[block[0].lineno - 1 : block[-1].end_lineno]))
                yield _replace_lines(source, node, textwrap.indent(inner, " " * node.col_offset).splitlines())


def _leave_out_inputs(source: str) -> Iterator[str]:
    """The source without one of the inputs that ``make`` returns, and the argument that the program takes it by."""
    tree = ast.parse(source)
    made = next((node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "make"), None)
    given = made.body[-1].value if made is not None and isinstance(made.body[-1], ast.Return) else None
    if not (isinstance(given, ast.Tuple) and len(given.elts) == 2 and isinstance(given.elts[1], ast.Tuple)):
        return
    inputs = given.elts[1]
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    names = {node.id for node in ast.walk(given.elts[0]) if isinstance(node, ast.Name)}
    takers = [node for node in functions if node.name == "forward" or node.name in names]
    for number in range(len(inputs.elts)):
        for taker in takers:
            own = taker.args.args
            at = number + bool(own and own[0].arg == "self")
            if len(own) > at and len(inputs.elts) > 1:
                changed = _replace_span(source, inputs, _format_elements(source, inputs, number))
                text = ", ".join(ast.unparse(argument) for argument in (*own[:at], *own[at + 1 :]))
                first, last = own[0], own[-1]
                if first.lineno == last.end_lineno and not taker.args.defaults:
                    yield _replace_span(changed, first, text, end=last.end_col_offset)


def _leave_out_elements(source: str) -> Iterator[str]:
    """The source without one element of a tuple, list, set or dict."""
    for node in ast.walk(ast.parse(source)):
        if _is_display(node) and node.lineno == node.end_lineno:
            parts = node.keys if isinstance(node, ast.Dict) else node.elts
            wrapped = (_read_text(source, node)).startswith(("(", "[", "{"))
            for number in range(len(parts)) if len(parts) > (isinstance(node, ast.Tuple) + (not wrapped)) else ():
                yield _replace_span(source, node, _format_elements(source, node, number))


Display = ast.Tuple | ast.List | ast.Set | ast.Dict


def _is_display(node: ast.AST) -> TypeGuard[Display]:
    """Return whether a node is a tuple, list, set or dict that is written out, and no target or index."""
    if not isinstance(node, Display) or isinstance(getattr(node, "ctx", None), ast.Store | ast.Del):
        return False
    return isinstance(node, ast.Dict) or not any(isinstance(element, ast.Slice) for element in node.elts)


def _format_elements(source: str, node: Display, left_out: int) -> str:
    """The text of a display without one of its elements."""
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        texts = [
            f"{ast.unparse(key)}: {_read_text(source, value)}" if key else f"**{_read_text(source, value)}"
            for key, value in pairs
        ]
    else:
        texts = [_read_text(source, element) for element in node.elts]
    inner = ", ".join(texts[:left_out] + texts[left_out + 1 :])
    if isinstance(node, ast.Tuple):
        wrapped = (ast.get_source_segment(source, node) or "(").startswith("(")
        inner += "," * (len(texts) == 2)
        return f"({inner})" if wrapped else inner
    return f"[{inner}]" if isinstance(node, ast.List) else f"{{{inner}}}"


def _read_text(source: str, node: ast.expr) -> str:
    return ast.get_source_segment(source, node) or ast.unparse(node)


def _leave_out_targets(source: str) -> Iterator[str]:
    """The source with a call alone in the place of its assignment to a name that nothing reads."""
    lines, tree = source.splitlines(), ast.parse(source)
    loaded = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            target = node.targets[0]
            if isinstance(target, ast.Name) and target.id not in loaded and node.lineno == node.end_lineno:
                yield _replace_lines(source, node, [lines[node.lineno - 1].replace(f"{target.id} = ", "", 1)])


def in_one_process(source: str) -> str:
    """A case without the processes that it asks for, and without the call that forms their group."""
    of_group = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt) and _is_of_group(node)]
    for node in sorted(of_group, key=lambda node: -node.lineno):
        source = _replace_lines(source, node, [])
    return source


_MESH_SHAPE = re.compile(r"(?<=init_device_mesh\()([^()]*)\(([\d, ]+)\)")


def in_two_processes(source: str) -> Iterator[str]:
    """A case of more processes with two of them, and its meshes with two places along one of their dimensions."""
    if (read_size(source) or 0) <= 2:
        return
    fewer = re.sub(r"^NPROC *= *\d+", "NPROC = 2", source, flags=re.MULTILINE)
    dimensions = max((len(ast.literal_eval(f"({shape[2]})")) for shape in _MESH_SHAPE.finditer(source)), default=0)
    for long in range(max(1, dimensions)):
        sizes = tuple(2 if at == long else 1 for at in range(dimensions))
        yield _MESH_SHAPE.sub(rf"\1{sizes}", fewer)


def without_setting(source: str, name: str) -> str | None:
    """The text without a setting of the case; None where it has none of that name."""
    assigned = [node for node in ast.parse(source).body if isinstance(node, ast.Assign)]
    setting = [node for node in assigned if isinstance(node.targets[0], ast.Name) and node.targets[0].id == name]
    return _cut(source, setting) if setting else None


def _cut(source: str, statements: Sequence[ast.stmt]) -> str:
    """The text without these statements, with ``pass`` in a body that would be empty."""
    lines: list[str | None] = list(source.splitlines())
    gone = {(s.lineno, s.end_lineno) for s in statements}
    for statement in statements:
        first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", []))])
        for number in range(first, (statement.end_lineno or first) + 1):
            lines[number - 1] = None
    for node in ast.walk(ast.parse(source)):
        for name in _BODIES:
            body = [] if isinstance(node, ast.Module) else getattr(node, name, [])
            if isinstance(body, list) and body and all((s.lineno, s.end_lineno) in gone for s in body):
                lines[body[0].lineno - 1] = " " * body[0].col_offset + "pass"
    return "\n".join(line for line in lines if line is not None) + "\n"


# Cases of torch's tables: an operator called on several samples, of values that are written out one by one.


def _return_one_value(source: str) -> Iterator[str]:
    """The source with one of the values that a function returns, without what only the others needed."""
    functions = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    for function in (each for each in functions if each.name not in _ENTRY):
        returned = function.body[-1].value if isinstance(function.body[-1], ast.Return) else None
        if not isinstance(returned, ast.Tuple) or returned.lineno != returned.end_lineno:
            continue
        for value in returned.elts:
            changed = _replace_span(source, returned, _read_text(source, value))
            while unused := find_unused_statements(changed):
                changed = _cut(changed, unused)
            yield changed


def _fill_plainly(source: str) -> Iterator[str]:
    """The source with ``torch.randn`` and the like for tensors of many numbers: all of them, then each."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    filled = [(node, text) for node in calls if (text := _find_plain_tensor(source, node)) is not None]
    later_first = sorted(filled, key=lambda pair: (pair[0].lineno, pair[0].col_offset), reverse=True)
    everything = source
    for node, text in later_first:
        everything = _replace_span(everything, node, text)
    yield everything
    yield from (_replace_span(source, node, text) for node, text in filled)


def _find_plain_tensor(source: str, node: ast.Call) -> str | None:
    """A call that makes a tensor of the shape and the kind of numbers of one that is written out in many."""
    if ast.unparse(node.func) != "torch.tensor" or len(node.args) != 1 or node.lineno != node.end_lineno:
        return None
    shape, first = list[int](), node.args[0]
    while isinstance(first, ast.List) and first.elts:
        shape.append(len(first.elts))
        first = first.elts[0]
    if math.prod(shape) <= MOST_LITERALS:
        return None
    numbers = {type(leaf.value) for leaf in ast.walk(node.args[0]) if isinstance(leaf, ast.Constant)}
    sizes = ", ".join(map(str, shape))
    options = "".join(f", {ast.unparse(keyword)}" for keyword in node.keywords)
    if numbers == {bool}:
        return f"(torch.rand({sizes}) > 0.5)"
    return f"torch.randn({sizes}{options})" if float in numbers else f"torch.zeros({sizes}, dtype=torch.int64)"


# Expressions, arguments and numbers.


def _simplify_expressions(source: str) -> Iterator[str]:
    for whole, part in (pair for node in ast.walk(ast.parse(source)) for pair in _list_parts(node)):
        if whole.lineno == whole.end_lineno:
            inner = ast.get_source_segment(source, part) or ""
            inner = f"({inner})" if isinstance(part, ast.BinOp | ast.GeneratorExp | ast.IfExp | ast.BoolOp) else inner
            yield _replace_span(source, whole, inner)


def _list_parts(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Pairs of an expression and a part that may replace it: an operand, an argument, an element that is returned."""
    if isinstance(node, ast.BinOp):
        yield from ((node, node.left), (node, node.right))
    elif isinstance(node, ast.IfExp):
        yield from ((node, node.body), (node, node.orelse))
    elif isinstance(node, ast.BoolOp):
        yield from ((node, value) for value in node.values)
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
        yield node, node.operand
    elif isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
        yield from ((node.value, element) for element in node.value.elts)
    elif isinstance(node, ast.Call):
        method = isinstance(node.func, ast.Attribute)
        yield from ((node, argument) for argument in node.args[: 1 + method] if not isinstance(argument, ast.Constant))
        if isinstance(node.func, ast.Attribute) and not isinstance(node.func.value, ast.Name | ast.Constant):
            yield node, node.func.value


def _leave_out_keywords(source: str) -> Iterator[str]:
    """Leave out a keyword argument and the comma before it, if they stand on one line."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    for keyword in (keyword for call in calls for keyword in call.keywords if keyword.arg):
        before = source.splitlines()[keyword.lineno - 1].encode()[: keyword.col_offset].rstrip()
        if keyword.lineno == keyword.end_lineno and before.endswith(b","):
            yield _replace_span(source, keyword, "", start=len(before) - 1)


def _replace_span(
    source: str, node: ast.expr | ast.keyword | ast.arg, text: str, *, start: int | None = None, end: int | None = None
) -> str:
    lines = source.splitlines(keepends=True)
    line = lines[node.lineno - 1].encode()
    start = node.col_offset if start is None else start
    lines[node.lineno - 1] = (
        line[:start] + text.encode() + line[node.end_col_offset if end is None else end :]
    ).decode()
    return "".join(lines)


def _lower_numbers(source: str, test: Test) -> str:
    done: set[int] = set()
    while numbers := {number for number, _ in _list_numbers(source)} - done:
        number = max(numbers)
        done.add(number)
        for smaller in (2, 1, 3, number // 2):
            candidate = source
            places = [node for value, node in _list_numbers(source) if value == number]
            for node in sorted(places, key=lambda node: (node.lineno, node.col_offset), reverse=True):
                candidate = _replace_span(candidate, node, str(smaller))
            if smaller < number and test(candidate):
                source = candidate
                break
    return source


def _list_numbers(source: str) -> list[tuple[int, ast.Constant]]:
    constants = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    return [(node.value, node) for node in constants if type(node.value) is int and node.value > 3]
