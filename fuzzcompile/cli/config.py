"""``fuzzcompile config``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fuzzcompile.cli import options
from fuzzcompile.privacy import without_password
from fuzzcompile.settings import SETTINGS, InForce, Setting, Source, in_force


@click.command()
@options.json_output
def config(as_json: bool) -> int:
    """Show the settings in force, and where each comes from.

    A setting comes from the command line, else from its environment variable, else from [tool.fuzzcompile] in the
    nearest pyproject.toml that has it, here or above, else it is built in. Relative paths in pyproject.toml are
    relative to that file. The exit status is 2 if a value is wrong, or a key unknown.
    """
    settings = in_force()
    if as_json:
        path = settings.project.path
        rows = {known.key: _as_json(known, settings) for known in SETTINGS}
        click.echo(json.dumps({"file": None if path is None else str(path), "settings": rows}))
        return 0
    _print(settings)
    return 0


def _as_json(known: Setting, settings: InForce) -> dict[str, object]:
    value = settings.value(known.key)
    return {
        "value": without_password(str(value)) if isinstance(value, str | Path) else value,
        "source": str(settings.source(known.key)),
        "variable": known.variable,
        "says": known.says,
    }


def _print(settings: InForce) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from fuzzcompile.reporting.verdict import report_console

    table = Table(
        "setting", "value", "from", "environment variable", "what it sets", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for known in SETTINGS:
        cells = (known.key, _shown(settings.value(known.key)), _from(known, settings), known.variable, known.says)
        table.add_row(*map(Text, cells))
    console = report_console()
    console.print(table)
    path = settings.project.path
    where = "No pyproject.toml here or above has [tool.fuzzcompile]." if path is None else f"Project: {path}"
    console.print(where, markup=False, highlight=False, soft_wrap=True)


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "-"
    if isinstance(value, float):
        return f"{value:g}"
    return "-" if value is None else without_password(str(value))


def _from(known: Setting, settings: InForce) -> str:
    source = settings.source(known.key)
    return {Source.ENVIRONMENT: "environment", Source.PYPROJECT: "pyproject.toml", Source.DEFAULT: "built in"}[source]
