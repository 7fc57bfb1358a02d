"""Read what a user names as CASE, and refuse at once what cannot be one."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, cast

from fuzzcompile.model.errors import CaseError, format_message
from fuzzcompile.programs.casefiles.python_text import (
    LOOKED_FOR,
    InvalidPython,
    as_program,
    binds_make,
    defines_make,
    is_pytest_file,
    may_compile,
    modules_beside,
    packages_of_others,
    parse_source,
)

__all__ = [
    "SENT_SUFFIX",
    "CaseFile",
    "Kind",
    "Notebook",
    "defines_make",
    "local_modules",
    "looks_like_path",
    "other_packages",
    "read_case_file",
    "read_source",
]


# A Jupyter notebook as a script: its code cells one after another, without what only a notebook understands.

# Magics that run Python: what is measured is what is judged.
_RUN_A_CELL = {"time", "timeit", "capture", "prun", "triage"}
_RUN_A_LINE = re.compile(r"^(\s*)%(?:time|timeit|prun|memit)\s+((?:-\w+(?:\s+\d+)?\s+)*)(\S.*)$")
_MAGIC = re.compile(r"^(\s*)(?:[%!?]|[\w.]+\s*=\s*[%!]|[\w.]+\?{1,2}\s*$)")


@dataclass(frozen=True)
class Notebook:
    """A notebook as one Python program, its cells by number with the line where each begins, and what was left out."""

    source: str
    cells: tuple[tuple[int, int], ...]
    notes: tuple[str, ...]

    def place(self, line: int) -> str:
        """Return the place of a line of the program in the notebook: ``cell 3, line 2``."""
        number, first = max((cell for cell in self.cells if cell[1] <= line), default=(0, 1))
        return f"cell {number}, line {line - first + 1}" if number else f"line {line}"


def read_notebook(path: Path, text: str) -> Notebook:
    """The program of a notebook. It ends before the first cell that is no Python, if cells stand before that one.

    Cells are counted as a fresh run numbers them: code cells that are not empty, from 1.

    Raises:
        CaseError: the text is no notebook, its language is not Python, or it has no code.
    """
    source = ""
    cells: list[tuple[int, int]] = []
    notes: list[str] = []
    for number, code in enumerate(_list_code_cells(path, text), start=1):
        program, left_out = _as_python(code)
        problem = parse_source(program)
        if isinstance(problem, InvalidPython):
            sentence = f"cell {number}, line {problem.line} is not valid Python ({problem.message})"
            if "compile" not in source and "optimize" not in source:
                raise CaseError(f"{path}: {sentence}: `{problem.text}`.")
            notes.append(f"{sentence}: the program ends before that cell")
            break
        notes += [f"cell {number}: {what}" for what in left_out]
        cells.append((number, 1 + source.count("\n")))
        source += program
    return Notebook(source, tuple(cells), tuple(notes))


def _list_code_cells(path: Path, text: str) -> list[str]:
    try:
        notebook = json.loads(text)
        sheets = notebook.get("worksheets") or [notebook]  # nbformat 3 has worksheets
        cells = [cell for sheet in sheets for cell in sheet["cells"]]
        code = [_text(cell) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = "its JSON is broken" if isinstance(error, ValueError) else "it has no cells"
        raise CaseError(f"{path} is no notebook ({what}); name a notebook that Jupyter opens, or a script.") from error
    language = _language(notebook)
    if language != "python":
        raise CaseError(f"{path} is a notebook of {language}; name one of Python.")
    code = [cell for cell in code if cell.strip()]
    if not code:
        raise CaseError(f"{path} has no code cells; name a notebook that calls torch.compile.")
    return code


def _text(cell: Mapping[str, object]) -> str:
    source = cell["source"] if "source" in cell else cell["input"]
    return "".join(source) if isinstance(source, list) else str(source)


def _language(notebook: Mapping[str, object]) -> str:
    """The language of the notebook, in lower case; Python if it does not say."""
    metadata = notebook.get("metadata")
    for key, name in (("language_info", "name"), ("kernelspec", "language")):
        entry = metadata.get(key) if isinstance(metadata, Mapping) else None
        if isinstance(entry, Mapping) and isinstance(entry.get(name), str):
            language = str(entry[name]).lower()
            return "python" if language in ("ipython", "python3") else language
    return "python"


def _as_python(code: str) -> tuple[str, list[str]]:
    lines = code.rstrip("\n").split("\n")
    first = next(index for index, line in enumerate(lines) if line.strip())
    notes: list[str] = []
    if lines[first].startswith("%%"):
        magic = lines[first][2:].split()[:1]
        if magic and magic[0] not in _RUN_A_CELL:
            return "\n" * len(lines), [f"%%{magic[0]} is left out"]
        notes.append(f"%%{magic[0] if magic else ''} is dropped, and the cell is run as it is")
        lines[first] = ""
    while isinstance(problem := parse_source("\n".join(lines)), InvalidPython):
        index = problem.line - 1
        if not 0 <= index < len(lines) or not _MAGIC.match(lines[index]):
            break
        dropped = lines[index].strip()
        timed = _RUN_A_LINE.match(lines[index])
        runs = timed is not None and isinstance(parse_source(timed[3]), ast.Module)
        indent = lines[index][: len(lines[index]) - len(lines[index].lstrip())]
        lines[index] = f"{timed[1]}{timed[3]}" if timed is not None and runs else f"{indent}pass"
        kept = lines[index].strip() not in ("pass", "")
        notes.append(f"`{dropped[:60]}` is {'run as Python' if kept else 'dropped'}")
    return "\n".join(lines) + "\n", notes


# The text of a file that a user names.

_LARGEST = 32 * 2**20


def read_source(path: Path) -> str:
    """The text of a case file, script or notebook, decoded as Python decodes it: UTF-8 or as its first lines declare.

    Raises:
        CaseError: there is no such file, it cannot be read, or it is not text.
    """
    data = _read_bytes(path)
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise CaseError(
            f"{path} is not text ({format_message(error, 120)}); name a Python file or a notebook."
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _read_bytes(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise CaseError(f"{path} is a folder; name a file in it.")
        if path.exists() and not path.is_file():
            raise CaseError(f"{path} is not a regular file, and a case is read more than once; write it to a file.")
        if path.stat().st_size > _LARGEST:
            raise CaseError(f"{path} is larger than any program (over 32 MiB); name a Python file or a notebook.")
        return path.read_bytes()
    except FileNotFoundError as error:
        raise CaseError(f"{path} does not exist.") from error
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CaseError(f"{path} cannot be read ({reason}); name a Python file or a notebook.") from error


Kind = Literal["case", "script", "notebook", "call"]
SENT_SUFFIX = ".call"
"""How the name of a file ends that holds a call of another process (:mod:`fuzzcompile.programs.capture.call_file`)."""
Report = TypeVar("Report")


@dataclass(frozen=True)
class CaseFile:
    """A file that may be judged.

    Of kind ``case`` it defines ``make()``; a ``script`` or a ``notebook`` is run up to a compiled call; a ``call`` was
    sent by another process and holds no text. ``source`` is its program: valid Python, its lines numbered as in the
    file, the cells of a notebook one after another.
    """

    path: Path
    kind: Kind
    source: str
    notebook: Notebook | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Return remarks for readers of the report about the reading of the file."""
        return () if self.notebook is None else self.notebook.notes

    def place(self, line: int) -> str:
        """A line of the program as a user knows it: ``line 12``, or ``cell 3, line 2``."""
        return f"line {line}" if self.notebook is None else self.notebook.place(line)

    def locate(self, report: Report) -> Report:
        """A report in its JSON form, with places as a user knows them; unchanged unless the file is a notebook."""
        if self.notebook is None:
            return report
        pattern = re.compile(rf'({re.escape(self.path.name)})(:|", )(?:line )?(\d+)')

        def put_places(value: object) -> object:
            if isinstance(value, str):
                return pattern.sub(lambda match: f"{match[1]}{match[2]}{self.place(int(match[3]))}", value)
            if isinstance(value, dict):
                return {key: put_places(item) for key, item in value.items()}
            return [put_places(item) for item in value] if isinstance(value, list) else value

        return cast(Report, put_places(report))


def read_case_file(path: Path) -> CaseFile:
    """Read a case file, script or notebook. Nothing of it runs, and torch is not imported.

    Raises:
        CaseError: it does not exist, is no Python or no notebook, holds tests for pytest, or can reach
            ``torch.compile`` nowhere; the message says what to do.
    """
    if path.suffix == SENT_SUFFIX:
        return CaseFile(path, "call", "")
    text = read_source(path)
    if path.suffix == ".ipynb":
        return _read_notebook_file(path, text)
    program = as_program(text)
    tree = parse_source(program)
    if isinstance(tree, InvalidPython):
        where = f" in line {tree.line}: `{tree.text[:100]}`" if tree.line else ""
        raise CaseError(f"{path} is not valid Python: {tree.message}{where}.")
    if binds_make(tree):
        return CaseFile(path, "case", program)
    if is_pytest_file(tree):
        raise CaseError(
            f"{path} holds tests, which pytest runs: in a test, take the fixture `assert_compiles_alike` of "
            "fuzzcompile's pytest plugin, call `assert_compiles_alike(model, inputs)`, and run `pytest`."
        )
    if not may_compile(tree, path.resolve().parent):
        raise CaseError(
            f"{path} defines no make() and never calls torch.compile (looked for: {LOOKED_FOR}); compile the model in "
            "it, or define make(), which returns (module, inputs)."
        )
    # ``make`` may come from ``from elsewhere import *``, where nothing in the text compiles.
    froms = [statement for statement in tree.body if isinstance(statement, ast.ImportFrom)]
    star = any(a.name == "*" for s in froms for a in s.names if not (s.module or "").startswith("torch"))
    compiles = any(isinstance(n, ast.Attribute) and n.attr in ("compile", "optimize") for n in ast.walk(tree))
    return CaseFile(path, "case" if star and not compiles else "script", program)


def local_modules(file: CaseFile) -> list[Path]:
    """The files beside a case that it imports."""
    return list(modules_beside(ast.parse(file.source), file.path.resolve().parent))


def other_packages(file: CaseFile) -> set[str]:
    """The packages that a case imports, without torch, NumPy, the standard library and what stands beside it."""
    return packages_of_others(ast.parse(file.source), file.path.resolve().parent)


def looks_like_path(name: str) -> bool:
    """Return whether a user who typed ``name`` meant a file rather than a finding."""
    return name.endswith((".py", ".ipynb")) or ("/" in name and ":" not in name)  # signatures have both


def _read_notebook_file(path: Path, text: str) -> CaseFile:
    notebook = read_notebook(path, text)
    tree = parse_source(notebook.source)
    # Each cell is valid, and the whole is not: a __future__ import that is no longer first.
    if isinstance(tree, InvalidPython):
        raise CaseError(f"{path}: {notebook.place(tree.line)} is not valid Python ({tree.message}): `{tree.text}`.")
    if not may_compile(tree, path.resolve().parent):
        raise CaseError(f"{path} never calls torch.compile (looked for: {LOOKED_FOR}); compile the model in a cell.")
    return CaseFile(path, "notebook", notebook.source, notebook)
