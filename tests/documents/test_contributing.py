"""CONTRIBUTING.md keeps its promises: its examples run, the files that it names are there."""

from __future__ import annotations

import inspect
import re
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PATH = re.compile(r"\A(?:#|\{#) (\S+?)(?: #\})?\n")


@dataclass(frozen=True)
class Block:
    """A code block; ``path`` is the file that its first line names."""

    language: str
    path: str
    code: str

    @property
    def module(self) -> str:
        return self.path.removesuffix(".py").replace("/", ".")


def sections() -> dict[str, list[Block]]:
    """The code blocks with a path, by the title of their section."""
    parts = re.split(r"^## (.+)$", TEXT, flags=re.MULTILINE)[1:]
    return {title: list(blocks(body)) for title, body in zip(parts[::2], parts[1::2], strict=True)}


def blocks(body: str) -> Iterator[Block]:
    for language, code in _BLOCK.findall(body):
        named = _PATH.match(code)
        assert named, f"the first line of this block names no file:\n{code}"
        yield Block(language, named[1], code)


EXAMPLES = {title: found for title, found in sections().items() if found}


@pytest.mark.parametrize("title", EXAMPLES)
def test_the_example_passes_its_own_test(title, monkeypatch, tmp_path):
    tests = []
    for block in EXAMPLES[title]:
        assert block.language == "python", "extend this test to blocks in other languages"
        module = types.ModuleType(block.module)
        module.__file__ = str(tmp_path / block.path)
        monkeypatch.setitem(sys.modules, block.module, module)
        exec(compile(block.code, f"CONTRIBUTING.md ({title}: {block.path})", "exec"), module.__dict__)
        tests += [value for name, value in vars(module).items() if name.startswith("test_")]
    assert tests, f"{title!r} has no test"
    for test in tests:
        wanted = inspect.signature(test).parameters
        test(**{name: value for name, value in {"tmp_path": tmp_path}.items() if name in wanted})


@pytest.mark.xfail(reason="codegen/ and facts/ come with other branches: drop this mark once they are merged")
def test_files_that_it_names_exist():
    of_examples = {block.path for found in EXAMPLES.values() for block in found}
    named = set(re.findall(r"`((?:fuzzcompile|tests|bench|templates)/[\w./]+\.\w+)`", TEXT))
    missing = sorted(path for path in named - of_examples if not (ROOT / path).exists())
    assert named and not missing
