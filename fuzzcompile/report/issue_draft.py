"""The draft of a GitHub issue, in the form of PyTorch's torch.compile bug report."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fuzzcompile.model.culprit_contract import read_details
from fuzzcompile.model.privacy import fold_lines, scrub
from fuzzcompile.model.templates import get_environment
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.report import proof as place
from fuzzcompile.report import wording
from fuzzcompile.report.circumstances import seen_on, versions
from fuzzcompile.report.filing import Refusal, rules
from fuzzcompile.report.finding_facts import IssueFacts, case_part
from fuzzcompile.report.proof import (
    NEEDED,
    ablation_rows,
    error_rows,
    format_shown,
    get_diff,
    has_errors,
    is_measured,
    named,
    workaround_with_cost,
)
from fuzzcompile.report.wording import find_pair, refusal

if TYPE_CHECKING:
    from fuzzcompile.corpus.records import Umbrella


MOST_LINES = 40  # before the folded details
_MAX_DIFF = 60
_MAX_KERNEL = 120
_RELATED = 3  # links in the line on related reports
_QUERIES = 4  # of a search that found nothing
_WIDEST = 200  # characters of a line of output
_ALIKE = 60  # characters by which a line of the log is known again in an output, where lines are cut
_RESULTS = {"right": "right", "wrong": "**wrong**", "raises": "**raises**"}
# What a workaround costs on a program of a few elements says nothing.
_PRICE = re.compile(r", [\d.]+ times the run time$")
# The same where eager mode itself is wrong: what agrees with it is wrong too.
_AGAINST_WRONG_EAGER = {"right": "as eager: **wrong**", "wrong": "differs"}
# The compilers' own messages in the log of an error: g++, clang++, Triton, and the last line of a traceback.
_MESSAGE = re.compile(r"(?:\berror: |^[\w.]*(?:Error|Exception|Failure)\b: ).+")


@dataclass(frozen=True)
class Shape:
    """Lines of the script and of its output before the folded details.

    ``script`` is "whole", "case" (a checking script without the part that runs it) or "folded".
    """

    output: int
    script: str = "whole"


# Tried in this order until the draft is short enough.
_SHAPES = (
    *(Shape(lines) for lines in (12, 6, 3, 1, 0)),
    *(Shape(lines, "case") for lines in (6, 0)),
    *(Shape(lines, "folded") for lines in (6, 0)),
)


def draft_issue(facts: IssueFacts, refusal: Refusal | None = None) -> str:
    """The draft of a bug, in Markdown: at most 40 lines, and what is folded below them.

    It claims what the facts show and nothing beyond: what was not run is reported as not run.

    Args:
        facts: the finding; of one that is no bug, only the refusal is printed.
        refusal: why the finding is not to be filed; it stands on top.
    """
    if not facts.is_bug:
        return _on_top(refusal) if refusal is not None else ""
    for shape in _SHAPES:
        text = _rendered(facts, refusal, shape)
        if len(text.partition("<details>")[0].splitlines()) <= MOST_LINES:
            break
    return text


def _on_top(refusal: Refusal) -> str:
    return f"> **Not to be filed: {refusal.reason}.** What would change that: {refusal.remedy}.\n"


def _rendered(facts: IssueFacts, refusal: Refusal | None, shape: Shape) -> str:
    script, output = _script(facts)
    errors, left_out = error_rows(facts)
    log = scrub(facts.shown.get("error_log") or "").strip()
    return (
        get_environment()
        .get_template("reports/issue.md.j2")
        .render(
            facts=facts,
            on_top=_on_top(refusal) if refusal is not None else "",
            shape=shape,
            title=wording.title(facts),
            summary=wording.summary(facts),
            script=script,
            case=case_part(script) if shape.script == "case" else script,
            output=_shortened(output, log, shape.output),
            whole_output=scrub(output).strip(),
            ladder=list(_ladder(facts)),
            points=list(_points(facts)),
            errors=errors if any(is_measured(row) for row in errors) else [],
            left_out=left_out,
            culprits=list(_culprits(facts)),
            ablations=list(ablation_rows(facts)),
            ablation_errors=has_errors(facts.report),
            diff=[scrub(line) for line in get_diff(facts.culprit)[:_MAX_DIFF]],
            kernel=_kernel(facts),
            log=log,
            notes=[scrub(note) for note in facts.report.get("evidence", {}).get("notes") or ()],
            versions=[*versions({**facts.environment, **facts.where}), *_machines(facts)],
            rules=rules(facts),
            labels=", ".join(f"`{label}`" for label in place.labels(facts)),
            todo=list(_todo(facts)),
        )
    )


def _machines(facts: IssueFacts) -> Iterator[tuple[str, str]]:
    """On how many machines it was seen, in one line beside the versions."""
    if facts.machines is not None:
        yield "Machines", scrub(seen_on(facts.machines))


def _script(facts: IssueFacts) -> tuple[str, str]:
    """The script to show first, and what it printed: the eager one, the plain one, or the one that checks itself."""
    shown = facts.shown
    if facts.without_compiler:
        return shown["eager_only"].strip(), shown.get("eager_only_output") or ""
    if facts.plain:
        return facts.plain.strip(), shown.get("plain_output") or ""
    return (facts.reproducer or "").strip(), ""


def _shortened(output: str, log: str, limit: int) -> list[str]:
    """The last lines of an output, and the compilers' own messages that it lacks; at most ``limit`` lines."""
    lines = [scrub(line) for line in output.strip().splitlines()]
    messages = [line.strip() for line in log.splitlines() if _MESSAGE.search(line.strip())]
    new = [line for line in dict.fromkeys(messages) if not any(line[:_ALIKE] in known for known in lines)]
    return [line[:_WIDEST] for line in [*lines, *new[:2]]][-limit:] if limit else []


def _ladder(facts: IssueFacts) -> Iterator[tuple[str, str]]:
    for rung in facts.shown.get("ladder") or ():
        says = fold_lines(rung.get("says") or "", 60) if rung["result"] == "raises" else ""
        results = _AGAINST_WRONG_EAGER if facts.eager_is_wrong else _RESULTS
        result = results.get(rung["result"], rung["result"])
        yield rung["backend"], (f"{result}: `{says}`" if says else result).replace("|", "\\|")


def _points(facts: IssueFacts) -> Iterator[tuple[str, str]]:
    """Yield points of one line each: place, proof, workaround, related reports."""
    culprit, component = place.culprit_line(facts), place.name_component(facts)
    label = f" (`{component[1]}`)" if component else ""
    if culprit:
        yield ("Culprit" if facts.proved or facts.without_compiler else "Suspect, not proved"), culprit + label
    elif component:
        yield "Component", component[0] + label
    if paths := place.paths(facts):
        yield "Paths", paths
    if proof := place.proof(facts):
        yield "Proof", proof
    if workaround := workaround_with_cost(facts.report):
        how, _, seen = workaround.partition("  # ")
        yield "Workaround", f"`{scrub(how)}`" + (f" ({_PRICE.sub('', seen)})" if seen else "")
    yield "Related", _related(facts)


def _related(facts: IssueFacts) -> str:
    known = next((said.issue for said in (facts.mark, facts.umbrella) if said is not None and said.issue), None)
    links = [f"[{report.title}]({report.url}) ({report.kind}, {report.state})" for report in facts.related[:_RELATED]]
    if links or known:
        return "; ".join([*([known] if known else []), *links])
    if facts.searched:
        asked = ", ".join(f"`{query}`" for query in facts.queries[:_QUERIES])
        words = f" for {asked}" if asked else ""
        return f"a search of issues and pull requests{words} on {facts.searched} found no report."
    return "not searched."


def _culprits(facts: IssueFacts) -> Iterator[str]:
    """Yield the folded details on the culprit beside its place."""
    culprit = facts.culprit
    if culprit is None:
        return
    step = culprit.get("step")
    if step is not None:
        yield f"It moves the result by {step:.3g} of its size when its graph is run in float64."
    if shown := format_shown(culprit):
        yield f"{shown[:1].upper()}{shown[1:]}."
    yield from (
        f"{NEEDED.capitalize()}: {named(contributor)}." for contributor in facts.report.get("contributors") or ()
    )


def _kernel(facts: IssueFacts) -> list[str]:
    """The generated kernel at fault, for a target: nobody can look at it on the device."""
    if facts.target is None or facts.culprit is None:
        return []
    source = read_details(facts.culprit).get("kernel_source")
    return [scrub(line) for line in str(source or "").strip().splitlines()[:_MAX_KERNEL]]


def _todo(facts: IssueFacts) -> Iterator[str]:
    """List the steps for a person before filing."""
    tried = facts.history.newest if facts.history is not None else None
    newest = f"; the newest version tried is {tried}" if tried else ""
    yield f"Run the script yourself, on the latest nightly too{newest}."
    if facts.target is not None and not facts.seen_on_device:
        yield f"Run it on a {facts.target} GPU: no GPU was used here."
    if facts.related:
        yield "Read the related reports; where one is the same bug, comment there instead."
    else:
        yield "Search issues and pull requests for the operator, the pass and the symptom."
    yield "Say in your own words why it matters, above the generated part: PyTorch's AI policy asks for it."
    if facts.low_confidence:
        yield "Check the result by hand: a part of the compile could not be observed (see the details)."
    yield from (f"{rule.text}: {rule.note}." for rule in rules(facts) if rule.met is None and "indices" in rule.text)


# The draft of one issue for a group of minor findings: a table of what each shows, and their scripts, folded.

_LONGEST = 120
_CLOSED = ("dup", "fixed", "invalid", "wontfix")


@dataclass(frozen=True)
class Row:
    """Cells of a Markdown table on one finding."""

    finding: str
    operator: str
    call: str
    invalid: str
    eager: str
    compiled: str


def draft_umbrella(group: Umbrella, members: Sequence[IssueFacts]) -> str:
    """The draft of a group's issue, in Markdown.

    Args:
        group: the group, and what a person said of it.
        members: its findings; those that a person closed are left out.
    """
    kept = [facts for facts in members if facts.mark is None or facts.mark.status not in _CLOSED]
    refuses = all(facts.verdict == Verdict.ACCEPTS_INVALID for facts in kept)
    return (
        get_environment()
        .get_template("reports/umbrella.md.j2")
        .render(
            group=group,
            refuses=refuses,
            rows=sorted((_row(facts) for facts in kept), key=lambda row: (row.operator, row.call)),
            scripts=[(facts.subject.name, scrub(script)) for facts, script in _scripts(kept)],
            versions=versions(kept[0].environment) if kept else [],
            unconfirmed=[facts.subject.name for facts in kept if not facts.confirmed],
        )
    )


def _row(facts: IssueFacts) -> Row:
    culprit, cause = facts.culprit or {}, facts.cause or {}
    kind, message = refusal(facts) if facts.verdict == Verdict.ACCEPTS_INVALID else ("", "")
    seen = find_pair(facts.wrong[0]) if facts.wrong else None
    eager, compiled = (seen.eager, seen.compiled) if seen else ("", fold_lines(facts.detail))
    if kind:
        gives = facts.report.get("evidence", {}).get("gives")
        eager, compiled = f"{kind}: {message}", str(gives or "runs")
    operator = culprit.get("rewrite") or culprit.get("family") or "unknown"
    cells = (str(operator), facts.expression or "", str(cause.get("before") or ""), eager, compiled)
    return Row(facts.subject.name, *map(_cell, cells))


def _cell(text: str) -> str:
    """Text as code that neither ends the cell nor the code."""
    short = fold_lines(scrub(text), _LONGEST).replace("|", "\\|").replace("`", "'")
    return f"`{short}`" if short else "not known"


def _scripts(members: Sequence[IssueFacts]) -> Iterator[tuple[IssueFacts, str]]:
    for facts in members:
        script = facts.plain or facts.reproducer
        if script is not None:
            yield facts, script
