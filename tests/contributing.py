"""The examples of CONTRIBUTING.md: its code blocks, each a file that its first line names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```(python|toml)\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One code block, without the line that names its file."""

    path: str
    code: str

    @property
    def module(self) -> str:
        return self.path.removesuffix(".py").replace("/", ".")

    def executed(self) -> ModuleType:
        """The block as a module; it is not in ``sys.modules``."""
        module = ModuleType(self.module)
        exec(compile(self.code, f"CONTRIBUTING.md: {self.path}", "exec"), module.__dict__)
        return module


def sections() -> dict[str, list[Block]]:
    """The blocks by the title of their section; sections without a block are left out."""
    parts = re.split(r"^## (.+)$", TEXT, flags=re.MULTILINE)[1:]
    examples = {title: list(_blocks(body)) for title, body in zip(parts[::2], parts[1::2], strict=True)}
    return {title: blocks for title, blocks in examples.items() if blocks}


def block(path: str) -> Block:
    """The block that stands for the file at ``path``."""
    return next(block for blocks in sections().values() for block in blocks if block.path == path)


def _blocks(body: str) -> Iterator[Block]:
    for _, path, code in _BLOCK.findall(body):
        yield Block(path, code)
