"""The settings that guard the frames of a traceback: what raises behind one does not run where it is off."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import textwrap
import traceback
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType, FrameType

from fuzzcompile.compiler.torch_config import CONFIGS, MISSING
from fuzzcompile.compiler.watch.compiler_errors import list_causes
from fuzzcompile.model.stages import is_compiler
from fuzzcompile.run.code_files import shorten_file
from fuzzcompile.run.observation import GuardedPlace

_LEAVING = (ast.Return, ast.Continue, ast.Break, ast.Raise)


def list_guarded_places(error: BaseException) -> tuple[GuardedPlace, ...]:
    """The frames of the compiler that its error came through behind a boolean setting that is on, innermost first."""
    found: dict[tuple[str, str], GuardedPlace] = {}
    for cause in reversed(list_causes(error)):
        inner: tuple[str, int, str] | None = None
        for frame, line in reversed(list(traceback.walk_tb(cause.__traceback__))):
            file = shorten_file(frame.f_code.co_filename)
            if not is_compiler(file):
                continue
            here = file, line, frame.f_code.co_name
            for config, key in _iter_settings(frame, line):
                found.setdefault((config, key), GuardedPlace(config, key, *(inner or here)))
            inner = file, frame.f_code.co_firstlineno, frame.f_code.co_name
    return tuple(found.values())


def _iter_settings(frame: FrameType, line: int) -> Iterator[tuple[str, str]]:
    """Config and entry of the settings in the conditions under which a line of a frame is reached."""
    tree, first = _read_function(frame.f_code)
    if tree is None:
        return
    names = {**frame.f_globals, **_list_imports(tree)}
    for test in _iter_tests(tree.body, line - first + 1):
        for node in ast.walk(test):
            setting = _find_setting(node, names) if isinstance(node, ast.Attribute) else None
            if setting is not None:
                yield setting


@functools.cache  # a reduction meets the same functions in every error
def _read_function(code: CodeType) -> tuple[ast.Module | None, int]:
    """The tree of a function that reads a config, and its first line; None for any other."""
    if not any("config" in name for name in (*code.co_names, *code.co_varnames)):
        return None, 0
    try:
        lines, first = inspect.getsourcelines(code)
        return ast.parse(textwrap.dedent("".join(lines))), first
    except (OSError, SyntaxError, TypeError):  # the file is gone, or a part of a line is all there is of the code
        return None, 0


def _iter_tests(block: Sequence[ast.stmt], line: int) -> Iterator[ast.expr]:
    """The conditions around a line, and those before it under which a block is left."""
    for statement in block:
        if statement.lineno > line:
            return
        if (statement.end_lineno or statement.lineno) < line:
            if isinstance(statement, ast.If) and isinstance(statement.body[-1], _LEAVING):
                yield statement.test
            continue
        if isinstance(statement, (ast.If, ast.While)):
            yield statement.test
        inner = [value for _, value in ast.iter_fields(statement) if isinstance(value, list)]
        blocks = [value for value in inner if value and isinstance(value[0], ast.stmt)]
        for part in blocks:
            yield from _iter_tests(part, line)
        if not blocks:
            yield from (node.test for node in ast.walk(statement) if isinstance(node, ast.IfExp))
            yield from (node for node in ast.walk(statement) if isinstance(node, ast.BoolOp))


def _list_imports(tree: ast.Module) -> dict[str, object]:
    """The modules that a function imports, by name; its other local names are not read: that may crash the process."""
    found: dict[str, object] = {}
    for node in ast.walk(tree):
        for alias in node.names if isinstance(node, (ast.Import, ast.ImportFrom)) else ():
            whole = f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
            bound = alias.asname or (whole.partition(".")[0] if isinstance(node, ast.Import) else alias.name)
            module = whole if alias.asname or isinstance(node, ast.ImportFrom) else bound
            found |= {bound: sys.modules[module]} if module in sys.modules else {}
    return found


def _find_setting(node: ast.Attribute, known: Mapping[str, object]) -> tuple[str, str] | None:
    """The config and the entry that an attribute is, if it is one that is on."""
    names: list[str] = []
    owner: ast.expr = node
    while isinstance(owner, ast.Attribute):
        names.insert(0, owner.attr)
        owner = owner.value
    if not isinstance(owner, ast.Name):
        return None
    value = known.get(owner.id, MISSING)
    configs = {id(sys.modules[module]): name for name, module in CONFIGS.items() if module in sys.modules}
    for number, name in enumerate(names):
        if id(value) in configs:
            key, config = ".".join(names[number:]), configs[id(value)]
            for part in names[number:]:
                value = getattr(value, part, MISSING)
            return (config, key) if value is True else None
        value = getattr(value, name, MISSING)
    return None
