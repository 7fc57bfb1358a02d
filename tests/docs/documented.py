"""The documentation as tests read it: pages, their code blocks, the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@dataclass(frozen=True)
class Block:
    """A code block of a page: its language, the file name that its title gives, its text, the line where it begins."""

    language: str
    title: str
    text: str
    line: int


def blocks(page: Path) -> Iterator[Block]:
    for token in _tokens(page):
        if token.type not in ("fence", "code_block"):
            continue
        language, _, rest = token.info.strip().partition(" ")
        title = re.search(r'title="([^"]+)"', rest)
        yield Block(language, title[1] if title else "", token.content, (token.map or [0])[0] + 1)


def links(page: Path) -> Iterator[str]:
    for token in _tokens(page):
        for child in token.children or ():
            target = child.attrGet("href" if child.type == "link_open" else "src")
            if target:
                yield str(target)


def commands(page: Path) -> Iterator[list[str]]:
    """The words of each ``fuzzcompile`` command in a page's code blocks, without comments and placeholders."""
    for block in blocks(page):
        if block.language == "python":
            continue
        for line in block.text.splitlines():
            line = line.removeprefix("$ ")
            for command in line.split(" && "):
                if command.startswith("fuzzcompile "):
                    yield shlex.split(re.sub(r"[\[\]]|\.\.\.", "", command), comments=True)


def _tokens(page: Path) -> list[Token]:
    return MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8"))
