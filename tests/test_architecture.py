"""The rules of ARCHITECTURE.md that a machine can hold."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "fuzzcompile"
FILES = sorted(ROOT.rglob("*.py"))
INTERNALS = ("torch._inductor", "torch._dynamo", "torch._functorch", "torch._subclasses", "torch._prims")
# What each package may import of the others; a package is the folder (or module) below fuzzcompile/.
ALLOWED = {
    "__init__": {"api", "watching"},
    "contract": set(),
    "errors": set(),
    "reference": set(),
    "stage_names": set(),
    "templating": set(),
    "severity": {"contract"},
    "searching": {"contract", "corpus", "errors", "stage_names"},
    "signatures": {"contract", "stage_names"},
    "case": {"casefiles", "errors", "sides", "signatures"},
    "corpus": {"contract", "errors", "hints", "privacy", "settings", "severity", "signatures"},
    "facts": {"errors", "stage_names"},
    "generation": {"errors", "sides", "templating"},
    "models": {"errors", "templating"},
    "plants": {"errors"},
    "targets": {"errors"},
    "execution": {"case", "contract", "errors", "facts", "reference"},
    "tolerances": {"contract", "errors"},
    "compiler": {"case", "custom", "errors", "execution", "facts", "generation", "reference", "sides", "span",
                 "stage_files", "stage_names", "targets"},
    "oracle": {"contract", "execution"},
    "capture": {"case", "casefiles", "compiler", "errors", "execution"},
    "codegen": {"compiler"},
    "reduction": {"case", "compiler", "contract", "custom", "errors", "execution", "generation", "oracle", "privacy",
                  "sides", "signatures", "templating"},
    "causes": {"contract", "oracle", "reduction", "signatures"},
    "profiling": {"capture", "case", "compiler", "contract", "errors", "execution", "oracle", "tolerances"},
    "replaying": {"contract", "corpus", "errors", "execution", "hints", "privacy", "severity"},
    "reporting": {"contract", "corpus", "custom", "errors", "hints", "oracle", "privacy", "replaying", "settings",
                  "severity", "signatures", "stage_names", "templating"},
    "trials": {"case", "compiler", "errors", "execution", "facts", "oracle", "sides", "stage_names", "tolerances"},
    "attribution": {"compiler", "execution", "oracle", "stage_names", "trials"},
    "variations": {"case", "casefiles", "compiler", "errors", "execution", "generation", "templating"},
    "stages": {"attribution", "codegen", "compiler", "execution", "facts", "oracle", "stage_names", "trials"},
    "judging": {"attribution", "case", "compiler", "contract", "errors", "execution", "facts", "hints", "oracle",
                "severity", "sides", "signatures", "stage_files", "stage_names", "stages", "targets", "tolerances",
                "trials"},
    "contracts": {"attribution", "case", "codegen", "compiler", "contract", "execution", "facts", "judging", "oracle",
                  "stage_names", "stages"},
    "watching": {"case", "compiler", "contract", "errors", "execution", "hints", "judging", "oracle", "pages",
                 "plants", "reduction", "reporting", "templating"},
    "worker": {"capture", "case", "casefiles", "causes", "compiler", "contract", "contracts", "custom", "errors",
               "execution", "facts", "focusing", "generation", "hints", "judging", "opinfo", "oracle", "plants",
               "profiling", "reduction", "sides", "signatures", "span", "stage_names", "targets", "tolerances",
               "variations"},
    "cluster": {"custom", "errors", "execution", "worker"},
    "campaign": {"casefiles", "cluster", "contract", "corpus", "custom", "errors", "execution", "focusing",
                 "generation", "hints", "judging", "opinfo", "oracle", "plants", "replaying", "reporting", "severity",
                 "signatures", "stage_names", "variations", "worker"},
    "commands": {"campaign", "casefiles", "compiler", "contract", "corpus", "errors", "execution", "facts",
                 "generation", "hints", "judging", "oracle", "plants", "privacy", "profiling", "reduction",
                 "replaying", "reporting", "searching", "settings", "severity", "signatures", "stage_names",
                 "targets", "templating", "trials", "watching", "worker"},
    "privacy": set(),
    "hints": {"errors", "privacy", "settings"},
    "settings": {"errors", "privacy", "severity", "targets"},
    "casefiles": {"errors"},
    "pages": {"contract", "corpus", "errors", "hints", "oracle", "privacy", "replaying", "reporting", "severity",
              "signatures", "stage_names", "templating"},
    "api": {"capture", "case", "casefiles", "commands", "compiler", "contract", "errors", "execution", "judging",
            "plants", "reporting", "templating", "worker"},
    "pytest_plugin": {"api", "errors"},
    "sides": set(),
    "custom": {"errors", "stage_names"},
    "opinfo": {"errors", "execution", "templating"},
    "focusing": {"custom", "errors", "generation", "span", "stage_names"},
    "span": set(),
    "stage_files": {"stage_names"},
    "cli": {"campaign", "casefiles", "cluster", "commands", "contract", "corpus", "custom", "errors", "execution",
            "focusing", "generation", "hints", "models", "pages", "privacy", "profiling", "reduction", "replaying",
            "reporting", "settings", "severity", "stage_names", "targets", "tolerances", "trials", "watching",
            "worker"},
    "__main__": {"cli"},
}  # fmt: skip


def package_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@functools.cache
def imported(path: Path) -> set[str]:
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    return modules


def foreign(path: Path) -> set[str]:
    """The other packages of fuzzcompile that a file imports."""
    used = {module.split(".")[1] for module in imported(path) if module.startswith("fuzzcompile.")}
    return (used & set(ALLOWED)) - {package_of(path)}


def test_only_one_package_touches_the_compilers_internals():
    others = [path for path in FILES if package_of(path) != "compiler"]
    touched = {(str(path.relative_to(ROOT)), m) for path in others for m in imported(path) if m.startswith(INTERNALS)}
    assert others and not touched


@pytest.mark.parametrize("package", ALLOWED)
def test_arrows_point_one_way(package):
    own = [path for path in FILES if package_of(path) == package]
    wrong = {str(path.relative_to(ROOT)): foreign(path) - ALLOWED[package] for path in own}
    assert own and not {path: names for path, names in wrong.items() if names}


def test_every_package_has_its_arrows_stated():
    assert {package_of(path) for path in FILES} == set(ALLOWED)


@pytest.mark.parametrize("package", ALLOWED)
def test_every_arrow_is_used(package):
    used = {name for path in FILES if package_of(path) == package for name in foreign(path)}
    assert not ALLOWED[package] - used, "an arrow that nothing needs any more goes"


def test_there_is_no_drawer():
    assert not [p for p in FILES if p.stem.removeprefix("_") in ("utils", "util", "helpers", "misc", "common")]


def test_rooms_stay_small():
    assert not [p for p in FILES if len(p.read_text().splitlines()) > 600]
