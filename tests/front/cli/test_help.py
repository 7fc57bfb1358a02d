"""Help of every command: on one screen, and whole."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from fuzzcompile.front.cli.main import cli, main

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


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ("bisect", "triage --proof"),
        ("passes", "coverage --rules"),
        ("config", "doctor --settings"),
        ("mark", "corpus mark"),
        ("report", "corpus report"),
        ("fleet", "corpus fleet"),
    ],
)
def test_a_command_of_earlier_versions_does_the_same_and_says_its_new_name(former, now, monkeypatch, capsys):
    assert former not in cli.commands and len(cli.commands) <= 12
    for terminal in (False, True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda here=terminal: here)
        with pytest.raises(SystemExit) as ending:
            main([former, "--help-all"] if former != "fleet" else [former, "status", "--help-all"])
        out, err = capsys.readouterr()
        assert ending.value.code in (0, None) and now.split()[-1] in out
        assert err == (f"fuzzcompile: `{former}` is `{now}` now.\n" if terminal else "")
