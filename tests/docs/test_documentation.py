"""The documentation builds without a warning, and its commands, options and links exist."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from documented import PAGES, ROOT, commands, links

from fuzzcompile.front.cli.main import cli


def test_the_site_builds_without_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path / "site"), strict=True))
    for name in cli.commands:
        text = (tmp_path / "site" / "commands" / f"{name}.html").read_text(encoding="utf-8")
        assert f"Usage: fuzzcompile {name}" in text
    assert "https://fonts" not in (tmp_path / "site" / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_option_exists(page: Path) -> None:
    for words in commands(page):
        names = [re.sub(r"[=|].*", "", word) for word in words[1:] if word.startswith("--") and word != "--"]
        described = _command(words[1:])
        known = {
            name for part in described for option in part.params for name in (*option.opts, *option.secondary_opts)
        }
        unknown = set(names) - known - {"--help", "--lr"}  # a script's own option
        assert not unknown, f"{page.name}: {' '.join(words)}"


def _command(words: list[str]) -> list[click.Command]:
    command: click.Command = cli
    path = [command]
    for word in words:
        if not isinstance(command, click.Group) or word.startswith("-") or word == "|":
            break
        if word == "COMMAND":
            break
        assert word in command.commands, f"there is no command {word}"
        command = command.commands[word]
        path.append(command)
    return path


def test_links_of_the_readme_lead_somewhere() -> None:
    targets = [target.partition("#")[0] for target in links(ROOT / "README.md")]
    files = [target for target in targets if target and not target.startswith(("https://", "mailto:"))]
    assert files
    assert [name for name in files if not (ROOT / name).exists()] == []
