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
    "--max-memory",
    "--memory",
    "memory",
    default=8.0,
    show_default=True,
    metavar="GiB",
    type=click.FloatRange(min=0.5),
    help="Host memory of one worker: Python, torch, the case and every copy of it that judging makes. A case that "
    "needs more by the size of its tensors is refused, one that grows beyond is ended. Compilers that the worker "
    "starts are not counted.",
)
against: Callable[[Command], Command] = click.option(
    "--against",
    default="eager",
    show_default=True,
    metavar="eager|float64|aot_eager|cpu|MODE",
    help="What compiled is compared with: eager, its float64 run, another backend, the CPU, or another mode.",
)
call: Callable[[Command], Command] = click.option(
    "--call",
    default=None,
    type=click.IntRange(min=1),
    metavar="N",
    help="For a script: judge its N-th call of a compiled callable instead of the first.",
)
module: Callable[[Command], Command] = click.option(
    "--module",
    default=None,
    metavar="PATH",
    help="Judge this submodule alone (layers.0.attn), on the inputs that it really gets.",
)
suspect: Callable[[Command], Command] = click.option(
    "--suspect",
    "suspects",
    multiple=True,
    metavar="NAME",
    help="Say what became of this rewrite (or pass): whether it ran, changed a bit, was refused, or is off.",
)
json_output: Callable[[Command], Command] = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON on stdout and nothing else."
)


def judging(command: Command) -> Command:
    """The options of every command that judges files: where, how, against what, which part, with what limits."""
    for option in (memory, timeout, plant, suspect, veto, module, call, against, device):  # the last is shown first
        command = option(command)
    return command
