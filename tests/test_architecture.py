"""The rules of ARCHITECTURE.md that a machine can hold."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path

import fuzzcompile

HOUSE = runpy.run_path(str(Path(__file__).parents[1] / "tools" / "rooms.py"))
ROOT: Path = HOUSE["ROOT"]
FILES = sorted(ROOT.rglob("*.py"))
INTERNALS = ("torch._inductor", "torch._dynamo", "torch._functorch", "torch._subclasses", "torch._prims")
# From the top of the house to its ground. A room imports those below it alone, also under TYPE_CHECKING.
ROOMS = ("front", "fuzz", "analyses", "report", "corpus", "diagnosis", "programs", "compiler", "run", "model")


def imported(path: Path) -> set[str]:
    modules = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    return modules


def test_the_top_level_holds_the_rooms_and_nothing_else():
    shown = {path.name for path in ROOT.iterdir() if path.name != "__pycache__"}
    assert shown == {*ROOMS, "__init__.py", "__main__.py", "extend.py", "py.typed"}
    deep = [path for path in FILES if len(path.relative_to(ROOT).parts) > 3]
    assert all(path.parent.parent.name == "migrations" for path in deep), "two levels below the top, no more"


def test_no_room_has_the_name_of_something_public():
    """The import system binds a room over the function as soon as one of its modules is imported."""
    assert fuzzcompile.__all__ and not {path.name for path in ROOT.iterdir()} & set(fuzzcompile.__all__)


def test_every_package_says_in_a_sentence_what_it_holds():
    for path in ROOT.rglob("__init__.py"):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert docstring and docstring.splitlines()[0].endswith("."), path


def test_only_one_room_touches_the_compilers_internals():
    others = [path for path in FILES if path.relative_to(ROOT).parts[0] != "compiler"]
    touched = {(str(path.relative_to(ROOT)), m) for path in others for m in imported(path) if m.startswith(INTERNALS)}
    assert others and not touched


def test_the_ground_needs_no_torch():
    ground = [path for path in FILES if path.relative_to(ROOT).parts[0] == "model"]
    assert ground and not [path for path in ground if any(m.split(".")[0] == "torch" for m in imported(path))]


def test_arrows_point_one_way():
    arrows = {(a, b) for a, b in HOUSE["count_arrows"]() if {a, b} <= set(ROOMS)}
    assert arrows and not {(a, b) for a, b in arrows if ROOMS.index(a) > ROOMS.index(b)}


def test_no_modules_import_each_other_in_a_circle():
    assert HOUSE["find_circles"]() == []


def test_there_is_no_drawer():
    assert not [p for p in FILES if p.stem.removeprefix("_") in ("utils", "util", "helpers", "misc", "common")]


def test_files_and_functions_stay_small():
    """A revision of the schema is one function by Alembic's form, and is never changed again."""
    assert len(FILES) <= 380 and not [p for p in FILES if len(p.read_text(encoding="utf-8").splitlines()) > 600]
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    for path in FILES:
        nodes = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, kinds)]
        long = [node.name for node in nodes if (node.end_lineno or 0) - node.lineno >= 60]
        assert not long or path.parent.name == "versions", (path, long)
