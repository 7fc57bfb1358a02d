"""``fuzzcompile completion``: the shell completes commands, options and names of findings."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from fuzzcompile.errors import EnvironmentUnfit, UsageError
from fuzzcompile.hints import command

_SHELLS = ("bash", "zsh", "fish")
_MARK = "# fuzzcompile completion"
# Scripts of zsh define completions by a function that is there only once the completion system is loaded.
_ZSH_BEGINS = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\n"

shell_option = click.option("--shell", type=click.Choice(_SHELLS), default=None, help="The shell; default: $SHELL.")


@dataclass(frozen=True)
class Place:
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
    place = _place(shell)
    written = [path for path in (_write_script(place), _add_line(place)) if path is not None]
    click.echo(f"Wrote {' and '.join(map(str, written))}." if written else f"{place.script} is up to date.")
    click.echo(f"New {place.shell} sessions complete fuzzcompile; this one after: . {shlex.quote(str(place.script))}")
    click.echo(f"To undo: {command('completion', 'uninstall', shell=shell)}")
    return 0


@completion.command()
@shell_option
def uninstall(shell: str | None) -> int:
    """Take the completion away again."""
    place = _place(shell)
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
        raise _unwritable(error) from error
    where = " and ".join(map(str, removed))
    click.echo(f"Removed it from {where}." if removed else "There is no completion installed.")
    return 0


@completion.command()
@shell_option
def show(shell: str | None) -> int:
    """Print the completion script, for a shell that is set up in another way."""
    click.echo(_script(_shell(shell)), nl=False)
    return 0


def _shell(given: str | None) -> str:
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


def _place(given: str | None) -> Place:
    shell, home = _shell(given), Path.home()
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    if shell == "fish":
        return Place(shell, config / "fish" / "completions" / "fuzzcompile.fish", None)
    folder = Path(os.environ.get("ZDOTDIR") or home) if shell == "zsh" else home
    return Place(shell, data / "fuzzcompile" / f"completion.{shell}", folder / f".{shell}rc")


def _script(shell: str) -> str:
    from fuzzcompile.cli.main import cli

    made = get_completion_class(shell)
    assert made is not None  # click has those of _SHELLS
    begins = _ZSH_BEGINS if shell == "zsh" else ""
    return f"{begins}{made(cli, {}, 'fuzzcompile', '_FUZZCOMPILE_COMPLETE').source()}"


def _write_script(place: Place) -> Path | None:
    """Write the script unless it is there already; the file that was written."""
    text = _script(place.shell)
    try:
        if place.script.is_file() and place.script.read_text(encoding="utf-8") == text:
            return None
        place.script.parent.mkdir(parents=True, exist_ok=True)
        place.script.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _unwritable(error) from error
    return place.script


def _add_line(place: Place) -> Path | None:
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
        raise _unwritable(error) from error
    return place.startup


def _unwritable(error: OSError) -> EnvironmentUnfit:
    other = command("completion", "show")
    return EnvironmentUnfit(
        f"{error.filename} cannot be written ({error.strerror}); `{other}` prints the script, to be put where you can."
    )
