"""``fuzzcompile config``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fuzzcompile.front.cli import options
from fuzzcompile.model.conditions import choose_running_device
from fuzzcompile.model.privacy import strip_password
from fuzzcompile.model.settings import SETTINGS, ActiveSettings, Setting, SettingSource, read_settings

# ``fuzzcompile doctor``.


@click.command()
@options.device
@options.target
@options.corpus
@options.json_output
def doctor(device: str, target: str | None, location: str | None, as_json: bool) -> int:
    """Say whether a campaign can run here, and what to do if not.

    Checks torch, devices, which SDPA kernels take which inputs, the C++ compiler, the functions of torch that
    fuzzcompile hooks and the corpus, and compiles a small program. With --target, also tells how each stage can be
    looked at for that device.
    """
    from fuzzcompile.front.commands.doctor import examine

    checks = examine(choose_running_device(device, target), location, target)
    if as_json:
        click.echo(json.dumps([vars(check) for check in checks]))
    else:
        for check in checks:
            click.echo(f"{'ok  ' if check.fine else 'FAIL' if check.needed else 'warn'}  {check.name}: {check.found}")
            for line in check.lines:
                click.echo(f"      {line}")
            if not check.fine and check.advice:
                click.echo(f"      {check.advice}")
    unfit = [check for check in checks if check.needed and not check.fine]
    if not as_json:
        click.echo("A campaign can run." if not unfit else "A campaign cannot run here; see FAIL above.")
    return 3 if unfit else 0


@click.command()
@options.json_output
def config(as_json: bool) -> int:
    """Show the settings in force, and where each comes from.

    A setting comes from the command line, else from its environment variable, else from [tool.fuzzcompile] in the
    nearest pyproject.toml that has it, here or above, else it is built in. Relative paths in pyproject.toml are
    relative to that file. The exit status is 2 if a value is wrong, or a key unknown.
    """
    settings = read_settings()
    if as_json:
        path = settings.path
        rows = {known.key: _format_json(known, settings) for known in SETTINGS}
        click.echo(json.dumps({"file": None if path is None else str(path), "settings": rows}))
        return 0
    _print_settings(settings)
    return 0


def _format_json(known: Setting, settings: ActiveSettings) -> dict[str, object]:
    value = settings.find_value(known.key)
    return {
        "value": strip_password(str(value)) if isinstance(value, str | Path) else value,
        "source": str(settings.find_source(known.key)),
        "variable": known.variable,
        "says": known.says,
    }


def _print_settings(settings: ActiveSettings) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from fuzzcompile.report.verdict_text import report_console

    table = Table(
        "setting", "value", "from", "environment variable", "what it sets", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for known in SETTINGS:
        cells = (
            known.key,
            _format_value(settings.find_value(known.key)),
            _describe_source(known, settings),
            known.variable,
            known.says,
        )
        table.add_row(*map(Text, cells))
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


def _describe_source(known: Setting, settings: ActiveSettings) -> str:
    source = settings.find_source(known.key)
    return {
        SettingSource.ENVIRONMENT: "environment",
        SettingSource.PYPROJECT: "pyproject.toml",
        SettingSource.DEFAULT: "built in",
    }[source]
