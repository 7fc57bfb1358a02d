"""``fuzzcompile generate``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fuzzcompile.cli import options


@click.command()
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**63 - 1), help="Which cases are drawn.")
@click.option("--count", default=10, show_default=True, type=click.IntRange(1), help="How many.")
@click.option("--start", default=0, show_default=True, type=click.IntRange(0), help="Index of the first.")
@click.option(
    "--out",
    default=Path("cases"),
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the case files.",
)
@click.option("--no-near-misses", is_flag=True, help="Draw only plain idioms, no near misses.")
@options.target
@options.json_output
def generate(
    seed: int, count: int, start: int, out: Path, no_near_misses: bool, target: str | None, as_json: bool
) -> int:
    """Write generated cases as files, without running them.

    The same seed gives the cases that ``run`` draws before it starts to steer. The docstring of each file names the
    idioms, near misses and choices that it is made of. With --target, sizes, dtypes and settings are those that matter
    on a GPU.
    """
    from fuzzcompile.campaign.profiles import for_this_torch
    from fuzzcompile.generation import Profile, write_cases
    from fuzzcompile.hints import command

    profile = for_this_torch(Profile(near_misses=not no_near_misses), target)
    paths = write_cases(out, seed, count, profile, start=start)
    if as_json:
        click.echo(json.dumps([str(path) for path in paths]))
    else:
        judge = command("triage", out, target=target)
        click.echo(f"{len(paths)} cases in {out}, the first {paths[0].name}; judge them with `{judge}`.")
    return 0
