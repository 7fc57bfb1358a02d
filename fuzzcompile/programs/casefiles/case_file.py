"""Read what a user names as CASE, and refuse at once what cannot be one."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator, Mapping
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
class NotebookCell:
    """One code cell: its number among those that are not empty, and the line of the program where it begins."""

    number: int
    line: int


@dataclass(frozen=True)
class Notebook:
    """A notebook as one Python program, its cells, and what was left out."""

    source: str
    cells: tuple[NotebookCell, ...]
    notes: tuple[str, ...]

    def place(self, line: int) -> str:
        """Return the place of a line of the program in the notebook: ``cell 3, line 2``."""
        cell = max((cell for cell in self.cells if cell.line <= line), key=lambda cell: cell.line, default=None)
        return f"line {line}" if cell is None else f"cell {cell.number}, line {line - cell.line + 1}"


def read_notebook(path: Path, text: str) -> Notebook:
    """The program of a notebook. It ends before the first cell that is no Python, if cells stand before that one.

    Cells are counted as a fresh run numbers them: code cells that are not empty, from 1.

    Raises:
        CaseError: the text is no notebook, its language is not Python, or it has no code.
    """
    parts: list[str] = []
    cells: list[NotebookCell] = []
    notes: list[str] = []
    broken: tuple[int, InvalidPython] | None = None
    line = 1
    for number, code in enumerate(_code_cells(path, text), start=1):
        program, left_out = _as_python(code)
        problem = parse_source(program)
        if isinstance(problem, InvalidPython):
            broken = number, problem
            break
        notes += [f"cell {number}: {what}" for what in left_out]
        cells.append(NotebookCell(number, line))
        parts.append(program)
        line += program.count("\n")
    if broken is not None:
        sentence = f"cell {broken[0]}, line {broken[1].line} is not valid Python ({broken[1].message})"
        if not any(word in part for part in parts for word in ("compile", "optimize")):
            raise CaseError(f"{path}: {sentence}: `{broken[1].text}`.")
        notes.append(f"{sentence}: the program ends before that cell")
    return Notebook("".join(parts), tuple(cells), tuple(notes))


def _code_cells(path: Path, text: str) -> Iterator[str]:
    """The text of each code cell that is not empty."""
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
    yield from code


def _text(cell: Mapping[str, object]) -> str:
    source = cell["source"] if "source" in cell else cell["input"]
    return "".join(source) if isinstance(source, list) else str(source)


def _language(notebook: Mapping[str, object]) -> str:
    """The language of the notebook, in lower case; Python if it does not say."""
    metadata = notebook.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    for key, name in (("language_info", "name"), ("kernelspec", "language")):
        entry = metadata.get(key)
        if isinstance(entry, Mapping) and isinstance(entry.get(name), str):
            language = str(entry[name]).lower()
            return "python" if language in ("ipython", "python3") else language
    return "python"


def _as_python(code: str) -> tuple[str, list[str]]:
    """A cell as Python that ends with a newline and keeps its lines, and what was left out of it."""
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
        lines[index] = _without_magic(lines[index])
        kept = lines[index].strip() not in ("pass", "")
        notes.append(f"`{dropped[:60]}` is {'run as Python' if kept else 'dropped'}")
    return "\n".join(lines) + "\n", notes


def _without_magic(line: str) -> str:
    """A line of a notebook's own as Python: the statement that it times, or nothing."""
    timed = _RUN_A_LINE.match(line)
    if timed and isinstance(parse_source(timed[3]), ast.Module):
        return f"{timed[1]}{timed[3]}"
    return f"{line[: len(line) - len(line.lstrip())]}pass"


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

    Attributes:
        path: the file.
        kind: ``case`` if it defines ``make()``; a ``script`` or a ``notebook`` is run up to a compiled call; a
            ``call`` was sent by another process and holds no text.
        source: its program: valid Python, its lines numbered as in the file; the cells of a notebook one after another.
        notebook: the cells that the program was made of; None for other files.
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
        return cast(Report, _replace_places(report, pattern, self.notebook))


def _replace_places(value: object, pattern: re.Pattern[str], notebook: Notebook) -> object:
    if isinstance(value, str):
        return pattern.sub(lambda match: f"{match[1]}{match[2]}{notebook.place(int(match[3]))}", value)
    if isinstance(value, dict):
        return {key: _replace_places(item, pattern, notebook) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace_places(item, pattern, notebook) for item in value]
    return value


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
        return _notebook(path, text)
    program = as_program(text)
    tree = parse_source(program)
    if isinstance(tree, InvalidPython):
        raise CaseError(_not_python(path, tree))
    if binds_make(tree):
        return CaseFile(path, "case", program)
    if is_pytest_file(tree):
        raise CaseError(
            f"{path} holds tests, which pytest runs: in a test, take the fixture `assert_compiles_alike` of "
            "fuzzcompile's pytest plugin, call `assert_compiles_alike(model, inputs)`, and run `pytest`."
        )
    if not may_compile(tree, path.resolve().parent):
        raise CaseError(f"{path} {_NO_CASE} or define make(), which returns (module, inputs).")
    return CaseFile(path, "case" if _may_import_make(tree) else "script", program)


def local_modules(file: CaseFile) -> list[Path]:
    """The files beside a case that it imports."""
    return list(modules_beside(ast.parse(file.source), file.path.resolve().parent))


def other_packages(file: CaseFile) -> set[str]:
    """The packages that a case imports, without torch, NumPy, the standard library and what stands beside it."""
    return packages_of_others(ast.parse(file.source), file.path.resolve().parent)


def looks_like_path(name: str) -> bool:
    """Return whether a user who typed ``name`` meant a file rather than a finding."""
    return name.endswith((".py", ".ipynb")) or ("/" in name and ":" not in name)  # signatures have both


_NO_CASE = f"defines no make() and never calls torch.compile (looked for: {LOOKED_FOR}); compile the model in it,"


def _notebook(path: Path, text: str) -> CaseFile:
    notebook = read_notebook(path, text)
    tree = parse_source(notebook.source)
    if isinstance(
        tree, InvalidPython
    ):  # each cell is valid, the whole is not: a __future__ import that is no longer first
        raise CaseError(f"{path}: {notebook.place(tree.line)} is not valid Python ({tree.message}): `{tree.text}`.")
    if not may_compile(tree, path.resolve().parent):
        raise CaseError(f"{path} never calls torch.compile (looked for: {LOOKED_FOR}); compile the model in a cell.")
    return CaseFile(path, "notebook", notebook.source, notebook)


def _not_python(path: Path, problem: InvalidPython) -> str:
    if not problem.line:
        return f"{path} is not valid Python: {problem.message}."
    return f"{path} is not valid Python: {problem.message} in line {problem.line}: `{problem.text[:100]}`."


def _may_import_make(tree: ast.Module) -> bool:
    """Return whether ``make`` may come from ``from elsewhere import *``, and nothing in the text compiles."""
    froms = [statement for statement in tree.body if isinstance(statement, ast.ImportFrom)]
    star = any(a.name == "*" for s in froms for a in s.names if not (s.module or "").startswith("torch"))
    return star and not any(isinstance(n, ast.Attribute) and n.attr in ("compile", "optimize") for n in ast.walk(tree))
