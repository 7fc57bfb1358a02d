"""``fuzzcompile doctor`` and ``fuzzcompile completion``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from fuzzcompile.front.cli import options
from fuzzcompile.front.cli.folded_help import FoldedCommand
from fuzzcompile.model.conditions import choose_running_device
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.privacy import strip_password
from fuzzcompile.model.settings import SETTINGS, ActiveSettings, SettingSource, read_settings


@click.command(cls=FoldedCommand)
@options.device
@options.target
@options.corpus
@click.option("--settings", is_flag=True, help="Show the settings in force instead, and where each comes from.")
@options.json_output
def doctor(device: str, target: str | None, location: str | None, settings: bool, as_json: bool) -> int:
    """Say whether a campaign can run here, and what to do if not.

    Checks torch, devices, which SDPA kernels take which inputs, the C++ compiler, the functions of torch that
    fuzzcompile hooks and the corpus, and compiles a small program. With --target, also tells how each stage can be
    looked at for that device.

    A setting comes from the command line, else from its environment variable, else from [tool.fuzzcompile] in the
    nearest pyproject.toml that has it, here or above, else it is built in. Relative paths in pyproject.toml are
    relative to that file. With --settings the exit status is 2 if a value is wrong, or a key unknown.
    """
    if settings:
        return _show_settings(as_json=as_json)
    from fuzzcompile.front.machine_checks import examine

    checks = examine(choose_running_device(device, target), location, target)
    unfit = [check for check in checks if check.needed and not check.fine]
    if as_json:
        click.echo(json.dumps([vars(check) for check in checks]))
        return 3 if unfit else 0
    for check in checks:
        click.echo(f"{'ok  ' if check.fine else 'FAIL' if check.needed else 'warn'}  {check.name}: {check.found}")
        for line in (*check.lines, *([check.advice] if check.advice and not check.fine else [])):
            click.echo(f"      {line}")
    click.echo("A campaign can run." if not unfit else "A campaign cannot run here; see FAIL above.")
    return 3 if unfit else 0


def _show_settings(*, as_json: bool) -> int:
    settings = read_settings()
    if not as_json:
        _print_settings(settings)
        return 0
    rows = {}
    for known in SETTINGS:
        value, source = settings.find_value(known.key), str(settings.find_source(known.key))
        shown = strip_password(str(value)) if isinstance(value, str | Path) else value
        rows[known.key] = {"value": shown, "source": source, "variable": known.variable, "says": known.says}
    click.echo(json.dumps({"file": settings.path and str(settings.path), "settings": rows}))
    return 0


def _print_settings(settings: ActiveSettings) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from fuzzcompile.report.verdict_text import report_console

    sources = {SettingSource.PYPROJECT: "pyproject.toml", SettingSource.DEFAULT: "built in"}
    columns = ("setting", "value", "from", "environment variable", "what it sets")
    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
    for known in SETTINGS:
        source, value = settings.find_source(known.key), _format_value(settings.find_value(known.key))
        table.add_row(*map(Text, (known.key, value, sources.get(source, str(source)), known.variable, known.says)))
    console = report_console()
    console.print(table)
    path = settings.path
    where = "No pyproject.toml here or above has [tool.fuzzcompile]." if path is None else f"Project: {path}"
    console.print(where, markup=False, highlight=False, soft_wrap=True)


def _format_value(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "-"
    if isinstance(value, float):
        return f"{value:g}"
    return "-" if value is None else strip_password(str(value))


_SHELLS = ("bash", "zsh", "fish")


@click.command(cls=FoldedCommand)
@click.argument("shell", required=False)
def completion(shell: str | None) -> int:
    """Print the completion script for SHELL (bash, zsh or fish; default: $SHELL).

    Let the shell read it when it starts: `eval "$(fuzzcompile completion bash)"` in ~/.bashrc, the same with zsh in
    ~/.zshrc (behind compinit), and `fuzzcompile completion fish | source` in ~/.config/fish/config.fish.
    """
    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in _SHELLS:
        asked = name or "the shell, since $SHELL is empty"
        raise UsageError(f"There is no completion for {asked}: name one of {', '.join(_SHELLS)}.")
    made = get_completion_class(name)
    assert made is not None  # click has those of _SHELLS
    cli = click.get_current_context().find_root().command
    click.echo(made(cli, {}, "fuzzcompile", "_FUZZCOMPILE_COMPLETE").source(), nl=False)
    return 0
