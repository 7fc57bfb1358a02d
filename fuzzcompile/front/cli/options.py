"""Options that several commands share."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from fuzzcompile.front.cli.case_arguments import complete_rewrites
from fuzzcompile.fuzz.bundled_models import SIZES, Size, write_case_file
from fuzzcompile.model.conditions import Conditions, Contract, Limits, Question, choose_running_device
from fuzzcompile.model.custom import PLACES, Custom
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.privacy import strip_password
from fuzzcompile.model.settings import SettingSource, SettingValue, find_setting, read_settings
from fuzzcompile.model.targets import TARGETS
from fuzzcompile.model.tolerances import Tolerances

OptionCommand = TypeVar("OptionCommand", bound=Callable[..., object])


def setting_option(key: str, *names: str, **attributes: Any) -> Callable[[OptionCommand], OptionCommand]:
    """The option ``--KEY`` of that setting, whose default is the value in force; the rest is as for ``click.option``.

    A ``default`` among the attributes takes the place of what is built in.
    """
    setting = find_setting(key)
    built_in: SettingValue | None = attributes.pop("default", setting.default)

    def find_default() -> SettingValue | None:
        if click.get_current_context().resilient_parsing:  # for the shell, which must not meet an error
            return built_in
        settings = read_settings()
        return built_in if settings.find_source(key) is SettingSource.DEFAULT else settings.find_value(key)

    shown = f"default: {built_in:g}; " if isinstance(built_in, float) else f"default: {built_in}; "
    attributes["help"] += f"  [{shown if attributes.pop('show_default', False) else ''}env var: {setting.variable}]"
    attributes = {"type": setting.type, "multiple": setting.multiple, **attributes}
    return click.option(f"--{key}", *names, default=find_default, **attributes)


def check_settings(*, asks_for_help: bool) -> None:
    """Refuse wrong settings whatever the command, but only warn of them where help is asked for."""
    try:
        read_settings()
    except UsageError as error:
        if not asks_for_help:
            raise
        click.echo(f"fuzzcompile: warning: {error}", err=True)


class NamedPath(click.Path):
    """A path that is not empty: an empty one would be the working folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path, or the error of click that it is empty."""
        return Path(value) if str(value) else self.fail("the name is empty.", param, ctx)


PATH, FILE = click.Path(path_type=Path), click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)


def output_file(*names: str, parents: bool = False, **attributes: Any) -> Callable[[OptionCommand], OptionCommand]:
    """An option that names a file to write, which is refused before any work if it cannot be written.

    With ``parents``, folders above it are made.
    """

    def check(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
        if path is not None and not context.resilient_parsing:
            from fuzzcompile.report.output_files import check_writable

            check_writable(path, option.opts[0], parents=parents)
        return path

    return click.option(*names, **{"type": PATH, "metavar": "FILE", "callback": check, **attributes})


device = setting_option("device", show_default=True, metavar="auto|cpu|cuda[:N]", help="Where to run.")
target = setting_option(
    "target",
    type=str,  # what is no target is refused with the same sentence wherever it is named
    metavar="|".join(TARGETS),
    help="The device that the compiler is told, which need not be here, apart from --device, which runs. Graphs and "
    "kernels are made for the target and judged on the CPU.",
)


def warn_of_password(context: click.Context, parameter: click.Parameter, given: str | None) -> str | None:
    """Warn of a password on the command line, and say how to pass it so that no other user of the machine sees it."""
    if given is not None and strip_password(given) != given:
        click.echo(
            "fuzzcompile: warning: everyone on this machine can see the password in your command line; give it in "
            "PGPASSWORD, in the file that PGPASSFILE names, or with the URL in FUZZCOMPILE_CORPUS.",
            err=True,
        )
    return given


corpus = click.option(
    "--corpus",
    "location",
    callback=warn_of_password,
    metavar="PATH|URL",
    help="The corpus; default: $FUZZCOMPILE_CORPUS, else that of pyproject.toml, else corpus/fuzzcompile.db in this "
    "folder. A database server that is lost is waited for, $FUZZCOMPILE_PATIENCE seconds at most (600).",
)
veto = click.option(
    "--veto",
    "vetoes",
    multiple=True,
    shell_complete=complete_rewrites,
    metavar="LABEL",
    help="Refuse a rewrite: by name, by a prefix that ends before an underscore (_sfdp), by glob, or as stage:name.",
)
plant = click.option(
    "--plant",
    "plants",
    multiple=True,
    type=FILE,
    metavar="FILE",
    help="A Python file that each worker runs before it compiles anything, to plant a bug.",
)
own_pass = click.option(
    "--pass",
    "passes",
    multiple=True,
    metavar="MODULE:ATTR[@STAGE]",
    help="A pass of your own, as MODULE:ATTR or FILE.py:ATTR: a function of a graph, a CustomGraphPass, or a "
    "PatternMatcherPass, each pattern of which is a rule of its own. Workers import it and give it to the compiler.",
)
at = click.option(
    "--at",
    "places",
    multiple=True,
    type=click.Choice(PLACES),
    help="The stage that runs a --pass, behind torch's own passes. Once for all of them, or once for each in their "
    "order; MODULE:ATTR@STAGE says the same. Needed unless the kind of the pass leaves one stage only.",
)
backend = click.option(
    "--backend",
    metavar="NAME|MODULE:ATTR",
    help="Compile with this backend in place of Inductor: a registered name, or a function of your own.",
)
timeout = setting_option("timeout", show_default=True, metavar="SECONDS", help="Seconds for one case.")
memory = setting_option(
    "max-memory",
    "--memory",
    "memory",
    show_default=True,
    metavar="GiB",
    help="Host memory of one worker: Python, torch, the case and every copy of it that judging makes. A case whose "
    "tensors need more is refused; one that grows beyond the limit is killed. Compilers that the worker starts are not "
    "counted.",
)
against = click.option(
    "--against",
    default="eager",
    show_default=True,
    metavar="eager|float64|aot_eager|cpu|export|aoti|MODE",
    help="What the compiled program is compared with: eager, a float64 run, another backend, the CPU, or another mode.",
)
call = click.option(
    "--call",
    type=click.IntRange(min=1),
    metavar="N",
    help="For a script: judge its N-th call of a compiled callable instead of the first.",
)
module = click.option(
    "--module",
    metavar="PATH",
    help="Judge only this submodule (layers.0.attn), on the inputs it gets in the whole program.",
)
suspect = click.option(
    "--suspect",
    "suspects",
    multiple=True,
    metavar="NAME",
    help="Report on this rewrite or pass: whether it ran, changed a bit, was refused, or is switched off.",
)
tolerances = click.option(
    "--tolerances",
    type=FILE,
    metavar="FILE",
    help="TOML tables such as [across_backends.bfloat16] with the limits to use in place of fuzzcompile's own.",
)
math_only = click.option(
    "--math-only",
    is_flag=True,
    help="Run attention on the math kernel and float32 products without TF32, on both sides: for validation, not for "
    "production.",
)
nproc = click.option(
    "--nproc",
    type=click.IntRange(min=2),
    metavar="N",
    help="Run the case in N processes together, as torchrun does, on gloo: DDP, FSDP2, tensor parallelism.",
)


def refuse_torchrun(instead: str) -> None:
    """Refuse to run as one of several processes, each of which would run the whole script again.

    Raises:
        UsageError: ``torchrun`` has started several; ``{size}`` in what to do ``instead`` is their number.
    """
    if (size := os.environ.get("WORLD_SIZE", "1")) != "1" and "TORCHELASTIC_RUN_ID" in os.environ:
        raise UsageError(
            f"torchrun has started {size} of these commands, each of which would run the whole script: "
            f"{instead.format(size=size)}."
        )


contract = click.option(
    "--contract",
    default="values",
    show_default=True,
    type=click.Choice(("bitwise", "values")),
    help="What is promised: right values, or also equal bits under torch's strict settings (compiled and eager, a row "
    "alone and in a batch, run to run).",
)
fail_on = setting_option(
    "fail-on",
    help="Exit with 1 only for a bug that is at least this severe (silent ... accepts_invalid, the worst first), or "
    "only for this verdict: eager_wrong and miscompile tell the side that is wrong.",
)
ignore = setting_option(
    "ignore",
    "ignored",
    metavar="PATTERN",
    help="Bugs that count as known, by signature (STAGE:..., its beginning or a glob), or by a glob of the rewrite, "
    "pass or source file at fault. Also a glob of files that are passed over in a folder.",
)
log = click.option(
    "--log", type=PATH, metavar="FILE", help="Also append each event to this file, as a line of JSON, when it happens."
)
sarif = output_file("--sarif", help="Also write the bugs as SARIF 2.1.0, for code scanning.")
trust = click.option(
    "--trust",
    "trusted",
    is_flag=True,
    help="From now on, trust those of the findings that were imported from another corpus: running them runs their "
    "code.",
)
json_output = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout and nothing else.")


def gather_options(
    parameter: str, make: Callable[..., object], *group: Callable[[Callable[..., int]], Callable[..., int]]
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Add a group of options, in the order of help, which the command gets as one ``parameter``.

    ``make`` makes it of the options' values; its own parameters are named like theirs.
    """
    names = list(inspect.signature(make).parameters)

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        @wraps(command)
        def gather(**given: object) -> int:
            made = make(**{name: given.pop(name) for name in names})
            return command(**{parameter: made}, **given)

        for option in reversed(group):
            gather = option(gather)
        return gather

    return decorate


def _make_conditions(
    device: str,
    target: str | None,
    vetoes: tuple[str, ...],
    passes: tuple[str, ...],
    places: tuple[str, ...],
    backend: str | None,
    plants: tuple[Path, ...],
    timeout: float,
    memory: float,
) -> Conditions:
    where, custom = choose_running_device(device, target), Custom.parse(passes, places, backend)
    return Conditions(where, vetoes, plants, Limits(timeout, int(memory * 2**30)), target, custom)


conditions = gather_options(
    "conditions", _make_conditions, device, target, veto, own_pass, at, backend, plant, timeout, memory
)


def _make_question(
    against: str,
    contract: Contract,
    call: int | None,
    module: str | None,
    suspects: tuple[str, ...],
    tolerances: Path | None,
    math_only: bool,
    nproc: int | None,
) -> Question:
    table = None if tolerances is None else Tolerances.load(tolerances)
    return Question(against, call, module, True, None, suspects, table, math_only, contract, nproc=nproc)


question = gather_options(
    "question", _make_question, against, contract, call, module, nproc, suspect, tolerances, math_only
)


def model(
    argument: str, given: Callable[[Path], object] = lambda path: path, *, size: Size = "tiny"
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Add ``--hf-config``, which names a bundled architecture in place of a case file; its size is ``size`` by default.

    The parameter ``argument`` of the command, which takes the case, gets what ``given`` makes of the path.
    """

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        @wraps(command)
        def gather(*, hf_config: str | None, hf_size: Size, hf_dtype: str, hf_train: bool, **rest: object) -> int:
            if hf_config is None and not rest[argument] and not rest.get("pending"):
                raise click.UsageError(
                    "Missing argument: name a case such as my_model.py, or an architecture with --hf-config."
                )
            if hf_config is not None and rest[argument]:
                raise click.UsageError("Name a case or an architecture with --hf-config, not both.")
            if hf_config is not None:
                rest[argument] = given(write_case_file(hf_config, training=hf_train, size=hf_size, dtype=hf_dtype))
            return command(**rest)

        group = (
            click.option(
                "--hf-config",
                metavar="NAME",
                help="In place of CASE: the architecture of a model of transformers (bert-base-uncased, gpt2, ...) or "
                "timm (timm/NAME), with random weights. Nothing is downloaded.",
            ),
            click.option(
                "--hf-size",
                type=click.Choice(SIZES),
                default=size,
                show_default=True,
                help="tiny: small widths, two layers of each kind; narrow: small widths, all layers; full: as "
                "published.",
            ),
            click.option(
                "--hf-dtype",
                type=click.Choice(("float32", "bfloat16", "float16")),
                default="float32",
                show_default=True,
            ),
            click.option("--hf-train", is_flag=True, help="In training: train mode, labels, and a backward pass."),
        )
        for option in reversed(group):
            gather = option(gather)
        return gather

    return decorate
