"""``fuzzcompile profile``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuzzcompile.front.cli import options
from fuzzcompile.front.cli.case_arguments import ScriptCommand, read_script_arguments
from fuzzcompile.model.conditions import Conditions, Limits, choose_running_device, list_modes
from fuzzcompile.model.hints import CommandSubject, format_command
from fuzzcompile.model.settings import FiniteRange
from fuzzcompile.model.tolerances import Tolerances

if TYPE_CHECKING:
    from fuzzcompile.analyses.profile.profile_case import ProfileTask
    from fuzzcompile.analyses.profile.recordings import RecordedRun
    from fuzzcompile.model.profile_contract import ProfileJson


# A profile compiles twice, and its layers are run again and again.
_SECONDS = 900.0


@click.command(cls=ScriptCommand)
@click.argument("case", required=False, type=options.NamedPath(), metavar="[CASE]")
@options.model("case", size="narrow")
@click.option(
    "--against",
    default=None,
    metavar="A",
    help="The way to run it that is measured, inductor by default (with --record, eager): eager, inductor[:mode], "
    "aot_eager, float64, cpu, cuda[:N], "
    "sdpa:math|flash|efficient|cudnn, dtype:bfloat16, or a recording (FILE.safetensors).",
)
@click.option("--reference", default="eager", show_default=True, metavar="B", help="What it is compared with.")
@click.option(
    "--depth",
    default=None,
    type=click.IntRange(min=0),
    metavar="N",
    help="Levels of the module tree that count as layers, lists of modules left out; default: the blocks.",
)
@click.option("--ops", is_flag=True, help="Every operator instead of every layer; for sides that run uncompiled.")
@options.output_file("--record", help="Record a run instead, for elsewhere.")
@click.option(
    "--keep",
    default=1.0,
    show_default=True,
    type=FiniteRange(min=0.001),
    metavar="GiB",
    help="Activations kept of a run; beyond that they are sampled, and layers are not run alone.",
)
@click.option(
    "--math-only",
    is_flag=True,
    help="Attention on its math kernel and no TF32, on both sides: for validation, not for production.",
)
@click.option("--tolerances", type=options.PATH, metavar="FILE", help="TOML that overrides the table.")
@options.output_file("--html", "page", help="Also write a page with plots.")
@options.call
@options.module
@options.nproc
@options.device
@options.veto
@options.plant
@click.option("--timeout", default=_SECONDS, show_default=True, type=FiniteRange(min=1), help="Seconds in all.")
@options.memory
@options.json_output
def profile(
    case: Path,
    against: str | None,
    reference: str,
    depth: int | None,
    ops: bool,
    record: Path | None,
    keep: float,
    math_only: bool,
    tolerances: Path | None,
    page: Path | None,
    call: int | None,
    module: str | None,
    nproc: int | None,
    device: str,
    vetoes: tuple[str, ...],
    plants: tuple[Path, ...],
    timeout: float,
    memory: float,
    as_json: bool,
) -> int:
    """Compare two ways to run a model, layer by layer: which layer makes the error, and which ones pass it on.

    Exit status: 1 for a jump, 3 if the case cannot be run in one of both ways, otherwise 0. The layer of a jump under
    inductor is triaged at once.
    """
    from fuzzcompile.analyses.profile.side_names import spelled
    from fuzzcompile.diagnosis.worker.veto_check import check_vetoes
    from fuzzcompile.front.cli.wait_line import WaitLine
    from fuzzcompile.programs.casefiles.case_file import count_processes, read_case_file

    options.refuse_torchrun("run `fuzzcompile profile SCRIPT --nproc {size}` by itself")
    conditions = Conditions(choose_running_device(device, None), vetoes, plants, Limits(timeout, int(memory * 2**30)))
    measured = against or ("inductor" if record is None else "eager")
    for text in (measured, reference):  # before any work
        spelled(text, list_modes())
    Tolerances.load(tolerances)
    file = read_case_file(case)
    check_vetoes(conditions, [file])

    from fuzzcompile.analyses.profile.layer_profile import ProfileOptions
    from fuzzcompile.analyses.profile.profile_case import ProfileTask, profile_case, record_case
    from fuzzcompile.analyses.profile.sides import Look, parse

    side = parse(measured)
    asked = ProfileOptions(side, parse(reference), Look(depth, int(keep * 2**30), operators=ops), tolerances, math_only)
    recording = record.resolve() if record is not None else None
    processes = nproc or count_processes(file.source)
    task = ProfileTask(case, asked, call, module, processes, read_script_arguments(), recording)
    with WaitLine(as_json=as_json) as waiting:
        if record is not None:
            waiting.say(f"recording {case.name} as {side}")
            written = record_case(task, conditions)
        else:
            answer = profile_case(task, conditions, progress=waiting.say)
    if record is not None:
        click.echo(json.dumps(asdict(written)) if as_json else _describe_recording(written, task))
        return 0
    name = CommandSubject(str(case), {**conditions.options(), **task.ask_about(module).options(), "timeout": None})
    return _show_profile(answer, name, page, as_json=as_json)


def _show_profile(answer: ProfileJson, name: CommandSubject, page: Path | None, *, as_json: bool) -> int:
    from fuzzcompile.report.output_files import write_whole
    from fuzzcompile.report.profile_report import page_of_profile, print_profile
    from fuzzcompile.report.verdict_text import report_console

    if page is not None:
        write_whole(page, page_of_profile(answer, name=name).encode("utf-8"), "--html")
    if as_json:
        click.echo(json.dumps(answer, allow_nan=False))
    else:
        print_profile(report_console(), answer, name=name)
    return 1 if answer["verdict"] == "jump" else 0


def _describe_recording(recorded: RecordedRun, task: ProfileTask) -> str:
    command = format_command("profile", task.path, against=recorded.path, arguments=task.arguments)
    return (
        f"Recorded {recorded.calls} results of {recorded.side} in {recorded.path} ({recorded.size / 2**20:.1f} MiB). "
        f"Next, where you have the same case: {command}"
    )
