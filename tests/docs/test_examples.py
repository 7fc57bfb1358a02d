"""The examples of the documentation do what they say, run as a reader would run them: page by page, in a folder."""

from __future__ import annotations

import doctest
import os
import subprocess
import sys
from pathlib import Path

import pytest
from documented import PAGES, ROOT, Block, blocks

_WITH_EXAMPLES = [page for page in PAGES if any(block.language == "console" for block in blocks(page))]
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.slow
@pytest.mark.parametrize("page", _WITH_EXAMPLES, ids=lambda page: page.name)
def test_examples(page: Path, tmp_path: Path) -> None:
    commands = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}", "COLUMNS": "200"}
    for block in blocks(page):
        if block.title:
            (tmp_path / block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "console":
            _run(page, block, tmp_path, environment)


def _run(page: Path, block: Block, folder: Path, environment: dict[str, str]) -> None:
    """Run the commands of a block in one shell; what stands below each is what it prints, `...` for anything."""
    written = doctest.OutputChecker()
    script, expected = _parted(block.text)
    wrapper = "".join(f"{command}\nstatus=$?; echo '--- done'; (exit $status)\n" for command in script)
    done = subprocess.run(
        ["bash", "-c", wrapper], cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    printed = done.stdout.split("--- done\n")
    for command, wanted, got in zip(script, expected, printed, strict=False):
        where = f"{page.relative_to(ROOT)}, line {block.line}: {command}"
        assert not wanted or written.check_output(wanted, got + "\n", _FLAGS), f"{where}\n{got}\n{done.stderr[-2000:]}"
        assert "Traceback" not in done.stderr, f"{where}\n{done.stderr[-2000:]}"


def _parted(text: str) -> tuple[list[str], list[str]]:
    script, expected = list[str](), list[str]()
    for line in text.splitlines():
        if line.startswith("$ "):
            script.append(line[2:])
            expected.append("")
        elif expected:
            expected[-1] += line + "\n"
    return script, expected
