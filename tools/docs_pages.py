"""A hook of MkDocs: a page for each command, made from its ``--help``.

MkDocs calls ``on_config`` and ``on_files`` (https://www.mkdocs.org/user-guide/plugins/#events). The pages are made
while the site is built, and are in no file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from fuzzcompile.front.cli.main import cli

_WIDTH = 100


def commands(group: click.Group, named: str) -> Iterator[tuple[str, click.Command]]:
    """The commands of ``group`` and of the groups in it, with the words that call them."""
    context = click.Context(group, info_name=named)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        yield f"{named} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{named} {name}")


def help_of(words: str, command: click.Command) -> str:
    """What ``--help`` prints, at most 100 columns wide."""
    context = click.Context(command, info_name=words, terminal_width=_WIDTH, max_content_width=_WIDTH)
    return command.get_help(context)


def page(words: str, command: click.Command) -> str:
    """The page of a command in Markdown."""
    return f"# {words}\n\n```text\n{help_of(words, command)}\n```\n"


def _address(words: str) -> str:
    return f"commands/{'-'.join(words.split()[1:])}.md"


def _index(named: list[tuple[str, click.Command]]) -> str:
    rows = "\n".join(
        f"| [`{words}`]({_address(words).removeprefix('commands/')}) | {command.get_short_help_str(200)} |"
        for words, command in named
    )
    return f"# Commands\n\n```text\n{help_of('fuzzcompile', cli)}\n```\n\n| command | |\n|---|---|\n{rows}\n"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the commands' pages in the navigation."""
    section = next(entry["Commands"] for entry in config.nav or [] if isinstance(entry, dict) and "Commands" in entry)
    section[1:] = [_address(words) for words, _ in commands(cli, "fuzzcompile")]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the commands' pages."""
    # Where the documentation is built, a terminal's width says nothing.
    os.environ.pop("COLUMNS", None)
    named = list(commands(cli, "fuzzcompile"))
    files.append(File.generated(config, "commands/index.md", content=_index(named)))
    for words, command in named:
        files.append(File.generated(config, _address(words), content=page(words, command)))
    return files
