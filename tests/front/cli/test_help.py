"""Help of every command: on one screen, and whole."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from fuzzcompile.front.cli.main import cli

SCREEN = 43


def walk(command: click.Command, *names: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from walk(inner, *names, name)
    else:
        yield names, command


COMMANDS = dict(walk(cli))


def say(*arguments: str) -> str:
    result = CliRunner().invoke(cli, [*arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_help_fits_on_a_screen_and_names_every_option(names: tuple[str, ...]):
    brief, whole = say(*names, "--help"), say(*names, "--help-all")
    assert len(brief.splitlines()) <= SCREEN
    for option in COMMANDS[names].params:
        if isinstance(option, click.Option) and not option.hidden:
            assert max(option.opts, key=len) in brief.split() + brief.replace(",", " ").split()
            assert max(option.opts, key=len) in whole
            first = " ".join((option.help or "").split()[:4])
            assert first in " ".join(whole.split())


def test_the_help_of_a_long_command_is_shorter_than_all_of_it():
    brief, whole = say("triage", "--help"), say("triage", "--help-all")
    assert len(brief.splitlines()) < 0.4 * len(whole.splitlines())
    assert "--tolerances" in brief.partition("Beside them:")[2] and "across_backends" not in brief
    assert "across_backends" in whole and "Beside them:" not in whole
    assert "the worst first" not in brief and "--fail-on WORD" in brief
