"""``fuzzcompile issue``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuzzcompile.front.cli import options
from fuzzcompile.front.cli.case_arguments import (
    ScriptCommand,
    complete_cases_and_findings,
    complete_findings,
    find_case,
    open_corpus,
    open_existing_corpus,
    read_script_arguments,
    require_corpus,
)
from fuzzcompile.front.cli.folded_help import FoldedCommand
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.contract import FixJson
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.hints import format_command
from fuzzcompile.model.judge_task import NamedFunction

if TYPE_CHECKING:
    from fuzzcompile.model.culprit_contract import CulpritJson
    from fuzzcompile.report.finding_facts import IssueFacts


@click.command(cls=ScriptCommand)
@click.argument("name", metavar="FINDING|GROUP|CASE", shell_complete=complete_cases_and_findings)
@click.option("--anyway", is_flag=True, help="Print the draft of what is not to be filed, the reason on top.")
@options.conditions
@options.corpus
@click.option(
    "--search", is_flag=True, help="First search PyTorch's issues and pull requests for reports on the finding."
)
@click.option("--bisect", is_flag=True, help="Let torch's own CompilerBisector say where the script goes wrong, too.")
@click.option("--fix", is_flag=True, help="Try a guard on the rule at fault, in memory, and show it as a fix to try.")
@click.option(
    "--comment", metavar="ISSUE", help="Print a comment for this report in place of an issue: '#123', or its URL."
)
@options.json_output
def issue(
    name: str,
    anyway: bool,
    conditions: Conditions,
    location: str | None,
    search: bool,
    bisect: bool,
    fix: bool,
    comment: str | None,
    as_json: bool,
) -> int:
    """Print the draft of a GitHub issue, in Markdown, for a finding, a group of minor findings, or a case file.

    The group `validation` holds what compiles although eager refuses it: its draft is one issue with a table.

    What is not to be filed gets the reason instead, on stderr: no bug, a suspect without proof, fixed in the newest
    torch that was tried, known already, or a rule of PyTorch's for fuzzers that is not met.

    --search asks GitHub's search API, with the token of GITHUB_TOKEN or GH_TOKEN if there is one. What it finds is kept
    in the corpus and stands in the draft.

    --bisect runs torch._inductor.compiler_bisector on the script of the finding, a minute or more, for its answer to
    stand beside ours.

    --fix reads off the nearest program that passes what the rule at fault, or the decomposition, should have asked, and
    runs that as a patch of the installed torch in memory, some minutes: the script, that program, and programs on which
    the rule is right. The draft shows what held; it is never claimed to be the right fix.

    --comment is for a bug that is reported already: a few lines with what the thread may lack, a smaller script, the
    place at fault with its proof, and the versions that were tried.
    """
    path = find_case(name)
    if path is None:
        from fuzzcompile.fuzz.campaign.campaign_outputs import draft_group

        with open_existing_corpus(location) as store:
            draft = None if store is None else draft_group(store, name)
        if draft is not None:
            click.echo(json.dumps({"group": name, "draft": draft}) if as_json else draft, nl=as_json)
            return 0
    if search and path is not None:
        raise UsageError(f"--search is for findings of a corpus, and {name} is a file.")
    found = _search(name, location, as_json=as_json) if search else {}
    facts = _collect_facts(path or name, conditions, location)
    facts = _bisect(facts) if bisect else facts
    facts = replace(facts, shown={**facts.shown, "fix": _try_fix(facts, conditions)}) if fix else facts
    if comment is not None:
        return _print_comment(name, facts, comment, as_json=as_json)
    return _print_draft(name, facts, found, anyway=anyway, as_json=as_json)


def _print_comment(name: str, facts: IssueFacts, report: str, *, as_json: bool) -> int:
    from fuzzcompile.corpus.transactions import issue_url
    from fuzzcompile.report.issue_draft import draft_comment
    from fuzzcompile.report.wording import why_not

    url = issue_url(report)
    comment = draft_comment(facts, url)
    if as_json:
        click.echo(json.dumps({"finding": name, "issue": url, "comment": comment or None}))
    elif comment:
        click.echo(comment, nl=False)
    else:
        click.echo(f"There is nothing to say of {name} there: {why_not(facts)}.", err=True)
    return 0


_BISECTING_SECONDS = 300.0


def _bisect(facts: IssueFacts) -> IssueFacts:
    """The facts with the answer of torch's bisector; as they are where it gives none, which is said."""
    from fuzzcompile.programs.scripts.clean_process import bisect_compiler

    answer = None
    if facts.reproducer is None or facts.nproc is not None or facts.target is not None or facts.report.get("plants"):
        click.echo("CompilerBisector was not run: it needs a script that shows the bug alone in one process.", err=True)
    else:
        click.echo("Running torch's CompilerBisector on the script (a minute or more) ...", err=True)
        if (answer := bisect_compiler(facts.reproducer, _BISECTING_SECONDS)) is None:
            click.echo("CompilerBisector gives no answer on this script.", err=True)
    return facts if answer is None else replace(facts, shown={**facts.shown, "bisector": answer})


_FIXING_SECONDS = 300.0
_TRY_GUARDS = NamedFunction("fuzzcompile.fuzz.rules.guard_trials:try_guards")


def _try_fix(facts: IssueFacts, conditions: Conditions) -> FixJson:
    """The first guard with which the script shows no bug, or why there is none."""
    from fuzzcompile.diagnosis.worker.local_pool import LEAST_THREADS, open_pool
    from fuzzcompile.programs.scripts.reproducer import confirm_reproducer
    from fuzzcompile.run.pool.worker import RemoteError, WorkerFailed, WorkerStartFailed

    script, plants = facts.reproducer, tuple(path.resolve() for path in conditions.plants)
    if script is None or facts.nproc is not None or facts.target is not None:
        return {"why_not": "it takes a script that shows the bug alone in one process"}
    if facts.report.get("plants") and not plants:
        return {"why_not": "the bug was planted, and `--plant` does not say by what"}
    click.echo("Trying guards on the rule at fault (a minute or more) ...", err=True)
    if not confirm_reproducer(script, plants=plants).confirmed:
        return {"why_not": "the script does not show the bug with the torch that is installed here"}
    on_cpu = replace(conditions, device="cpu") if facts.device == "cpu" else conditions
    with open_pool(on_cpu, 1, least_threads=LEAST_THREADS) as pool:
        try:
            task = pool.schedule(
                _TRY_GUARDS, (script, facts.report), label="fix", time_limit=_FIXING_SECONDS, spends=True
            )
            tried: list[FixJson] = task.result()
        except (WorkerFailed, WorkerStartFailed, RemoteError) as error:
            return {"why_not": str(error)}
        finally:
            pool.kill_workers()
    for each in tried:
        if "patch" in each and confirm_reproducer(f"{each['patch']}\n{script}", plants=plants).status == 0:
            return each
    first = tried[0]
    first.pop("patch", None)
    return {"why_not": "the script still shows the bug", **first}


def _search(name: str, location: str | None, *, as_json: bool) -> dict[str, object]:
    """Search GitHub for reports on a finding, and store them in place of those of an earlier search.

    Returns the results as JSON, and prints them as text unless ``as_json``. Where GitHub did not answer, what an
    earlier search found is kept.
    """
    from fuzzcompile.report.github_search import GitHub, search

    with open_existing_corpus(location) as existing:
        store = require_corpus(existing, name)
        finding, best = store.finding(name), store.best_reproducer(name)
        report, source = finding.report, finding.source if best is None else best.source
        expression = ((best and best.shown) or {}).get("expression", "")
        if best is not None and best.report is not None:
            # The culprit of the finding stands in where the reproducer's names less.
            culprits = (best.report.get("culprit"), report.get("culprit"))
            report = {**best.report, "culprit": max(culprits, key=_rank_culprit)}
        with GitHub.of_environment(lambda sentence: click.echo(sentence, err=True)) as github:
            found = search(report, source, github, expression)
        store.keep_related(name, found.related, list(dict.fromkeys(asked.query for asked in found.asked)))
    if not as_json:
        click.echo(found.to_text(), err=True)  # the draft has stdout for itself
    return found.to_json()


def _rank_culprit(culprit: CulpritJson | None) -> tuple[bool, bool]:
    return (bool(culprit and culprit.get("necessary")), bool(culprit and culprit.get("source")))


def _collect_facts(subject: Path | str, conditions: Conditions, location: str | None) -> IssueFacts:
    with open_existing_corpus(location) as store:
        if isinstance(subject, str):
            require_corpus(store, subject).finding(subject)  # before torch is imported to work on it

            from fuzzcompile.fuzz.campaign.campaign_outputs import collect_issue_facts

            return collect_issue_facts(require_corpus(store, subject), subject)

    from fuzzcompile.front.minimize_case import collect_file_facts

    click.echo(f"Judging {subject} and making its script (half a minute or more) ...", err=True)
    return collect_file_facts(subject, conditions, read_script_arguments())


def _print_draft(name: str, facts: IssueFacts, found: Mapping[str, object], *, anyway: bool, as_json: bool) -> int:
    from fuzzcompile.report.filing import find_refusal
    from fuzzcompile.report.issue_draft import draft_issue

    refusal = find_refusal(facts)
    draft = draft_issue(facts, refusal) if refusal is None or anyway else None
    if as_json:
        why = {"reason": refusal and refusal.reason, "remedy": refusal and refusal.remedy}
        answer = {"finding": name, "fileable": refusal is None, **why, "draft": draft, **found}
        click.echo(json.dumps(answer, allow_nan=False))
    elif draft is not None:
        click.echo(draft, nl=False)
    elif refusal is not None:
        hint = " `--anyway` prints the draft." if facts.is_bug else ""
        click.echo(f"{name} is not to be filed: {refusal.reason}.", err=True)
        click.echo(f"What would change that: {refusal.remedy}.{hint}", err=True)
    return 0


# ``fuzzcompile corpus mark``.

# What a status takes besides itself, and an example of it.
_TAKES = {"known": ("ISSUE", "#123"), "dup": ("FINDING", "F1")}


@click.command(cls=FoldedCommand)
@click.argument("name", metavar="FINDING|GROUP", shell_complete=complete_findings)
@click.argument("status", metavar="known|dup|fixed|invalid|wontfix|open")
@click.argument("of", required=False, metavar="[ISSUE|FINDING]")
@click.option("--note", default=None, help="Why, in your own words.")
@options.corpus
def mark(name: str, status: str, of: str | None, note: str | None, location: str | None) -> int:
    """Say what a finding is: known (ISSUE), a dup (of FINDING), fixed, invalid, wontfix, or open again.

    ISSUE is '#123' of pytorch/pytorch (quoted: to a shell, # begins a comment), owner/repository#123, or a URL. GROUP
    is a group of `fuzzcompile corpus list --all`, such as validation. What is said is kept through further hits,
    merges, exports and imports.
    """
    from fuzzcompile.corpus.transactions import Mark, get_status, issue_url

    known = get_status(status)
    what, example = _TAKES.get(known, ("", ""))
    if not what and of is not None:
        raise UsageError(f"{known} takes nothing more, but {of!r} was given: put words into --note.")
    if what and of is None:
        typed = format_command("corpus", "mark", name, known, example, corpus=location)
        raise UsageError(f"{known} needs the {what}: such as `{typed}`.")
    issue = issue_url(of) if known == "known" and of is not None else None
    with open_corpus(location) as store:
        marked, said = store.mark(name, Mark(known, issue, of if known == "dup" else None, note))
    about = said.duplicate_of or said.issue
    click.echo(f"{marked}: {' '.join(filter(None, (said.status, about)))}{f' ({said.note})' if said.note else ''}")
    return 0
