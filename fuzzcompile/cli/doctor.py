"""``fuzzcompile doctor``."""

from __future__ import annotations

import json

import click

from fuzzcompile.cli import options
from fuzzcompile.worker.conditions import running_device


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
    from fuzzcompile.commands.doctor import examine

    checks = examine(running_device(device, target), location, target)
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
