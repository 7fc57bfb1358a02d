"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

device: Callable[[Command], Command] = click.option(
    "--device", default="auto", show_default=True, metavar="auto|cpu|cuda[:N]", help="Where to run."
)
corpus: Callable[[Command], Command] = click.option(
    "--corpus",
    "location",
    default=None,
    metavar="PATH|URL",
    help="The corpus; default: $FUZZCOMPILE_CORPUS, else corpus/fuzzcompile.db below this folder.",
)
veto: Callable[[Command], Command] = click.option(
    "--veto",
    "vetoes",
    multiple=True,
    metavar="LABEL",
    help="Refuse a rewrite, by name, by leading part up to an underscore (_sfdp), by glob, or as stage:name.",
)
plant: Callable[[Command], Command] = click.option(
    "--plant",
    "plants",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="A Python file run in each worker before anything compiles, to plant a bug.",
)
timeout: Callable[[Command], Command] = click.option(
    "--timeout", default=180.0, show_default=True, type=click.FloatRange(min=1), help="Seconds for one case."
)
memory: Callable[[Command], Command] = click.option(
    "--memory", default=8.0, show_default=True, type=click.FloatRange(min=0.5), help="GiB for one worker."
)
json_output: Callable[[Command], Command] = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON on stdout and nothing else."
)
