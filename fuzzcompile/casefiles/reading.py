"""Read what a user names as CASE, and refuse at once what cannot be one."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, cast

from fuzzcompile.casefiles.notebook import Notebook, read_notebook
from fuzzcompile.casefiles.python import Invalid, as_program, binds_make, parsed
from fuzzcompile.casefiles.reaching import LOOKED_FOR, is_pytest_file, may_compile, modules_beside, packages_of_others
from fuzzcompile.casefiles.text import read_source
from fuzzcompile.errors import CaseError

Kind = Literal["case", "script", "notebook", "call"]
SENT_SUFFIX = ".call"
"""How the name of a file ends that holds a call of another process (:mod:`fuzzcompile.capture.sending`)."""
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

    def located(self, report: Report) -> Report:
        """A report in its JSON form, with places as a user knows them; unchanged unless the file is a notebook."""
        if self.notebook is None:
            return report
        pattern = re.compile(rf'({re.escape(self.path.name)})(:|", )(?:line )?(\d+)')
        return cast(Report, _replaced(report, pattern, self.notebook))


def _replaced(value: object, pattern: re.Pattern[str], notebook: Notebook) -> object:
    if isinstance(value, str):
        return pattern.sub(lambda match: f"{match[1]}{match[2]}{notebook.place(int(match[3]))}", value)
    if isinstance(value, dict):
        return {key: _replaced(item, pattern, notebook) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, pattern, notebook) for item in value]
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
    tree = parsed(program)
    if isinstance(tree, Invalid):
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
    tree = parsed(notebook.source)
    if isinstance(tree, Invalid):  # each cell is valid, the whole is not: a __future__ import that is no longer first
        raise CaseError(f"{path}: {notebook.place(tree.line)} is not valid Python ({tree.message}): `{tree.text}`.")
    if not may_compile(tree, path.resolve().parent):
        raise CaseError(f"{path} never calls torch.compile (looked for: {LOOKED_FOR}); compile the model in a cell.")
    return CaseFile(path, "notebook", notebook.source, notebook)


def _not_python(path: Path, problem: Invalid) -> str:
    if not problem.line:
        return f"{path} is not valid Python: {problem.message}."
    return f"{path} is not valid Python: {problem.message} in line {problem.line}: `{problem.text[:100]}`."


def _may_import_make(tree: ast.Module) -> bool:
    """Return whether ``make`` may come from ``from elsewhere import *``, and nothing in the text compiles."""
    froms = [statement for statement in tree.body if isinstance(statement, ast.ImportFrom)]
    star = any(a.name == "*" for s in froms for a in s.names if not (s.module or "").startswith("torch"))
    return star and not any(isinstance(n, ast.Attribute) and n.attr in ("compile", "optimize") for n in ast.walk(tree))
