"""A Jupyter notebook as a script: its code cells one after another, without what only a notebook understands.

Read with json: a program needs the cells' text and the language, and nbformat would bring a JSON schema and its checks
for what is not used here.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fuzzcompile.model.errors import CaseError
from fuzzcompile.programs.casefiles.python_text import InvalidPython, parse_source

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
