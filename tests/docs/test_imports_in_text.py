"""Imports of fuzzcompile that stand in text: documents, shell scripts, plants and drivers written as strings."""

import importlib
import re
from pathlib import Path

import pytest
from contributing import sections

ROOT = Path(__file__).parents[2]
_TEXTS = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/**/*.md",
    "tools/*",
    "bench/**/*.py",
    "tests/**/*.py",
    "templates/**/*.j2",
)
# Modules that the examples of CONTRIBUTING.md would add.
_EXAMPLES = {block.module for blocks in sections().values() for block in blocks}


def list_imports() -> list[tuple[str, str, str]]:
    """File, module and name of each import, wherever it is spelt."""
    found = []
    for path in sorted(path for pattern in _TEXTS for path in ROOT.glob(pattern) if path.is_file()):
        text = path.read_text(encoding="utf-8", errors="ignore")
        for module, names in re.findall(r"from (fuzzcompile[\w.]*) import (\w[\w, ]*)", text):
            found += [(str(path.relative_to(ROOT)), module, name.split(" as ")[0].strip()) for name in names.split(",")]
        found += [(str(path.relative_to(ROOT)), *pair) for pair in re.findall(r"\b(fuzzcompile(?:\.\w+)+):(\w+)", text)]
    return found


def resolves(module: str, name: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), name) or bool(importlib.import_module(f"{module}.{name}"))
    except ModuleNotFoundError:
        return False


def test_what_is_imported_in_text_exists():
    imports = [(file, module, name) for file, module, name in list_imports() if name and module not in _EXAMPLES]
    assert len(imports) > 1000
    assert [line for line in imports if not resolves(line[1], line[2])] == []


@pytest.mark.parametrize("name", ["describe", "no_such_name"])
def test_a_name_that_is_gone_is_told(name):
    assert not resolves("fuzzcompile.run.device", name)
