"""Read what a user names as CASE, and refuse at once what cannot be one."""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar, cast

from fuzzcompile.model.errors import CaseError, format_message
from fuzzcompile.model.hints import format_command
from fuzzcompile.run.seats import read_size

Kind = Literal["case", "script", "notebook", "call"]
SENT_SUFFIX = ".call"
"""How the name of a file ends that holds a call of another process (:mod:`fuzzcompile.programs.capture.invocation`)."""
Report = TypeVar("Report")


@dataclass(frozen=True)
class CaseFile:
    """A file that may be judged.

    Of kind ``case`` it defines ``make()``; a ``script`` or a ``notebook`` is run up to a compiled call; a ``call`` was
    sent by another process and holds no text. ``source`` is its program: valid Python, its lines numbered as in the
    file. Those of a notebook are its ``cells`` one after another, given by number with the line where each begins;
    ``notes`` say for readers of the report what was left out of it. A script gets ``arguments`` in ``sys.argv``.
    """

    path: Path
    kind: Kind
    source: str
    cells: tuple[tuple[int, int], ...] = ()
    notes: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()

    @property
    def program(self) -> str:
        """The source that runs alike without ``arguments``: it begins by putting them into ``sys.argv``."""
        if not self.arguments:
            return self.source
        sets, lines = f"import sys\n\nsys.argv[1:] = {list(self.arguments)}\n", self.source.splitlines(keepends=True)
        head = 0  # a docstring and __future__ imports have to stay first
        for statement in ast.parse(self.source).body:
            if not (isinstance(statement, ast.ImportFrom) and statement.module == "__future__") and not (
                head == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            ):
                break
            head = statement.end_lineno or head
        return "".join([*lines[:head], sets, *lines[head:]])

    def place(self, line: int) -> str:
        """A line of the program as a user knows it: ``line 12``, or ``cell 3, line 2``."""
        number, first = max((cell for cell in self.cells if cell[1] <= line), default=(0, 1))
        return f"cell {number}, line {line - first + 1}" if number else f"line {line}"

    def locate(self, report: Report) -> Report:
        """A report in its JSON form, with places as a user knows them; unchanged unless the file is a notebook."""
        if self.kind != "notebook":
            return report
        pattern = re.compile(rf'({re.escape(self.path.name)})(:|", )(?:line )?(\d+)')

        def put_places(value: object) -> object:
            if isinstance(value, str):
                return pattern.sub(lambda match: f"{match[1]}{match[2]}{self.place(int(match[3]))}", value)
            if isinstance(value, dict):
                return {key: put_places(item) for key, item in value.items()}
            return [put_places(item) for item in value] if isinstance(value, list) else value

        return cast(Report, put_places(report))


def looks_like_path(name: str) -> bool:
    """Return whether a user who typed ``name`` meant a file rather than a finding."""
    return name.endswith((".py", ".ipynb")) or ("/" in name and ":" not in name)  # signatures have both


def defines_make(source: str) -> bool:
    """Return whether the text is valid Python and binds the name ``make`` at module level."""
    tree = _parse(source)
    return isinstance(tree, ast.Module) and any(map(_binds_make, _at_module_level(tree.body)))


def count_processes(source: str) -> int | None:
    """The number of processes that a case file asks for as ``NPROC``; None for one, and for what is no case file."""
    asked = read_size(source)
    return asked if asked is not None and defines_make(source) else None


def read_case_file(path: Path) -> CaseFile:
    """Read a case file, script or notebook. Nothing of it runs, and torch is not imported.

    CaseError, which says what to do, if it does not exist, is no Python or no notebook, holds tests for pytest, or can
    reach ``torch.compile`` nowhere.
    """
    if path.suffix == SENT_SUFFIX:
        return CaseFile(path, "call", "")
    text = read_source(path)
    if path.suffix == ".ipynb":
        return _read_notebook(path, text)
    program = _as_program(text)
    tree = _parse(program)
    if isinstance(tree, _Invalid):
        where = f" in line {tree.line}: `{tree.text[:100]}`" if tree.line else ""
        raise CaseError(f"{path} is not valid Python: {tree.message}{where}.")
    if any(map(_binds_make, _at_module_level(tree.body))) and not _runs_as_script(tree):
        return CaseFile(path, "case", program)
    if _holds_tests_only(tree):
        raise CaseError(
            f"{path} holds tests, which pytest runs: judge what they compile with `echo 'import pytest; "
            f'pytest.main(["{path}"])\' > run_tests.py && {format_command("triage", "run_tests.py")}`, or take the '
            "fixture `assert_compiles_alike` of fuzzcompile's pytest plugin in a test, and run `pytest`."
        )
    if not _may_compile(tree, path.resolve().parent):
        raise CaseError(
            f"{path} defines no make() and never calls torch.compile (looked for: {_LOOKED_FOR}); compile the model "
            "in it, or define make(), which returns (module, inputs)."
        )
    # ``make`` may come from ``from elsewhere import *``, where nothing in the text compiles.
    froms = [statement for statement in tree.body if isinstance(statement, ast.ImportFrom)]
    star = any(a.name == "*" for s in froms for a in s.names if not (s.module or "").startswith("torch"))
    compiles = any(isinstance(n, ast.Attribute) and n.attr in ("compile", "optimize") for n in ast.walk(tree))
    return CaseFile(path, "case" if star and not compiles else "script", program)


_LARGEST = 32 * 2**20


def read_source(path: Path) -> str:
    """The text of a file that a user names, decoded as Python decodes it; CaseError if it cannot be had."""
    try:
        if path.is_dir():
            raise CaseError(f"{path} is a folder; name a file in it.")
        if path.exists() and not path.is_file():
            raise CaseError(f"{path} is not a regular file, and a case is read more than once; write it to a file.")
        if path.stat().st_size > _LARGEST:
            raise CaseError(f"{path} is larger than any program (over 32 MiB); name a Python file or a notebook.")
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise CaseError(f"{path} does not exist.") from error
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CaseError(f"{path} cannot be read ({reason}); name a Python file or a notebook.") from error
    try:
        text = data.decode(tokenize.detect_encoding(io.BytesIO(data).readline)[0])
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        reason = format_message(error, 120)
        raise CaseError(f"{path} is not text ({reason}); name a Python file or a notebook.") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


# A Jupyter notebook as a script: its code cells one after another, without what only a notebook understands.

# Magics that run Python: what is measured is what is judged.
_RUN_A_CELL = {"time", "timeit", "capture", "prun", "triage"}
_RUN_A_LINE = re.compile(r"^(\s*)%(?:time|timeit|prun|memit)\s+((?:-\w+(?:\s+\d+)?\s+)*)(\S.*)$")
_MAGIC = re.compile(r"^(\s*)(?:[%!?]|[\w.]+\s*=\s*[%!]|[\w.]+\?{1,2}\s*$)")


def _read_notebook(path: Path, text: str) -> CaseFile:
    """The program of a notebook. It ends before the first cell that is no Python, if cells stand before that one.

    Cells are counted as a fresh run numbers them: code cells that are not empty, from 1.
    """
    source, cells, notes = "", list[tuple[int, int]](), list[str]()
    for number, code in enumerate(_list_code_cells(path, text), start=1):
        program, left_out = _as_python(code)
        problem = _parse(program)
        if isinstance(problem, _Invalid):
            sentence = f"cell {number}, line {problem.line} is not valid Python ({problem.message})"
            if "compile" not in source and "optimize" not in source:
                raise CaseError(f"{path}: {sentence}: `{problem.text}`.")
            notes.append(f"{sentence}: the program ends before that cell")
            break
        notes += [f"cell {number}: {what}" for what in left_out]
        cells.append((number, 1 + source.count("\n")))
        source += program
    file, tree = CaseFile(path, "notebook", source, tuple(cells), tuple(notes)), _parse(source)
    # Each cell is valid, and the whole is not: a __future__ import that is no longer first.
    if isinstance(tree, _Invalid):
        raise CaseError(f"{path}: {file.place(tree.line)} is not valid Python ({tree.message}): `{tree.text}`.")
    if not _may_compile(tree, path.resolve().parent):
        raise CaseError(f"{path} never calls torch.compile (looked for: {_LOOKED_FOR}); compile the model in a cell.")
    return file


def _list_code_cells(path: Path, text: str) -> list[str]:
    try:
        notebook = json.loads(text)
        sheets = notebook.get("worksheets") or [notebook]  # nbformat 3 has worksheets
        cells = [cell for sheet in sheets for cell in sheet["cells"] if cell["cell_type"] == "code"]
        sources = [cell["source"] if "source" in cell else cell["input"] for cell in cells]
        code = ["".join(source) if isinstance(source, list) else str(source) for source in sources]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = "its JSON is broken" if isinstance(error, ValueError) else "it has no cells"
        raise CaseError(f"{path} is no notebook ({what}); name a notebook that Jupyter opens, or a script.") from error
    language = _find_language(notebook)
    if language not in ("python", "ipython", "python3"):
        raise CaseError(f"{path} is a notebook of {language}; name one of Python.")
    code = [cell for cell in code if cell.strip()]
    if not code:
        raise CaseError(f"{path} has no code cells; name a notebook that calls torch.compile.")
    return code


def _find_language(notebook: Mapping[str, object]) -> str:
    metadata = notebook.get("metadata")
    for key, name in (("language_info", "name"), ("kernelspec", "language")):
        entry = metadata.get(key) if isinstance(metadata, Mapping) else None
        if isinstance(entry, Mapping) and isinstance(entry.get(name), str):
            return str(entry[name]).lower()
    return "python"


def _as_python(code: str) -> tuple[str, list[str]]:
    """The code of a cell without magics, its lines in their places, and remarks on what became of these."""
    lines = code.rstrip("\n").split("\n")
    first = next(index for index, line in enumerate(lines) if line.strip())
    notes: list[str] = []
    if lines[first].startswith("%%"):
        magic = lines[first][2:].split()[:1]
        if magic and magic[0] not in _RUN_A_CELL:
            return "\n" * len(lines), [f"%%{magic[0]} is left out"]
        notes.append(f"%%{magic[0] if magic else ''} is dropped, and the cell is run as it is")
        lines[first] = ""
    while isinstance(problem := _parse("\n".join(lines)), _Invalid):
        index = problem.line - 1
        if not 0 <= index < len(lines) or not _MAGIC.match(lines[index]):
            break
        line = lines[index]
        timed = _RUN_A_LINE.match(line)
        runs = timed is not None and isinstance(_parse(timed[3]), ast.Module)
        indent = line[: len(line) - len(line.lstrip())]
        lines[index] = f"{timed[1]}{timed[3]}" if timed is not None and runs else f"{indent}pass"
        kept = lines[index].strip() not in ("pass", "")
        notes.append(f"`{line.strip()[:60]}` is {'run as Python' if kept else 'dropped'}")
    return "\n".join(lines) + "\n", notes


# Python text without running it: whether it is valid, what it defines at module level, pasted text put right.

_PROMPT = re.compile(r"^In \[\d+\]: ")
_BLOCKS = (ast.If, ast.Try, ast.With, ast.For, ast.While, ast.TryStar)


class _Invalid(NamedTuple):
    """A syntax error: the parser's message, and the line (from 1; 0 if the parser names none) with its text."""

    message: str
    line: int = 0
    text: str = ""


def _parse(source: str) -> ast.Module | _Invalid:
    """The syntax tree of ``source``, which also compiles; or why there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as invalid escape sequences: the run shows them
        try:
            tree = ast.parse(source)
            compile(tree, "<case>", "exec", dont_inherit=True)
        except SyntaxError as error:
            lines, number = source.splitlines(), error.lineno or 0
            text = lines[number - 1] if 0 < number <= len(lines) else error.text or ""
            return _Invalid(error.msg, number, text.strip())
        except ValueError as error:  # a null byte
            return _Invalid(str(error))
        except (RecursionError, MemoryError):
            return _Invalid("its expressions nest too deeply for Python's parser")
    return tree


def _as_program(source: str) -> str:
    """Pasted text as Python: without Markdown fences, interpreter prompts and a notebook's ``%`` and ``!`` lines.

    Text that is valid Python already, or stays invalid, is unchanged. Lines keep their numbers.
    """
    if isinstance(_parse(source), ast.Module):
        return source
    lines = ["" if line.lstrip().startswith(("```", "%", "!")) else line for line in source.splitlines()]
    if any(line.startswith(">>> ") for line in lines):
        lines = [line[4:] if line.startswith((">>> ", "... ")) else "" for line in lines]
    cleaned = "\n".join(_PROMPT.sub("", line) for line in lines) + "\n"
    return cleaned if isinstance(_parse(cleaned), ast.Module) else source


def _binds_make(statement: ast.stmt) -> bool:
    """Return whether a statement binds ``make``, to something that may be called without arguments."""
    if isinstance(statement, ast.FunctionDef):
        # A function with required arguments is a helper of a script.
        needed = len(statement.args.args) - len(statement.args.defaults) + statement.args.kw_defaults.count(None)
        return not needed and statement.name == "make"
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return any((alias.asname or alias.name) == "make" for alias in statement.names)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    targets = [statement.target] if isinstance(statement, ast.AnnAssign) else targets
    return any(isinstance(node, ast.Name) and node.id == "make" for target in targets for node in ast.walk(target))


def _runs_as_script(tree: ast.Module) -> bool:
    """Return whether a module compiles or ends its process as soon as it runs, which no case file does."""
    for statement in _at_module_level([node for node in tree.body if not _asks_for_main(node)]):
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, *_BLOCKS)):
            continue
        if isinstance(statement, ast.Raise) and "SystemExit" in ast.unparse(statement):
            return True
        calls = [ast.unparse(node.func) for node in ast.walk(statement) if isinstance(node, ast.Call)]
        if any(called in ("torch.compile", "sys.exit", "exit") for called in calls):
            return True
    return False


def _asks_for_main(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)


def _at_module_level(statements: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when the module does, those inside of ``if``, ``try``, ``with`` and loops among them."""
    for statement in statements:
        yield statement
        if isinstance(statement, _BLOCKS):
            for name in ("body", "orelse", "finalbody"):
                yield from _at_module_level(getattr(statement, name, []))
            for handler in getattr(statement, "handlers", []):
                yield from _at_module_level(handler.body)


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

_LOOKED_FOR = (
    "torch.compile, model.compile() and torch._dynamo.optimize, and an import, exec or getattr that could lead there"
)


def _may_compile(tree: ast.Module, folder: Path) -> bool:
    """Return whether running the program could call ``torch.compile``.

    Modules beside it in its ``folder`` are imported before others of the same name.
    """
    nodes = list(ast.walk(tree))
    imports = [alias for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    # Names of modules of the standard library, whose ``compile`` is another one.
    plain = {a.asname or a.name.partition(".")[0] for a in imports if _is_standard(a.name, folder)}
    star = any(a.name == "*" for node in nodes if isinstance(node, ast.ImportFrom) for a in node.names)
    return any(_leads_there(node, plain, folder, star=star) for node in nodes)


def other_packages(file: CaseFile) -> set[str]:
    """The packages that a case imports and that are neither torch, NumPy, the standard library nor beside it."""
    folder = file.path.resolve().parent
    imports = [node for node in ast.walk(ast.parse(file.source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    absolute = [node for node in imports if not getattr(node, "level", 0)]
    names = [getattr(node, "module", None) or alias.name for node in absolute for alias in node.names]
    roots = {name.partition(".")[0] for name in names} - _HARMLESS
    return {root for root in roots if not _is_standard(root, folder) and not _is_beside(root, folder)}


def local_modules(file: CaseFile) -> Iterator[Path]:
    """The files beside a case that it imports: modules, and those of packages."""
    folder = file.path.resolve().parent
    for node in ast.walk(ast.parse(file.source)):
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
    match node:
        case ast.Import():
            return any(_import_leads_there(alias.name, "", folder) for alias in node.names)
        case ast.ImportFrom():
            module = "." * node.level + (node.module or "")
            return any(_import_leads_there(module, alias.name, folder) for alias in node.names)
        case ast.Attribute(value=ast.Name(id=owner)) if owner in plain:  # re.compile, json.load, os.system
            return owner == "os" and node.attr.startswith(_RUNS_PROGRAMS)
        case ast.Attribute():
            return node.attr in _DYNAMIC_ATTRIBUTES or _names_it(node.attr)
        case ast.keyword():
            return _names_it(node.arg or "")
        case ast.Name():
            return node.id in _DYNAMIC or (star and node.id == "compile")
        case ast.Constant(value=str(text)):
            return bool(_IDENTIFIER.fullmatch(text)) and _names_it(text)
        case ast.Call(func=ast.Name(id="getattr"), args=[_, name, *_]):
            return not isinstance(name, ast.Constant)
    return False


def _import_leads_there(module: str, name: str, folder: Path) -> bool:
    root = module.partition(".")[0]
    if _is_standard(module, folder):
        return root in _DYNAMIC_MODULES or (root == "os" and name.startswith(_RUNS_PROGRAMS))
    return not root or _is_beside(root, folder) or root not in _HARMLESS or _names_it(module) or _names_it(name)


def _names_it(name: str) -> bool:
    return any(word in name for word in _WORDS)


def _holds_tests_only(tree: ast.Module) -> bool:
    """Return whether the module holds tests for pytest and, run as a script, would run nothing of its own."""
    defined = [s for s in _at_module_level(tree.body) if isinstance(s, ast.FunctionDef | ast.AsyncFunctionDef)]
    classes = [s for s in _at_module_level(tree.body) if isinstance(s, ast.ClassDef)]
    methods = [s for statement in classes for s in statement.body if isinstance(s, ast.FunctionDef)]
    own = {statement.name for statement in (*defined, *classes)}
    return any(function.name.startswith("test") for function in (*defined, *methods)) and not any(
        _runs(call, own) for call in _calls_at_import(tree)
    )


def _calls_at_import(tree: ast.Module) -> Iterator[ast.Call]:
    """Calls made by the statements of the module, bodies of functions and classes left out."""
    for statement in _at_module_level(tree.body):
        run: ast.AST | None = None
        if isinstance(statement, ast.Expr | ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Raise | ast.Assert):
            run = statement
        elif isinstance(statement, ast.For | ast.If | ast.While):
            run = statement.iter if isinstance(statement, ast.For) else statement.test
        yield from (node for node in ast.walk(run) if isinstance(node, ast.Call)) if run is not None else ()


def _runs(call: ast.Call, own: set[str]) -> bool:
    if isinstance(call.func, ast.Name):
        return call.func.id in own | _RUNS_TESTS
    # In f(x)(y), what is called is not known.
    return not isinstance(call.func, ast.Attribute) or call.func.attr in _RUNS_TESTS or _names_it(call.func.attr)
