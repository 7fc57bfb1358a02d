"""The rules of ARCHITECTURE.md that a machine can hold."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "fuzzcompile"
FILES = sorted(ROOT.rglob("*.py"))
INTERNALS = ("torch._inductor", "torch._dynamo", "torch._functorch", "torch._subclasses", "torch._prims")
# What each package may import of the others; a package is the folder (or module) below fuzzcompile/.
ALLOWED = {
    "errors": set(),
    "stage_names": set(),
    "templating": set(),
    "facts": {"errors", "stage_names"},
    "case": {"errors"},
    "plants": {"errors"},
    "reference": set(),
    "corpus": {"errors"},
    "generation": {"errors", "templating"},
    "execution": {"case", "errors", "facts", "reference"},
    "oracle": {"execution"},
    "compiler": {"case", "errors", "execution", "facts", "stage_names"},
    "codegen": {"compiler", "stage_names"},
    "capture": {"case", "compiler", "errors", "execution"},
    "variations": {"capture", "case", "compiler", "errors", "execution", "generation", "templating"},
    "trials": {"case", "compiler", "errors", "execution", "oracle"},
    "attribution": {"compiler", "execution", "facts", "oracle", "stage_names", "trials"},
    "stages": {"attribution", "codegen", "compiler", "execution", "facts", "oracle", "stage_names", "trials"},
    "judging": {"attribution", "case", "compiler", "errors", "execution", "facts", "oracle", "stage_names", "stages",
                "trials"},
    "reduction": {"case", "errors", "execution", "generation", "oracle", "templating"},
    "reporting": {"errors", "oracle", "stage_names", "templating"},
    "worker": {"capture", "case", "compiler", "errors", "execution", "generation", "judging", "oracle", "plants",
               "reduction", "stage_names"},
    "commands": {"campaign", "capture", "case", "compiler", "corpus", "errors", "execution", "facts", "generation",
                 "judging", "oracle", "plants", "reduction", "reporting", "stage_names", "stages", "trials",
                 "variations", "worker"},
    "campaign": {"case", "commands", "compiler", "corpus", "errors", "execution", "generation", "judging", "oracle",
                 "reporting", "stage_names", "variations", "worker"},
    "cli": {"campaign", "case", "commands", "corpus", "errors", "execution", "generation", "plants", "reduction",
            "reporting", "stage_names", "worker"},
    "__main__": {"cli"},
    "__init__": set(),
}  # fmt: skip


def package_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    return modules


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_one_package_touches_the_compilers_internals(path):
    if package_of(path) != "compiler":
        assert not [m for m in imported(path) if m.startswith(INTERNALS)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_arrows_point_one_way(path):
    own = package_of(path)
    used = {m.split(".")[1] for m in imported(path) if m.startswith("fuzzcompile.")}
    known = set(ALLOWED)
    foreign = {name for name in used if name in known} - {own}
    assert foreign <= ALLOWED[own], f"{own} may not import {foreign - ALLOWED[own]}"


def test_there_is_no_drawer():
    assert not [p for p in FILES if p.stem.removeprefix("_") in ("utils", "util", "helpers", "misc", "common")]


def test_rooms_stay_small():
    assert not [p for p in FILES if len(p.read_text().splitlines()) > 600]
