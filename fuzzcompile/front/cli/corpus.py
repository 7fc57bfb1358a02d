"""``fuzzcompile corpus``: the commands that list, show and move findings."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuzzcompile.front.cli import options
from fuzzcompile.front.cli.case_arguments import complete_findings, open_corpus, require_trusted
from fuzzcompile.front.cli.finding_output import (
    format_readable,
    make_finding_json,
    make_reproducer_json,
    print_finding,
    print_findings,
)
from fuzzcompile.front.cli.folded_help import FoldedCommand
from fuzzcompile.model import hints
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.evidence import count_noun
from fuzzcompile.model.privacy import strip_password

if TYPE_CHECKING:
    from fuzzcompile.corpus.imports import Copied
    from fuzzcompile.corpus.reader import JudgedRun
    from fuzzcompile.model.conditions import Conditions


@click.group()
def corpus() -> None:
    """List, show, export and import the findings of the corpus."""


@corpus.command("list", cls=FoldedCommand)
@click.option("--all", "every", is_flag=True, help="Also list each of those that are counted in one line, by group.")
@options.corpus
@options.json_output
def list_findings(every: bool, location: str | None, as_json: bool) -> int:
    """List the findings, one per root cause, the worst first.

    Layouts that nobody is hurt by and calls that only eager refuses are counted in one line. --json lists all.
    """
    with open_corpus(location) as store:
        findings = store.summaries()
        groups = {group.name: group for group in store.umbrellas()}
        counters, place = None if as_json else store.counters(), store.location
    if as_json:
        for stored in findings:
            click.echo(json.dumps(make_finding_json(stored, groups)))
        return 0
    print_findings(findings, groups, corpus=place, every=every)
    if counters is not None:
        click.echo(f"{counters.cases} cases, {counters.runs} runs, {len(findings)} findings.")
    return 0


@corpus.command(cls=FoldedCommand)
@click.argument("finding", shell_complete=complete_findings)
@options.corpus
@options.json_output
def show(finding: str, location: str | None, as_json: bool) -> int:
    """Show a finding: its report, its proof and its reproducer."""
    with open_corpus(location) as store:
        stored = store.finding(finding)
        reproducer = store.best_reproducer(stored.id)
        group, place = store.umbrella(stored.umbrella), store.location
        related = [link.to_json() for link in store.related(stored.id)]
        done = store.replays(stored.id)
    replays = [{"torch": run.torch, "status": run.status, "when": run.created.isoformat()} for run in done]
    if as_json:
        groups = {} if group is None else {group.name: group}
        whole = {"report": stored.report, "source": stored.source, "reproducer": make_reproducer_json(reproducer)}
        seen = {"related": related, "replays": replays}
        click.echo(json.dumps({**make_finding_json(stored, groups), **whole, **seen}, allow_nan=False))
        return 0
    print_finding(finding, stored, reproducer, group, corpus=place)
    return 0


@corpus.command(cls=FoldedCommand)
@click.argument("finding", shell_complete=complete_findings)
@click.argument("folder", type=options.FOLDER)
@options.corpus
def export(finding: str, folder: Path, location: str | None) -> int:
    """Write a finding's case, reproducer and report as files into FOLDER."""
    with open_corpus(location) as store:
        for path in store.export(finding, folder):
            click.echo(str(path))
    return 0


@corpus.command(cls=FoldedCommand)
@click.argument("findings", nargs=-1, metavar="[FINDING]...", shell_complete=complete_findings)
@click.option("--drafts", type=options.FOLDER, help="Write their issue drafts anew into this folder.")
@options.trust
@options.json_output
@options.conditions
@options.corpus
def refresh(
    findings: tuple[str, ...],
    drafts: Path | None,
    trusted: bool,
    as_json: bool,
    conditions: Conditions,
    location: str | None,
) -> int:
    """Judge findings again on the torch at hand, all of them if none is named.

    Of a finding that still shows, the report (with its signature, cause and severity), the reproducer and the script
    for an issue with its ladder of backends are stored anew. One that shows no more is left as it is.
    """
    counts: Counter[str] = Counter()
    with open_corpus(location) as store:
        named = [store.finding(name) for name in findings] or store.findings()
        require_trusted(store, named, trusted=trusted)
        names = list(dict.fromkeys(finding.public_id for finding in named))

        from fuzzcompile.front.stored_findings import refresh as judge_again  # imports torch

        def start(name: str) -> None:
            click.echo(f"[{names.index(name) + 1}/{len(names)}] judging {name} ...", err=True)

        for refreshed in judge_again(store, names, conditions, drafts=drafts, on_start=start):
            counts[refreshed.result] += 1
            where = "" if refreshed.kept == refreshed.finding else f", merged into {refreshed.kept}"
            note = f" ({refreshed.note})" if refreshed.note else ""
            click.echo(f"  {refreshed.finding}: {refreshed.result}{where}, {refreshed.signature}{note}", err=True)
            if as_json:
                click.echo(json.dumps(asdict(refreshed)))
    click.echo(", ".join(f"{count} {result}" for result, count in counts.items()) or "No findings yet.", err=True)
    return 3 if counts["not judged"] else 0


@corpus.command("import", cls=FoldedCommand)
@click.argument("source", metavar="DIR|FILE|URL", callback=options.warn_of_password)
@click.option("--trust", "trusted", is_flag=True, help="Let commands run what comes, as if it were from here.")
@click.option(
    "--whole",
    is_flag=True,
    help="Copy all of another corpus, ids, campaigns, marks and trust, to an empty place: --corpus PATH|URL.",
)
@options.corpus
@options.json_output
def import_findings(source: str, trusted: bool, whole: bool, location: str | None, as_json: bool) -> int:
    """Take findings into the corpus: exports in DIR or below it, a zip of them, or another corpus, here or at a URL.

    What is there already is recognised. A person's marks in this corpus stand. Nothing that is imported is run, neither
    now nor later, until you trust it: with --trust, or with `fuzzcompile corpus trust` once you have read it.

    With --whole, a copy that was cut off is resumed by the same command, and until it is complete no other command
    takes its place.
    """
    if whole:
        return _copy_whole(source, location, as_json=as_json)
    from rich.console import Console

    from fuzzcompile.corpus.location import find_file, resolve
    from fuzzcompile.corpus.store import Store
    from fuzzcompile.corpus.transfer import opened

    with (
        opened(source, find_file(resolve(location))) as found,
        open_corpus(location, create=True) as store,
        Console(stderr=True).status("Reading ...") as status,
    ):

        def on_progress(copied: Copied, total: int) -> None:
            status.update(f"Copied {copied.runs} of {total} runs ...")

        if isinstance(found, Store):
            arriving = store.copy(found, on_progress, trusted=trusted)
        else:
            arriving = store.take(found, trusted=trusted)
        counts = dict.fromkeys(("new", "known", "refused"), 0)
        for item in arriving:
            counts[item.how] += 1
            if as_json:
                click.echo(json.dumps(vars(item)))
                continue
            merged = f"; {', '.join(item.merged)} merged into it" if item.merged else ""
            why = f" ({item.why})" if item.why else ""
            click.echo(f"{item.finding or 'refused'}  {item.name}{why}{merged}", err=item.how == "refused")
        foreign, place = sum(not finding.trusted for finding in store.summaries()), store.location
    if not as_json:
        click.echo(f"{counts['new']} new, {counts['known']} known, {counts['refused']} refused.")
        if foreign:
            trusting = hints.format_command("corpus", "trust", all=True, corpus=place)
            click.echo(f"Not trusted yet, and therefore not run: {foreign}. Once they are read: {trusting}")
    if not sum(counts.values()) and not as_json:
        click.echo(f"{strip_password(source)} holds no finding.")
    if counts["refused"] and not counts["new"] + counts["known"]:
        raise UsageError(f"Nothing of {strip_password(source)} could be imported; the reasons are above.")
    return 0


@corpus.command(cls=FoldedCommand)
@click.argument("findings", nargs=-1, metavar="[FINDING]...", shell_complete=complete_findings)
@click.option("--all", "every", is_flag=True, help="Trust all that the corpus holds.")
@options.corpus
def trust(findings: tuple[str, ...], every: bool, location: str | None) -> int:
    """Let commands run findings that were imported: their case and their reproducer, as they are now.

    Running them runs their code with your permissions; read them first (`fuzzcompile corpus show`).
    """
    if every == bool(findings):
        raise UsageError("Name the findings to trust, or give --all.")
    with open_corpus(location) as store:
        marked = store.trust(None if every else findings)
    click.echo(f"Trusted: {count_noun(marked, 'source')}." if marked else "Nothing to do: they are trusted already.")
    return 0


@corpus.command(cls=FoldedCommand)
@options.corpus
@options.json_output
def stats(location: str | None, as_json: bool) -> int:
    """Count what the corpus holds, and how large it is."""
    with open_corpus(location) as store:
        counted = store.stats()
    if as_json:
        click.echo(json.dumps(vars(counted)))
        return 0
    kept = f"{counted.reproducers} reproducers, {counted.replays} replays"
    click.echo(f"{counted.cases} cases, {counted.runs} runs, {counted.campaigns} campaigns; {kept}.")
    click.echo(f"Verdicts: {_format_counts(counted.verdicts)}.")
    click.echo(f"{counted.findings} findings.")
    by = {"severity": counted.by_severity, "status": counted.by_status, "stage": counted.by_stage}
    for what, numbers in by.items() if counted.findings else ():
        click.echo(f"  by {what}: {_format_counts(numbers)}")
    sizes = counted.bytes
    click.echo(
        f"{_format_megabytes(sizes['file'])}, of which {_format_megabytes(sizes['reports'])} reports and "
        f"{_format_megabytes(sizes['cases'])} cases; {counted.environments} environments."
    )
    return 0


@corpus.command(cls=FoldedCommand)
@click.option("--older-than", "days", default=30, show_default=True, metavar="DAYS", type=click.IntRange(0))
@click.option("--dry-run", "dry", is_flag=True, help="Only say what would go.")
@options.corpus
@options.json_output
def gc(days: int, dry: bool, location: str | None, as_json: bool) -> int:
    """Drop the sources and reports of clean cases that were last judged DAYS ago or earlier.

    Findings keep all that is theirs, and so do cases that were the first to reach something. Of a campaign's cases, the
    place in its stream and the verdict stay, so that a later campaign goes on behind them.
    """
    with open_corpus(location) as store:
        before = store.stats().bytes["file"]
        freed = store.collect(datetime.now(UTC) - timedelta(days=days), dry=dry)
        after = store.stats().bytes["file"]
    if as_json:
        click.echo(json.dumps({**vars(freed), "dry_run": dry, "file_before": before, "file_after": after}))
        return 0
    would = "would be " if dry else ""
    click.echo(
        f"{freed.cases} cases with {freed.runs} runs {would}dropped, {freed.emptied} cases {would}emptied, "
        f"{freed.environments} environments {would}dropped: {_format_megabytes(freed.bytes)} of text."
    )
    if not dry:
        click.echo(f"The corpus takes {_format_megabytes(after)}; it took {_format_megabytes(before)}.")
    return 0


def _copy_whole(source: str, target: str | None, *, as_json: bool) -> int:
    from rich.console import Console

    from fuzzcompile.corpus.transfer import transfer

    with Console(stderr=True).status("Reading ...") as status:
        done = transfer(source, target, lambda table, there, of: status.update(f"Copied {there} of {of} {table} ..."))
    if done.restarted:
        click.echo(f"{done.source} had changed since the copy was begun: it was copied anew.", err=True)
    if as_json:
        click.echo(json.dumps(vars(done)))
        return 0
    before = " (the others by an earlier call)" if done.resumed else ""
    click.echo(f"{sum(done.rows.values())} rows, {done.copied} of them now{before}: {done.target} is complete.")
    return 0


def _format_counts(counted: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in counted.items()) or "none"


def _format_megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


@corpus.command(cls=FoldedCommand)
@click.argument("name", metavar="HASH")
@options.corpus
@options.json_output
def case(name: str, location: str | None, as_json: bool) -> int:
    """Print the source of a judged case, and how it was judged, from its HASH or the beginning of it.

    Logs and reports call it case_HASH. The source goes to standard output, so that it can be judged again; a terminal
    gets it without the characters that would change what it shows:
    `fuzzcompile corpus case HASH > case.py; fuzzcompile triage case.py`.
    """
    with open_corpus(location) as store:
        found, judged = store.judged(name)
    if as_json:
        runs = [{**vars(run), "created": run.created.isoformat()} for run in judged]
        known = {"sha256": found.sha256, "source": found.source, "trusted": not found.imported}
        click.echo(json.dumps({**known, "runs": runs}, allow_nan=False))
        return 0
    for run in judged:
        click.echo(format_readable(" ".join(_format_run(run).split())), err=True)
    if not found.source:
        raise UsageError(f"The source of {name} was dropped by `{hints.format_command('corpus', 'gc')}`: it was clean.")
    source = format_readable(found.source) if sys.stdout.isatty() else found.source
    click.echo(source, nl=not source.endswith("\n"), color=True)  # to a file as it is, whatever it holds
    if found.imported:
        click.echo("It comes from another corpus: judging it runs its code, so read it first.", err=True)
    if judged:
        click.echo(f"Judge it again: {format_readable(_format_rerun(judged[-1]))}", err=True)
    return 0


def _format_run(run: JudgedRun) -> str:
    environment, report = run.environment, run.report
    where = environment.get("target") or environment.get("device")
    words = {"vetoes": "vetoes", "plants": "plants with hashes", "custom": "own passes"}
    processor = environment.get("device_name") or environment.get("cpu") or "an unknown processor"
    parts = [
        f"{run.created:%Y-%m-%d %H:%M} {report['verdict']}{' (screened)' if run.screened else ''}",
        f"torch {environment.get('torch')} for {where}, machine {environment.get('machine') or '?'} ({processor})",
        *([f"hit of {run.finding}"] if run.finding else []),
        *([f"place {run.place[1]} of stream {run.place[0]}"] if run.place else []),
        *(f"{words[what]} {', '.join(map(str, named))}" for what, named in _list_conditions(run).items()),
    ]
    return "; ".join(parts)


def _list_conditions(run: JudgedRun) -> dict[str, list[object]]:
    return {what: named for what, named in (run.conditions or {}).items() if isinstance(named, list) and named}


def _format_rerun(run: JudgedRun) -> str:
    """Return the command that judges the case again; plants and passes are the user's files, which the corpus lacks."""
    target = run.environment.get("target")
    device = "auto" if target else str(run.environment.get("device")).partition(":")[0]
    vetoes = tuple(_list_conditions(run).get("vetoes", ()))
    return hints.format_command("triage", "case.py", device=device, target=target, veto=vetoes)


# ``fuzzcompile corpus report``.


@click.command(cls=FoldedCommand)
@options.output_file(
    "--out",
    required=True,
    metavar="FILE.html",
    help="The file to write. It holds all that it shows and needs no network.",
)
@click.option(
    "--summary",
    type=options.PATH,
    metavar="FILE",
    help="What `fuzzcompile run --summary FILE` wrote: the report then says what that campaign hit, and what was new.",
)
@options.corpus
def report(out: Path, summary: Path | None, location: str | None) -> int:
    """Write the findings of the corpus as one HTML file to send.

    It says what matters first, lists the findings to filter and sort, and has a page for each: reproducer, evidence,
    culprit, graph before and after, other versions of torch. Coverage by stage and the pace of campaigns follow.
    """
    from fuzzcompile.report.output_files import write_whole
    from fuzzcompile.report.pages.corpus_page import page_of_corpus

    campaign = None if summary is None else _read_summary(summary)
    with open_corpus(location) as store:
        page, number = page_of_corpus(store, datetime.now(UTC), campaign).encode("utf-8"), len(store.findings())
    write_whole(out, page, "--out")
    click.echo(f"{out}: {count_noun(number, 'finding')}, {len(page) / 2**20:.1f} MiB.", err=True)
    return 0


def _read_summary(path: Path) -> Mapping[str, object]:
    ours = "give the file that `fuzzcompile run --summary` wrote"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}; {ours}.") from error
    except ValueError as error:
        raise UsageError(f"{path} is no summary of a campaign: it holds no JSON; {ours}.") from error
    if not isinstance(content, dict) or not isinstance(content.get("findings"), list) or "cases" not in content:
        raise UsageError(f"{path} is no summary of a campaign; {ours}.")
    return content
