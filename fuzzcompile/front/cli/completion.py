"""``fuzzcompile completion``: the shell completes commands, options and names of findings."""

from __future__ import annotations

import contextlib
import os
import shlex
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

from fuzzcompile.model.errors import EnvironmentUnfit, UsageError
from fuzzcompile.model.hints import format_command
from fuzzcompile.model.settings import locate_corpus, read_settings

# Completions that a shell offers for arguments: names of the corpus, read without loading more than SQLite.

_MOST_NAMES = 500  # names offered


def complete_findings(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of findings."""
    rows = _query_corpus(context, "SELECT id, verdict FROM findings ORDER BY id DESC LIMIT ?")
    named = [(f"F{number}", str(verdict)) for number, verdict in rows]
    return [CompletionItem(name, help=verdict) for name, verdict in named if name.startswith(incomplete.upper())]


def complete_cases_and_findings(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Ids of findings; files where no id begins so."""
    return [CompletionItem(incomplete, type="file"), *complete_findings(context, parameter, incomplete)]


def complete_rewrites(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Rewrites and passes that campaigns saw at work."""
    rows = _query_corpus(context, "SELECT DISTINCT rewrite FROM rewrite_coverage ORDER BY 1 LIMIT ?")
    return [CompletionItem(str(name)) for (name,) in rows if str(name).startswith(incomplete)]


def _query_corpus(context: click.Context, query: str) -> Iterator[tuple[object, ...]]:
    """Rows of the corpus that the command line or the settings name; none where it cannot be read."""
    try:
        named = context.params.get("location") or read_settings().find_value("corpus")
    except UsageError:  # the command itself says what is wrong with the settings
        return
    place = locate_corpus(named)
    if "://" in place:
        return
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(sqlite3.connect(f"{Path(place).as_uri()}?mode=ro", uri=True, timeout=0.2)) as connection,
    ):
        yield from connection.execute(query, (_MOST_NAMES,))


_SHELLS = ("bash", "zsh", "fish")
_MARK = "# fuzzcompile completion"
# Scripts of zsh define completions by a function that is there only once the completion system is loaded.
_ZSH_BEGINS = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\n"

shell_option = click.option("--shell", type=click.Choice(_SHELLS), default=None, help="The shell; default: $SHELL.")


@dataclass(frozen=True)
class CompletionPlace:
    """The files that hold the completion of one shell.

    Attributes:
        script: the file that defines it.
        startup: the file that the shell reads when it starts and that must name the script; None where the shell finds
            scripts by itself.
    """

    shell: str
    script: Path
    startup: Path | None

    @property
    def line(self) -> str:
        """The line of the start-up file."""
        script = shlex.quote(str(self.script))
        return f"[ -r {script} ] && . {script}  {_MARK}"


@click.group()
def completion() -> None:
    """Let the shell complete commands, options, and names of findings."""


@completion.command()
@shell_option
def install(shell: str | None) -> int:
    """Install the completion for your shell. To run it again changes nothing."""
    place = _find_place(shell)
    written = [path for path in (_write_script(place), _add_line(place)) if path is not None]
    click.echo(f"Wrote {' and '.join(map(str, written))}." if written else f"{place.script} is up to date.")
    click.echo(f"New {place.shell} sessions complete fuzzcompile; this one after: . {shlex.quote(str(place.script))}")
    click.echo(f"To undo: {format_command('completion', 'uninstall', shell=shell)}")
    return 0


@completion.command()
@shell_option
def uninstall(shell: str | None) -> int:
    """Take the completion away again."""
    place = _find_place(shell)
    try:
        removed = [place.script] if place.script.exists() else []
        place.script.unlink(missing_ok=True)
        if place.startup is not None and place.startup.is_file():
            text = place.startup.read_text(encoding="utf-8")
            kept = "".join(line for line in text.splitlines(keepends=True) if _MARK not in line)
            if kept != text:
                place.startup.write_text(kept, encoding="utf-8")
                removed.append(place.startup)
    except OSError as error:
        raise _make_write_error(error) from error
    where = " and ".join(map(str, removed))
    click.echo(f"Removed it from {where}." if removed else "There is no completion installed.")
    return 0


@completion.command()
@shell_option
def show(shell: str | None) -> int:
    """Print the completion script, for a shell that is set up in another way."""
    click.echo(_make_script(_choose_shell(shell)), nl=False)
    return 0


def _choose_shell(given: str | None) -> str:
    """The shell that was named, or the user's own.

    Raises:
        UsageError: it has no completion here.
    """
    name = given or Path(os.environ.get("SHELL", "")).name
    if name not in _SHELLS:
        known = ", ".join(_SHELLS)
        what = f"$SHELL names no shell with completion ({name or 'it is empty'})"
        raise UsageError(f"{what}: give --shell, of {known}.")
    return name


def _find_place(given: str | None) -> CompletionPlace:
    shell, home = _choose_shell(given), Path.home()
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    if shell == "fish":
        return CompletionPlace(shell, config / "fish" / "completions" / "fuzzcompile.fish", None)
    folder = Path(os.environ.get("ZDOTDIR") or home) if shell == "zsh" else home
    return CompletionPlace(shell, data / "fuzzcompile" / f"completion.{shell}", folder / f".{shell}rc")


def _make_script(shell: str) -> str:
    cli = click.get_current_context().find_root().command
    made = get_completion_class(shell)
    assert made is not None  # click has those of _SHELLS
    begins = _ZSH_BEGINS if shell == "zsh" else ""
    return f"{begins}{made(cli, {}, 'fuzzcompile', '_FUZZCOMPILE_COMPLETE').source()}"


def _write_script(place: CompletionPlace) -> Path | None:
    """Write the script unless it is there already; the file that was written."""
    text = _make_script(place.shell)
    try:
        if place.script.is_file() and place.script.read_text(encoding="utf-8") == text:
            return None
        place.script.parent.mkdir(parents=True, exist_ok=True)
        place.script.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _make_write_error(error) from error
    return place.script


def _add_line(place: CompletionPlace) -> Path | None:
    """Name the script in the shell's start-up file unless that does so already; the file that was written."""
    if place.startup is None:
        return None
    try:
        text = place.startup.read_text(encoding="utf-8") if place.startup.is_file() else ""
        if place.line in text.splitlines():
            return None
        kept = "".join(line for line in text.splitlines(keepends=True) if _MARK not in line)
        end = "" if not kept or kept.endswith("\n") else "\n"
        place.startup.write_text(f"{kept}{end}{place.line}\n", encoding="utf-8")
    except OSError as error:
        raise _make_write_error(error) from error
    return place.startup


def _make_write_error(error: OSError) -> EnvironmentUnfit:
    other = format_command("completion", "show")
    return EnvironmentUnfit(
        f"{error.filename} cannot be written ({error.strerror}); `{other}` prints the script, to be put where you can."
    )
