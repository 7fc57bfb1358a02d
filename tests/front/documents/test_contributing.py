"""CONTRIBUTING.md keeps its promises: its examples pass the tests beside them, and the files that it names exist."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from contributing import TEXT, Block, sections

from fuzzcompile.model import facts

ROOT = Path(__file__).parents[3]
EXAMPLES = sections()
# Tests of the project that execute a block; every other example has its test on the page.
ELSEWHERE = {
    "Add an idiom": "tests/fuzz/generation/test_new_idiom.py",
    "Add a way of looking": "tests/diagnosis/stages/test_ways.py",
}


@pytest.fixture
def facts_folder(tmp_path, monkeypatch) -> Iterator[Path]:
    """A copy of the tables of facts, which are read from it."""
    folder = tmp_path / "facts"
    shutil.copytree(ROOT / "fuzzcompile" / "model" / "facts", folder)
    monkeypatch.setattr(facts.importlib.resources, "files", lambda package: folder)
    caches = (facts.list_known_versions, facts.load_tables)
    for cached in caches:
        cached.cache_clear()
    yield folder
    for cached in caches:
        cached.cache_clear()


@pytest.mark.parametrize("title", [title for title in EXAMPLES if title not in ELSEWHERE])
def test_an_example_passes_the_test_beside_it(title, monkeypatch, facts_folder):
    tests = []
    for block in EXAMPLES[title]:
        if block.path.endswith(".toml"):
            (facts_folder / Path(block.path).name).write_text(block.code)
        else:
            module = block.executed()
            monkeypatch.setitem(sys.modules, block.module, module)
            tests += [value for name, value in vars(module).items() if name.startswith("test_")]
    assert tests, f"{title!r} has no test"
    for test in tests:
        test()


@pytest.mark.parametrize(("title", "test"), ELSEWHERE.items())
def test_a_test_of_the_project_executes_the_other_examples(title, test):
    text = (ROOT / test).read_text()
    assert all(f'block("{block.path}")' in text for block in EXAMPLES[title])


def test_every_code_block_names_its_file_and_is_executed():
    blocks: list[Block] = [block for blocks in EXAMPLES.values() for block in blocks]
    assert len(blocks) == len(re.findall(r"^```\w+$", TEXT, re.MULTILINE))


def test_files_that_it_names_exist():
    examples = {block.path for blocks in EXAMPLES.values() for block in blocks}
    templates = {"templates/idioms/sigmoid_attention.py.j2", "templates/detours/centred_in_place.py.j2"}
    named = set(re.findall(r"`((?:fuzzcompile|tests|bench|templates)/[\w./]+\.\w+)`", TEXT)) - examples - templates
    assert named and not sorted(path for path in named if not (ROOT / path).exists())
