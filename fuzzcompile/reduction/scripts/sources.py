"""Case sources as text: the part kept in a reproducer, and the difference between two cases."""

from __future__ import annotations

import ast
import difflib

_MAIN = "__main__"
# Functions of torch that make a tensor on the default device, unless they are told another.
MAKES = frozenset({
    "arange", "empty", "empty_permuted", "empty_strided", "eye", "full", "linspace", "logspace", "ones", "rand",
    "randint", "randn", "randperm", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros",
})  # fmt: skip


def case_part(source: str) -> str:
    """The source without its module docstring and ``__main__`` part, one blank line between definitions.

    The text within statements stays as it is. Applied twice, it gives the same text as once.
    """
    lines = source.splitlines()
    body = ast.parse(source).body
    dropped = [node for node in body if _is_main(node) or (node is body[0] and _is_docstring(node))]
    kept = [node for node in body if node not in dropped]
    gone = {number for node in dropped for number in _numbers(node)}
    inside = {number for node in kept for number in _numbers(node)}
    result: list[str] = []
    for number, line in enumerate(lines, start=1):
        blank = not line.strip() and number not in inside
        if number in gone or (blank and (not result or not result[-1].strip())):
            continue
        result.append("" if blank else line)
    while result and not result[-1].strip():
        result.pop()
    return "\n".join(result) + "\n"


def only_difference(source: str, changed: str) -> tuple[str, str] | None:
    """The one line in which the sources differ, before and after; None if they differ in more."""
    before, after = _meant_lines(source), _meant_lines(changed)
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    changes = [change for change in matcher.get_opcodes() if change[0] != "equal"]
    if len(changes) != 1:
        return None
    tag, start, stop, after_start, after_stop = changes[0]
    if tag != "replace" or stop - start != 1 or after_stop - after_start != 1:
        return None
    return before[start], after[after_start]


def names_bound(source: str) -> set[str]:
    """Names that the module's top-level statements bind, those in branches and comprehensions too."""
    bound: set[str] = set()
    for node in ast.parse(source).body:
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
    program = (
        node for node in ast.parse(source).body if not (isinstance(node, ast.FunctionDef) and node.name == "make")
    )
    calls = (node for part in program for node in ast.walk(part) if isinstance(node, ast.Call))
    return any(
        isinstance(call.func, ast.Attribute)
        and call.func.attr in MAKES
        and "device" not in {keyword.arg for keyword in call.keywords}
        for call in calls
    )


def _meant_lines(source: str) -> list[str]:
    lines = [line.strip() for line in case_part(source).splitlines()]
    return [line for line in lines if line]


def _numbers(node: ast.stmt) -> range:
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    return range(first, (node.end_lineno or node.lineno) + 1)


def _is_docstring(node: ast.stmt) -> bool:
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _is_main(node: ast.stmt) -> bool:
    if not isinstance(node, ast.If) or not isinstance(node.test, ast.Compare):
        return False
    parts = [node.test.left, *node.test.comparators]
    names = {part.id for part in parts if isinstance(part, ast.Name)}
    constants = {part.value for part in parts if isinstance(part, ast.Constant)}
    return names == {"__name__"} and constants == {_MAIN}
