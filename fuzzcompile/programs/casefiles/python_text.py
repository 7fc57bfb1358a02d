"""Check by its syntax tree whether a program can reach ``torch.compile`` at all.

The answer errs on one side: "no" only where nothing in the text could lead there, however indirectly. A program of
which this module is unsure is run, and the run shows it.
"""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Python text without running it: whether it is valid, what it defines at module level, pasted text put right.

_PROMPT = re.compile(r"^In \[\d+\]: ")
_BLOCKS = (ast.If, ast.Try, ast.With, ast.For, ast.While, ast.TryStar)


@dataclass(frozen=True)
class InvalidPython:
    """A syntax error: the parser's message, and the line (from 1; 0 if the parser names none) with its text."""

    message: str
    line: int = 0
    text: str = ""


def parse_source(source: str) -> ast.Module | InvalidPython:
    """The syntax tree of ``source``, which also compiles; or why there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as invalid escape sequences: the run shows them
        try:
            tree = ast.parse(source)
            compile(tree, "<case>", "exec", dont_inherit=True)
        except SyntaxError as error:
            lines, number = source.splitlines(), error.lineno or 0
            text = lines[number - 1] if 0 < number <= len(lines) else error.text or ""
            return InvalidPython(error.msg, number, text.strip())
        except ValueError as error:  # a null byte
            return InvalidPython(str(error))
        except (RecursionError, MemoryError):
            return InvalidPython("its expressions nest too deeply for Python's parser")
    return tree


def as_program(source: str) -> str:
    """Pasted text as Python: without Markdown fences, interpreter prompts and a notebook's ``%`` and ``!`` lines.

    Returns text that is valid Python already, or stays invalid, unchanged. Lines keep their numbers.
    """
    if isinstance(parse_source(source), ast.Module):
        return source
    lines = ["" if line.lstrip().startswith(("```", "%", "!")) else line for line in source.splitlines()]
    if any(line.startswith(">>> ") for line in lines):
        lines = [line[4:] if line.startswith((">>> ", "... ")) else "" for line in lines]
    lines = [_PROMPT.sub("", line) for line in lines]
    cleaned = "\n".join(lines) + "\n"
    return cleaned if isinstance(parse_source(cleaned), ast.Module) else source


def defines_make(source: str) -> bool:
    """Return whether the text is valid Python and binds the name ``make`` at module level."""
    tree = parse_source(source)
    return isinstance(tree, ast.Module) and binds_make(tree)


def binds_make(tree: ast.Module) -> bool:
    """Return whether the module binds ``make``, to something that may be called without arguments."""
    return any(_binds_make(statement) for statement in at_module_level(tree.body))


def _binds_make(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.FunctionDef):
        # A function with required arguments is a helper of a script.
        needed = len(statement.args.args) - len(statement.args.defaults) + statement.args.kw_defaults.count(None)
        return not needed and statement.name == "make"
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return any((alias.asname or alias.name) == "make" for alias in statement.names)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    targets = [statement.target] if isinstance(statement, ast.AnnAssign) else targets
    return any(isinstance(node, ast.Name) and node.id == "make" for target in targets for node in ast.walk(target))


def at_module_level(statements: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when the module does, those inside of ``if``, ``try``, ``with`` and loops among them."""
    for statement in statements:
        yield statement
        if isinstance(statement, _BLOCKS):
            for name in ("body", "orelse", "finalbody"):
                yield from at_module_level(getattr(statement, name, []))
            for handler in getattr(statement, "handlers", []):
                yield from at_module_level(handler.body)


# In an attribute, a keyword, an imported name or a string that is a name: torch.compile, model.compile(),
# torch._dynamo.optimize, torch_compile=True, "inductor", torch._higher_order_ops (which compile on their own).
_WORDS = ("compile", "dynamo", "inductor", "higher_order")
# What runs code that is not in the text, or finds a name that is not.
_DYNAMIC = {"exec", "eval", "__import__", "globals", "locals", "vars", "__builtins__", "attrgetter", "methodcaller"}
_DYNAMIC_ATTRIBUTES = {"__dict__", "__getattribute__", "__globals__", "load", "attrgetter", "methodcaller"}
_DYNAMIC_MODULES = {"builtins", "code", "ctypes", "imp", "importlib", "pickle", "pkgutil", "runpy", "subprocess"}
_RUNS_PROGRAMS = ("system", "popen", "exec", "spawn", "posix_spawn")
_HARMLESS = {"torch", "numpy"}
_IDENTIFIER = re.compile(r"[\w.\-]+")
_RUNS_TESTS = {"main", "run_tests"}

LOOKED_FOR = (
    "torch.compile, model.compile() and torch._dynamo.optimize, and an import, exec or getattr that could lead there"
)


def may_compile(tree: ast.Module, folder: Path) -> bool:
    """Return whether running the program could call ``torch.compile``.

    Modules beside it in its ``folder`` are imported before others of the same name.
    """
    imports = [alias for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    # Names of modules of the standard library, whose ``compile`` is another one.
    plain = {a.asname or a.name.partition(".")[0] for a in imports if _is_standard(a.name, folder)}
    star = any(isinstance(n, ast.ImportFrom) and any(a.name == "*" for a in n.names) for n in ast.walk(tree))
    return any(_leads_there(node, plain, folder, star=star) for node in ast.walk(tree))


def packages_of_others(tree: ast.Module, folder: Path) -> set[str]:
    """The packages that the program imports and that are neither torch, NumPy, the standard library nor beside it."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    absolute = [node for node in imports if not getattr(node, "level", 0)]
    names = [getattr(node, "module", None) or alias.name for node in absolute for alias in node.names]
    roots = {name.partition(".")[0] for name in names} - _HARMLESS
    return {root for root in roots if not _is_standard(root, folder) and not _is_beside(root, folder)}


def modules_beside(tree: ast.Module, folder: Path) -> Iterator[Path]:
    """The files beside the program that it imports: modules, and those of packages."""
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module] if node.module else names
        for root in {name.partition(".")[0] for name in names}:
            yield from (path for path in (folder / f"{root}.py",) if path.is_file())
            if (folder / root).is_dir():
                yield from sorted((folder / root).rglob("*.py"))


def _is_standard(module: str, folder: Path) -> bool:
    root = module.partition(".")[0]
    return root in (sys.builtin_module_names if _is_beside(root, folder) else sys.stdlib_module_names)


def _is_beside(root: str, folder: Path) -> bool:
    return (folder / f"{root}.py").exists() or (folder / root).is_dir()


def _leads_there(node: ast.AST, plain: set[str], folder: Path, *, star: bool) -> bool:
    if isinstance(node, ast.Import):
        return any(_import_leads_there(alias.name, "", folder) for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        return any(_import_leads_there(module, alias.name, folder) for alias in node.names)
    if isinstance(node, ast.Attribute):
        owner = node.value.id if isinstance(node.value, ast.Name) else None
        if owner in plain:  # re.compile, json.load, os.system
            return owner == "os" and node.attr.startswith(_RUNS_PROGRAMS)
        return node.attr in _DYNAMIC_ATTRIBUTES or _names_it(node.attr)
    if isinstance(node, ast.keyword):
        return _names_it(node.arg or "")
    if isinstance(node, ast.Name):
        return node.id in _DYNAMIC or (star and node.id == "compile")
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return bool(_IDENTIFIER.fullmatch(node.value)) and _names_it(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        return len(node.args) > 1 and not isinstance(node.args[1], ast.Constant)
    return False


def _import_leads_there(module: str, name: str, folder: Path) -> bool:
    root = module.partition(".")[0]
    if _is_standard(module, folder):
        return root in _DYNAMIC_MODULES or (root == "os" and name.startswith(_RUNS_PROGRAMS))
    return not root or _is_beside(root, folder) or root not in _HARMLESS or _names_it(module) or _names_it(name)


def _names_it(name: str) -> bool:
    return any(word in name for word in _WORDS)


def is_pytest_file(tree: ast.Module) -> bool:
    """Return whether the module holds tests for pytest and, run as a script, would run nothing of its own."""
    functions = {s.name for s in at_module_level(tree.body) if isinstance(s, ast.FunctionDef | ast.AsyncFunctionDef)}
    classes = {s.name: s for s in at_module_level(tree.body) if isinstance(s, ast.ClassDef)}
    methods = (s for statement in classes.values() for s in statement.body if isinstance(s, ast.FunctionDef))
    has_tests = any(name.startswith("test") for name in (*functions, *(method.name for method in methods)))
    return has_tests and not any(_runs(call, functions | set(classes)) for call in _calls_at_import(tree))


def _calls_at_import(tree: ast.Module) -> Iterator[ast.Call]:
    """Calls made by the statements of the module, bodies of functions and classes left out."""
    for statement in at_module_level(tree.body):
        run: ast.AST | None = None
        if isinstance(statement, ast.Expr | ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Raise | ast.Assert):
            run = statement
        elif isinstance(statement, ast.For | ast.If | ast.While):
            run = statement.iter if isinstance(statement, ast.For) else statement.test
        yield from (node for node in ast.walk(run) if isinstance(node, ast.Call)) if run is not None else ()


def _runs(call: ast.Call, own: set[str]) -> bool:
    if isinstance(call.func, ast.Name):
        return call.func.id in own | _RUNS_TESTS
    if isinstance(call.func, ast.Attribute):
        return call.func.attr in _RUNS_TESTS or _names_it(call.func.attr)
    return True  # f(x)(y): what is called is not known
