"""Entry point: the commands, and the exit status that each error gives."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

from fuzzcompile.front.cli.corpus import corpus, report
from fuzzcompile.front.cli.coverage import coverage
from fuzzcompile.front.cli.fleet import fleet
from fuzzcompile.front.cli.installation import completion, doctor
from fuzzcompile.front.cli.issue import issue, mark
from fuzzcompile.front.cli.minimize import minimize
from fuzzcompile.front.cli.options import check_settings
from fuzzcompile.front.cli.profile import profile
from fuzzcompile.front.cli.replay import replay
from fuzzcompile.front.cli.run import generate, run
from fuzzcompile.front.cli.triage import triage
from fuzzcompile.front.cli.watch import watch
from fuzzcompile.model import hints
from fuzzcompile.model.errors import FuzzcompileError, UsageError, describe_error
from fuzzcompile.model.privacy import strip_passwords
from fuzzcompile.model.versions import __version__
from fuzzcompile.programs.casefiles.case_file import looks_like_path

_INTERRUPTED = 130
# What earlier versions took, and what takes its place.
_FORMER = {
    "corpus copy": "`fuzzcompile corpus import FROM --whole --corpus TO` now.",
    "fleet confirm": "`fuzzcompile replay --confirm [--select FINDING]` now.",
    **dict.fromkeys(
        ("completion install", "completion uninstall", "completion show"),
        "`completion SHELL` now (bash, zsh, fish): it prints the script.",
    ),
}


# Commands of earlier versions, and what does the same; they go on working.
_MOVED = {
    "bisect": ("triage", "--proof"),
    "config": ("doctor", "--settings"),
    "fleet": ("corpus", "fleet"),
    "mark": ("corpus", "mark"),
    "passes": ("coverage", "--rules"),
    "report": ("corpus", "report"),
}


class _Commands(click.Group):
    """The commands, with a hint for what newcomers type instead of one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first word names; ``help`` and ``help COMMAND`` are ``--help`` of it."""
        name, *rest = args
        if name == "help":
            name, *rest = args = [*rest[:1], "--help"]
        given = args
        if name == "--help":
            click.echo(ctx.get_help())
            ctx.exit()
        if (former := " ".join(args[:2])) in _FORMER and not ctx.resilient_parsing:
            raise UsageError(f"`{former}` is {_FORMER[former]}")
        if name in _MOVED:
            name, *rest = args = [*_MOVED[name], *rest]
            if sys.stderr.isatty() and not ctx.resilient_parsing:  # a person; scripts that read stderr go on as before
                click.echo(f"fuzzcompile: `{given[0]}` is `{' '.join(_MOVED[given[0]])}` now.", err=True)
        if looks_like_path(name):
            ctx.fail(f"'{name}' is not a command. To judge a file: {hints.format_command('triage', name)}")
        if name not in self.commands and name in corpus.commands:
            ctx.fail(f"No such command '{name}'. Did you mean '{corpus.name} {name}'?")
        if name == run.name and rest and looks_like_path(rest[0]):
            triaged = hints.format_command("triage", rest[0])
            ctx.fail(
                f"'run' generates its programs. To judge a file: {triaged}; for variations of it: run --from FILE."
            )
        return super().resolve_command(ctx, args)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "-V", "--version", message="fuzzcompile %(version)s")
@click.option("--debug", is_flag=True, help="Show tracebacks of errors.")
@click.pass_context
def cli(context: click.Context, debug: bool) -> None:
    """Find, explain and report real bugs of torch.compile on transformer code.

    Start with `fuzzcompile triage my_model.py`: any script that calls torch.compile will do, unedited.

    Exit status: 0 no bug, 1 a bug, 2 wrong usage, 3 could not judge or the machine is unfit.
    """
    check_settings(asks_for_help=not set(context.help_option_names).isdisjoint(context.obj or ()))


for command in (mark, report, fleet):
    corpus.add_command(command)
for command in (run, generate, triage, profile, watch, minimize, replay, issue, corpus, coverage, doctor, completion):
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and end the process with the documented exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    try:
        status = cli.main([a for a in given if a != "--debug"], "fuzzcompile", standalone_mode=False, obj=given)
    except click.exceptions.Exit as ending:
        status = ending.exit_code
    except click.ClickException as error:
        error.show()
        status = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        status = _INTERRUPTED
    except FuzzcompileError as error:
        status = error.exit_status
        _explain(str(error), debug)
    except BrokenPipeError:
        status = 0
    except OSError as error:  # a full disk, a folder without rights: of the machine, wherever it was met
        status = 3
        reason = error.strerror or str(error)
        message = f"The system refuses a file ({reason}); mend that and run again, or see where with --debug."
        if error.filename is not None:
            places = "(--corpus, --out, TMPDIR, TORCHINDUCTOR_CACHE_DIR)"
            message = f"Cannot use {error.filename}: {reason}; mend that, or choose another place {places}."
        _explain(message, debug)
    except Exception as error:  # a bug of ours ends with one sentence too; --debug shows the traceback
        status = 3
        what = describe_error(error)
        _explain(f"Internal error ({what}); run again with --debug and report it to the fuzzcompile developers.", debug)
    sys.exit(status if isinstance(status, int) else 0)


def _explain(message: str, debug: bool) -> None:
    trace = traceback.format_exc() if debug else ""
    click.echo(strip_passwords(f"{trace}fuzzcompile: {message}"), err=True)
