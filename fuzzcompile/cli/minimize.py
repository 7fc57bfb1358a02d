"""``fuzzcompile minimize``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from fuzzcompile.cli import options
from fuzzcompile.cli.completing import cases_and_findings
from fuzzcompile.cli.minimizing import ProgressLine, conclusion, confirmed
from fuzzcompile.cli.pending import minimize_pending
from fuzzcompile.cli.subjects import case_named, existing_corpus, may_run, needed, require_finding
from fuzzcompile.errors import EnvironmentUnfit, UsageError
from fuzzcompile.hints import Named
from fuzzcompile.worker.conditions import Conditions

if TYPE_CHECKING:
    from fuzzcompile.commands.minimize import Subject
    from fuzzcompile.corpus import Kept, Store
    from fuzzcompile.reduction.search import Progress
    from fuzzcompile.worker.reductions import Minimized

# What judging a candidate that failed in another way may take, the start of a worker included.
_SECONDS_OF_ANOTHER = 15.0
# The exit status that shells give to a program that Ctrl-C ended.
_INTERRUPTED = 130


@click.command()
@click.argument("name", required=False, metavar="[CASE|FINDING]", shell_complete=cases_and_findings)
@options.model("name", str)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Where to write; default repro_NAME.py.")
@click.option(
    "--pending",
    is_flag=True,
    help="Minimize the findings of the corpus that have no reproducer yet, the worst first, within --budget.",
)
@click.option(
    "--budget",
    default="5m",
    show_default=True,
    metavar="90s|10m",
    help="Time for everything from the start of the command; a search takes ten seconds at least.",
)
@click.option(
    "--compiles", default=200, show_default=True, type=click.IntRange(min=1), help="Compiles and screens to spend."
)
@click.option(
    "--keep",
    type=click.Choice(["verdict", "culprit"]),
    default="culprit",
    show_default=True,
    help="What must stay the same: the kind of verdict only, or the culprit too.",
)
@click.option(
    "--others",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for candidates that fail in another way (secondary findings).",
)
@click.option("--resume", is_flag=True, help="Continue an earlier search for this case.")
@options.trust
@options.log
@options.conditions
@options.corpus
def minimize(
    name: str | None,
    out: Path | None,
    pending: bool,
    budget: str,
    compiles: int,
    keep: Literal["verdict", "culprit"],
    others: Path | None,
    resume: bool,
    trusted: bool,
    log: Path | None,
    conditions: Conditions,
    location: str | None,
) -> int:
    """Minimize a case or a finding, and write a reproducer that needs only torch.

    A generated case from the corpus is first reduced through its recipe. Then, as for any other case or script, the
    graphs that dynamo captures are reduced. The reproducer exits with 1 on the bug and with 0 once it is fixed. Ctrl-C
    keeps the best case so far; OUT.state keeps what was learned until a search is finished, for --resume.

    With --pending, every finding that a campaign had no time to minimize gets its reproducer in the corpus, and its
    issue draft in reports/drafts.
    """
    if pending:
        if name or out or others or resume:
            raise UsageError("--pending minimizes what waits in the corpus: leave out the case, --out and --resume.")
        return minimize_pending(budget, conditions, location, log, trusted=trusted)
    assert name is not None  # `options.model` has asked for one
    case_named(name)
    from fuzzcompile.campaign.budget import Budget, Clock, seconds_of
    from fuzzcompile.reporting.files import check_writable

    clock = Clock(Budget(seconds=seconds_of(budget, "minimize --budget")))
    if out is not None:
        check_writable(out, "--out", parents=True)
    if case_named(name) is None:
        require_finding(name, location)
        with existing_corpus(location) as store:
            may_run(needed(store, name), [needed(store, name).finding(name)], trusted=trusted)

    from fuzzcompile.campaign.findings import keep_reproducer
    from fuzzcompile.commands.minimize import conditions_of
    from fuzzcompile.commands.minimize import minimize as search
    from fuzzcompile.reporting.event_log import EventLog

    given_out = out
    with EventLog(log) as events, existing_corpus(location) as store:
        subject = _subject(name, out, store, conditions, resume=resume)
        if subject is None:
            click.echo(f"{name} shows no bug: there is nothing to minimize. `{_why(name, conditions)}` says why.")
            return 0
        conditions = conditions_of(subject, conditions)
        out = out or _default_out(name, subject.finding)
        click.echo(f"Minimizing: {subject.report['verdict']}, {subject.report['signature']} ...", err=True)
        started = {"name": name, "verdict": subject.report["verdict"], "signature": subject.report["signature"]}
        events.write("minimize_started", started)

        with ProgressLine(subject.source) as line:

            def probed(progress: Progress) -> None:
                events.write("candidate_probed", vars(progress))
                line.show(progress)

            small = search(
                subject,
                conditions,
                seconds=clock.remaining,
                compiles=compiles,
                keep=keep,
                state=_state_of(out),
                resume=resume,
                on_progress=probed,
            )
        events.write("minimize_finished", _summary(small, out))
        if store is not None and subject.finding is not None and not small.interrupted:
            kept = keep_reproducer(store, subject.finding, small)
            for text in _what_became(kept, subject.finding):
                click.echo(text)
        _write(out, small.reproducer)
        typed = {**conditions.options(), "corpus": location, "out": given_out, "others": others}
        for text in conclusion(small, out, Named(name, typed), others):
            click.echo(text)
        if store is not None and small.other_sources and not small.interrupted:
            _judge_others(store, small, conditions, clock.remaining)
    if others is not None:
        for number, source in enumerate(small.other_sources, start=1):
            _write(others / f"{out.stem}_other_{number}.py", source)
    named = Named(subject.finding or name, {**conditions.options(), "corpus": location})
    return _status(small, out, named)


def _summary(small: Minimized, out: Path) -> dict[str, object]:
    """The fields of the last event."""
    lines = {"lines_before": small.lines_before, "lines": small.lines_after, "how": small.how}
    ended = {"confirmed": small.confirmed, "interrupted": small.interrupted, "note": small.note}
    return {"out": str(out), **lines, **ended, "tests": small.tests, "seconds": round(small.seconds, 1)}


def _subject(
    name: str,
    out: Path | None,
    store: Store | None,
    conditions: Conditions,
    *,
    resume: bool,
) -> Subject | None:
    """Return the case that ``name`` names: a file, judged now unless an earlier search did so, or a stored finding."""
    from fuzzcompile.commands.minimize import subject_of_file, subject_of_finding, subject_of_state

    path = Path(name)
    if not path.is_file():
        return subject_of_finding(needed(store, name), name)
    if resume:
        return subject_of_state(path, store, _state_of(out or _default_out(name)))
    click.echo(f"Judging {path} ...", err=True)
    return subject_of_file(path, store, conditions)


def _why(name: str, conditions: Conditions) -> str:
    return Named(name, conditions.options()).command("triage")


def _what_became(kept: Kept, finding: str) -> Iterator[str]:
    """Yield sentences on the findings that the reproducer changed: one that is new, and those that were merged."""
    from fuzzcompile.corpus import public_id

    if kept.is_new_finding:
        yield f"The reproducer shows another cause than {finding}: it is {kept.public_id}, {kept.signature}."
    for key in kept.merged:
        yield f"{public_id(key)} is the same bug as {kept.public_id}, and was merged into it."


def _default_out(name: str, finding: str | None = None) -> Path:
    stem = Path(name).stem if finding is None or Path(name).is_file() else finding
    return Path(f"repro_{stem}.py")


def _state_of(out: Path) -> Path:
    return out.with_name(f"{out.name}.state")


def _judge_others(store: Store, small: Minimized, conditions: Conditions, seconds: float) -> None:
    from fuzzcompile.commands.secondary import MOST, store_secondary_findings

    sources, most = small.other_sources, min(MOST, int(seconds / _SECONDS_OF_ANOTHER))
    if not most:
        click.echo("Of the candidates that failed in another way, the budget leaves no time to judge any.", err=True)
        return
    click.echo(f"Judging up to {most} of {len(sources)} candidates that failed in another way ...", err=True)
    for secondary in store_secondary_findings(store, sources, conditions, most):
        new = "new" if secondary.is_new else "known"
        click.echo(f"Secondary finding: {secondary.finding} ({new}), {secondary.verdict}, {secondary.signature}")


def _status(small: Minimized, out: Path, named: Named) -> int:
    """The exit status; the last line says what to do next."""
    if small.interrupted:
        return _INTERRUPTED
    if small.confirmed:
        click.echo(confirmed(small, out, named))
    elif small.how != "as found":
        raise EnvironmentUnfit(
            f"{out} does not show the bug when run alone: {' '.join(small.confirmation.split())[-200:]}"
        )
    return 0


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentUnfit(f"Cannot write {path}: {error.strerror}; choose another --out.") from error
