"""CASE|FINDING arguments: a file with a script's own arguments, or a finding; and what a shell completes of both."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from fuzzcompile.front.cli.folded_help import FoldedCommand
from fuzzcompile.model.errors import CaseError, UsageError
from fuzzcompile.model.hints import format_command
from fuzzcompile.model.settings import locate_corpus, read_settings
from fuzzcompile.programs.casefiles.case_file import looks_like_path, read_case_file

if TYPE_CHECKING:
    from fuzzcompile.corpus.records import FindingSummary
    from fuzzcompile.corpus.store import Store

_MOST_NAMES = 500  # that a shell is offered
_MOST_LISTED = 5


class ScriptCommand(FoldedCommand):
    """A command that hands what follows ``--`` to the script that it reads (:func:`read_script_arguments`)."""

    def __init__(self, *arguments: Any, **attributes: Any) -> None:
        said = "What follows after `--` are a script's own arguments, as in `train.py -- --steps 3`."
        super().__init__(*arguments, epilog=said, **attributes)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse what stands before ``--``; an unknown option may be one of the script's."""
        end = args.index("--") if "--" in args else len(args)
        ctx.meta[_ARGUMENTS] = tuple(args[end + 1 :])
        own = args[:end]
        try:
            return super().parse_args(ctx, list(own))
        except click.NoSuchOption as error:
            at = next((number for number, word in enumerate(own) if word.startswith(error.option_name)), 0)
            if any(map(looks_like_path, own[:at])):
                moved = format_command(str(self.name), *own[:at], arguments=(*own[at:], *args[end + 1 :]))
                raise click.UsageError(
                    f"{error.format_message()} An option of the script itself follows after `--`: `{moved}`.", ctx
                ) from error
            raise

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Say in the usage line that the script's arguments follow last."""
        return [*super().collect_usage_pieces(ctx), "[-- ARGUMENT...]"]


_ARGUMENTS = "arguments of the script"


def read_script_arguments() -> tuple[str, ...]:
    """The words behind ``--`` on the command line of the :class:`ScriptCommand` that runs."""
    arguments: tuple[str, ...] = click.get_current_context().meta[_ARGUMENTS]
    return arguments


def open_corpus(location: str | None, *, create: bool = False) -> Store:
    """The corpus at a place or, with None, the one in force."""
    from fuzzcompile.corpus.store import Store

    return Store.open(location, create=create)


@contextlib.contextmanager
def open_existing_corpus(location: str | None) -> Iterator[Store | None]:
    """The corpus, or None if there is none at the default place."""
    from fuzzcompile.corpus.records import CorpusError

    try:
        store = open_corpus(location)
    except CorpusError:
        if location is not None:
            raise
        yield None
        return
    with store:
        yield store


def find_case(name: str) -> Path | None:
    """The case file that ``name`` names, read and found fit; None if it names a finding, which takes no arguments."""
    path = Path(name)
    if not path.is_file() and not looks_like_path(name):
        if click.get_current_context().meta.get(_ARGUMENTS):
            raise UsageError(f"{name} is a finding, which takes no arguments; leave out `--` and what follows it.")
        return None
    read_case_file(path)
    return path


def require_trusted(store: Store, findings: Sequence[FindingSummary], *, trusted: bool) -> None:
    """Refuse to run findings that come from another corpus, unless the user trusts them (now: ``--trust``)."""
    if trusted:
        store.trust(finding.id for finding in findings)
        return
    corpus = store.location
    foreign = [finding.public_id for finding in findings if not finding.trusted]
    if not foreign:
        return
    few = len(foreign) <= _MOST_LISTED
    trusting = format_command("corpus", "trust", *(foreign if few else ()), all=not few, corpus=corpus)
    read = format_command("corpus", "show", foreign[0], corpus=corpus)
    if len(foreign) == 1:
        says = f"{foreign[0]} comes from another corpus, and running it runs its code: read it with `{read}`"
    else:
        listed = ", ".join(foreign) if few else f"{len(foreign)} findings ({', '.join(foreign[:_MOST_LISTED])}, ...)"
        says = f"{listed} come from another corpus, and running them runs their code: read each as with `{read}`"
    raise UsageError(f"{says}, then give --trust, or `{trusting}`.")


def require_corpus(store: Store | None, name: str) -> Store:
    """The corpus that must hold ``name``, which is not a file."""
    if store is None:
        raise CaseError(f"{name} is not a file, and there is no corpus here; name a case file or use --corpus.")
    return store


def complete_findings(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of findings."""
    rows = _query_corpus(context, "SELECT id, verdict FROM findings ORDER BY id DESC LIMIT ?")
    named = [(f"F{number}", str(verdict)) for number, verdict in rows]
    return [CompletionItem(name, help=verdict) for name, verdict in named if name.startswith(incomplete.upper())]


def complete_cases_and_findings(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Ids of findings; files where no id begins so."""
    return [CompletionItem(incomplete, type="file"), *complete_findings(context, parameter, incomplete)]


def complete_rewrites(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Rewrites and passes that campaigns saw at work."""
    rows = _query_corpus(context, "SELECT DISTINCT rewrite FROM rewrite_coverage ORDER BY 1 LIMIT ?")
    return [CompletionItem(str(name)) for (name,) in rows if str(name).startswith(incomplete)]


def _query_corpus(context: click.Context, query: str) -> Iterator[tuple[object, ...]]:
    """Yield rows of the corpus in force, read without loading more than SQLite; none where it cannot be read."""
    try:
        named = context.params.get("location") or read_settings().find_value("corpus")
    except UsageError:  # the command itself says what is wrong with the settings
        return
    place = locate_corpus(named)
    if "://" in place:
        return
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(sqlite3.connect(f"{Path(place).as_uri()}?mode=ro", uri=True, timeout=0.2)) as connection,
    ):
        yield from connection.execute(query, (_MOST_NAMES,))
