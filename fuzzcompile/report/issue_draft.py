"""The draft of a GitHub issue, in the form of PyTorch's torch.compile bug report."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fuzzcompile.model.culprit_contract import format_place, read_details
from fuzzcompile.model.evidence import ALSO_COMPILED, JUDGED
from fuzzcompile.model.package_files import get_environment
from fuzzcompile.model.privacy import fold_lines, scrub
from fuzzcompile.model.severity import Severity
from fuzzcompile.model.verdicts import NO_CAUSE, VALUES, Verdict
from fuzzcompile.report import proof, wording
from fuzzcompile.report.circumstances import WORDS, seen_on, versions
from fuzzcompile.report.filing import Refusal, rules
from fuzzcompile.report.finding_facts import IssueFacts, case_part, parse_code
from fuzzcompile.report.mechanism import tell_mechanism
from fuzzcompile.report.operations import name_trigger
from fuzzcompile.report.proof import error_rows
from fuzzcompile.report.titles import LONGEST, title
from fuzzcompile.report.wording import describe_effect, find_pair, refusal

if TYPE_CHECKING:
    from fuzzcompile.corpus.models import Umbrella


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
# A line of torch's own log that warns or informs: of this machine, not of the bug.
_LOGGED = re.compile(r"^[WI]\d{4} \d\d:\d\d:\d\d\.\d+ ")
# A step below it is rounding in float64.
_ROUNDING_STEP = 1e-10
# The compilers' own messages in the log of an error: g++, clang++, Triton, and the last line of a traceback.
_MESSAGE = re.compile(r"(?:\berror: |^[\w.]*(?:Error|Exception|Failure)\b: ).+")


# The line of a traceback that names the error, which torch's own compiler raises: its message may have many lines.
_RAISED = re.compile(r"torch\.[\w.]+: ")

# What stands in a line before the error itself: its module, and the backend that passes it on.
_RAISED_BY = re.compile(r"^torch\.(?:\w+\.)*(?:BackendCompilerFailed: backend='\w+' raised:\s*|InductorError: )?")

# Lines of the script's output before the folded details, and what is shown of the script: "whole", "case" (a checking
# script without the part that runs it) or "folded". Tried in this order until the draft is short enough.
_SHAPES = (
    *((lines, "whole") for lines in (12, 6, 3, 1, 0)),
    *((lines, "case") for lines in (6, 0)),
    *((lines, "folded") for lines in (6, 0)),
)


def draft_issue(facts: IssueFacts, refusal: Refusal | None = None) -> str:
    """The draft of a bug, in Markdown: at most 40 lines, and what is folded below them.

    It claims what the facts show and nothing beyond: what was not run is reported as not run. On top stands why it is
    not to be filed; of what is no bug, nothing else is printed.
    """
    on_top = f"> **Not to be filed: {refusal.reason}.** What would change that: {refusal.remedy}.\n" if refusal else ""
    if not facts.is_bug:
        return on_top
    shown = _list_parts(facts) | {"on_top": on_top}
    template, log = get_environment().get_template("reports/issue.md.j2"), str(shown["log"])
    script, output = _script(facts)
    for lines, form in _SHAPES:
        case = case_part(script) if form == "case" else script
        text = template.render(shown, form=form, case=case, output=_shorten(output, log, lines))
        if len(text.partition("<details>")[0].splitlines()) <= MOST_LINES:
            break
    return text


def draft_comment(facts: IssueFacts, issue: str) -> str:
    """A comment for a report that is known, in Markdown: a script, the place at fault, its proof, and the versions.

    ``issue`` is the report's URL. Of what is no bug it is empty.
    """
    if not facts.is_bug:
        return ""
    claim, since = wording.tell_claim(facts), wording.since(facts)
    template = get_environment().get_template("reports/comment.md.j2")
    return template.render(_list_parts(facts), issue=issue, claim=claim, since=since)


def _list_parts(facts: IssueFacts) -> dict[str, object]:
    script, output = _script(facts)
    errors, left_out = error_rows(facts)
    workaround, _, seen = (proof.workaround_with_cost(facts.report) or "").partition("  # ")
    kernel = (read_details(facts.culprit).get("kernel_source") or "") if facts.target is not None else ""
    results, ladder = _AGAINST_WRONG_EAGER if facts.eager_is_wrong else _RESULTS, []
    for rung in facts.ladder:
        says = fold_lines(_RAISED_BY.sub("", rung.get("says") or ""), 60) if rung["result"] == "raises" else ""
        result = results.get(rung["result"], rung["result"])
        ladder.append((rung["backend"], (f"{result}: `{says}`" if says else result).replace("|", "\\|")))
    contributors = []
    for needed in facts.report.get("contributors") or ():
        source = needed.get("source")
        place = f", `{format_place(source, needed.get('line'))}`" if source else ""
        contributors.append(f"`{needed.get('rewrite') or needed.get('family')}` ({needed.get('stage')}{place})")
    component, subject = proof.name_component(facts), facts.subject
    machines = [] if facts.machines is None else [("Machines", scrub(seen_on(facts.machines)))]
    return {
        "facts": facts,
        "title": title(facts),
        "words": facts.mark.note if facts.mark is not None and facts.mark.status == "open" else None,
        "ask": subject.format_command("corpus", "mark", after=("open",), note="...") if subject.is_finding else "",
        "summary": wording.summary(facts),
        "script": script,
        "whole_output": scrub(output).strip(),
        "ladder": ladder,
        "component": component,
        "culprit": proof.culprit_line(facts),
        "paths": proof.paths(facts),
        "mechanism": tell_mechanism(facts.report),
        "proof": proof.proof(facts),
        # Code, or the words for what no line of code does.
        "workaround": f"`{scrub(workaround)}`" if parse_code(workaround) else scrub(workaround),
        "workaround_seen": _PRICE.sub("", seen),
        "known": next((said.issue for said in (facts.mark, facts.umbrella) if said is not None and said.issue), None),
        "related": facts.related[:_RELATED],
        "queries": facts.queries[:_QUERIES],
        "errors": errors if any(row[key] != proof.NOTHING for row in errors for key in proof.ERRORS) else [],
        "left_out": left_out,
        "step_says": _tell_step((facts.culprit or {}).get("step") or 0.0),
        "contributors": contributors,
        "fix": _tell_fix(facts),
        "patch": (facts.shown.get("fix") or {}).get("patch"),
        "ablations": proof.tried_for_draft(facts.report),
        "ablation_errors": proof.has_errors(facts.report),
        "diff": [scrub(line) for line in proof.get_diff(facts.culprit)[:_MAX_DIFF]],
        # Of a target: nobody can look at the generated kernel on the device.
        "kernel": [scrub(line) for line in str(kernel).strip().splitlines()[:_MAX_KERNEL]],
        "log": scrub(_drop_logged(facts.shown.get("error_log") or "")).strip(),
        "notes": list(map(scrub, _iter_notes(facts))),
        "versions": [*versions({**facts.environment, **facts.where}), *machines],
        "rules": rules(facts),
        "labels": _join_labels([facts]),
        "newest": facts.history.newest if facts.history is not None else None,
    }


def _tell_fix(facts: IssueFacts) -> str:
    """The outcome of a fix that was tried, in words; empty where none was asked for."""
    if (fix := facts.shown.get("fix")) is None:
        return ""
    words, cause = WORDS["fix"], facts.cause or {}
    form = "held" if "patch" in fix else "failed" if "guard" in fix else "none"
    known = words["known" if fix.get("known") else "unknown"].format_map(fix)
    wrong = words["wrong"].format_map(fix) if fix.get("wrong") else ""
    before, after = cause.get("before"), cause.get("after")
    neighbour = f" (`{after}` in place of `{before}`)" if before and after else ""
    return scrub(str(words[form]).format(**fix, known_cases=known, wrong_cases=wrong, neighbour=neighbour))


def _join_labels(findings: Sequence[IssueFacts]) -> str:
    labels = dict.fromkeys(label for facts in findings for label in _iter_labels(facts))
    return ", ".join(f"`{label}`" for label in (*labels, "topic: fuzzer"))


def _iter_labels(facts: IssueFacts) -> Iterator[str]:
    if not facts.without_compiler and not facts.eager_is_wrong:
        yield "oncall: pt2"
    if facts.nproc is not None:
        yield WORDS["together"]["label"]
    if facts.effect is Severity.SILENT:
        yield "module: correctness (silent)"
    component = proof.name_component(facts)
    yield from [component[1]] if component else proof.list_kernel_labels(facts)


def _tell_step(step: float) -> str:
    if step < _ROUNDING_STEP:
        return "In float64, the graph before it and the graph after it compute the same values."
    share = f"{step:.0%}" if step >= 0.01 else f"{step:.1e}"
    return f"In float64, the results of the graph before it and of the graph after it differ by {share} of their size."


def _iter_notes(facts: IssueFacts) -> Iterator[str]:
    """The notes on what was not seen: none on which part of a script it is, nor on the cause of a proved culprit."""
    aside = (JUDGED, ALSO_COMPILED, *([NO_CAUSE] if facts.proved else []))
    for note in facts.report.get("evidence", {}).get("notes") or ():
        if not note.startswith(aside):
            yield note


def _script(facts: IssueFacts) -> tuple[str, str]:
    """The script to show first, and what it printed: the eager one, the plain one, or the one that checks itself."""
    shown = facts.shown
    if facts.without_compiler:
        script, output = shown["eager_only"], shown.get("eager_only_output")
    elif facts.plain:
        script, output = facts.plain, shown.get("plain_output")
    else:
        script, output = facts.reproducer or "", shown.get("plain_output") if facts.nproc is not None else None
    return script.strip(), _drop_logged(output or "")


def _drop_logged(output: str) -> str:
    return "\n".join(line for line in output.splitlines() if not _LOGGED.match(line))


def _shorten(output: str, log: str, limit: int) -> list[str]:
    """The last lines of an output, and the compilers' own messages that it lacks; at most ``limit`` lines.

    Of an error that the compiler raises the first: it is named there.
    """
    lines = [scrub(line) for line in output.strip().splitlines()]
    if lines and _RAISED.match(lines[0]) and len(lines) > limit:
        return [line[:_WIDEST] for line in lines[:limit]]
    messages = [line.strip() for line in log.splitlines() if _MESSAGE.search(line.strip())]
    new = [line for line in dict.fromkeys(messages) if not any(line[:_ALIKE] in known for known in lines)]
    shown = [line[:_WIDEST] for line in [*lines, *new[:2]]][-limit:] if limit else []
    text = "".join(shown)
    cut = any(text.count(left) != text.count(right) for left, right in ("[]", "()"))
    return [] if cut else shown  # the end of a tensor without its beginning tells nothing


# The draft of one issue for a group of minor findings: a table of what each shows, and their scripts, folded.

_LONGEST = 120
_EAGER = 4  # the column of eager mode's result
_CLOSED = ("dup", "fixed", "invalid", "wontfix")


def draft_umbrella(group: Umbrella, members: Sequence[IssueFacts]) -> str:
    """The draft of a group's issue, in Markdown; ``members`` that a person closed are left out."""
    kept = [facts for facts in members if facts.mark is None or facts.mark.status not in _CLOSED]
    scripts = [
        (facts.subject.name, *map(scrub, _script(facts)), tell_mechanism(facts.report), proof.proof(facts))
        for facts in kept
    ]
    rows = sorted(map(_row, kept), key=lambda row: row[1:3])
    told = any(row[_EAGER] != "–" for row in rows)
    template = get_environment().get_template("reports/umbrella.md.j2")
    return template.render(
        group=group,
        title=_name_group(group, kept),
        refuses=_all_refuse(kept),
        settings=dict.fromkeys(text for facts in kept for _, text in wording.list_opt_ins(facts)),
        rows=rows if told else [row[:_EAGER] + row[_EAGER + 1 :] for row in rows],
        tells_eager=told,
        scripts=[script for script in scripts if script[1]],
        versions=versions(kept[0].environment) if kept else [],
        unconfirmed=[facts.subject.name for facts in kept if not facts.confirmed],
        labels=_join_labels(kept),
    )


def is_worth_one_issue(group: Umbrella, members: Sequence[IssueFacts]) -> bool:
    """Return whether a group has no issue yet, and several members that are neither known nor closed."""
    marks = [facts.mark.status for facts in members if facts.mark is not None and _means_something(facts)]
    return group.issue is None and len([status for status in marks if status not in (*_CLOSED, "known")]) > 1


def _means_something(facts: IssueFacts) -> bool:
    return not (facts.report.get("evidence") or {}).get("layout_doubt")


def _all_refuse(members: Sequence[IssueFacts]) -> bool:
    return all(facts.verdict == Verdict.ACCEPTS_INVALID for facts in members)


def _name_group(group: Umbrella, members: Sequence[IssueFacts]) -> str:
    """The title: the passes or operators with what all of them do, or how many there are where that is too long."""
    if _all_refuse(members):
        return f"torch.compile accepts calls that eager mode refuses ({len(members)} cases)"
    names = list(dict.fromkeys(f"`{_name_culprit(facts)}`" for facts in members))
    wrong, s = all(facts.verdict in VALUES for facts in members), "s" * (len(names) == 1)
    does = f"give{s} wrong values" if wrong else f"differ{s} from eager mode"
    tag = "[opt-in] " if group.name.startswith("opt_in-") else ""
    listed = " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
    text = f"{tag}{listed} {does}"
    return text if len(text) <= LONGEST else f"{tag}{len(names)} parts of {group.name.removeprefix('opt_in-')} {does}"


def _name_culprit(facts: IssueFacts) -> str:
    culprit = facts.culprit or {}
    return str(culprit.get("rewrite") or culprit.get("family") or "unknown")


def _row(facts: IssueFacts) -> list[str]:
    """The cells of a finding: its name, the culprit with a link, the call, its trigger, both results, the versions."""
    seen = find_pair(facts.wrong[0]) if facts.wrong else None
    eager, compiled, does = (seen.eager, seen.compiled, "") if seen else ("", "", describe_effect(facts).does)
    if facts.verdict == Verdict.ACCEPTS_INVALID:
        eager, does = ": ".join(refusal(facts)), ""
        compiled = str(facts.report.get("evidence", {}).get("gives") or "runs")
    named = re.match(r"(\w+)\(\w+\)$", str((facts.cause or {}).get("fingerprint")))
    trigger = name_trigger(facts)
    if named is not None and re.fullmatch(r"\w+=[^()]*", trigger):
        trigger = f"{named[1]}(…, {trigger})"
    cells = (facts.expression or "", trigger, eager, compiled)
    short = [fold_lines(scrub(cell), _LONGEST).replace("|", "\\|").replace("`", "'") for cell in cells]
    known = f" ([known]({facts.mark.issue}))" if facts.mark is not None and facts.mark.issue else ""
    place = proof.source_link(facts)
    culprit = f"`{scrub(_name_culprit(facts))}`{f': {place}' if place else ''}"
    texts = (f"`{cell}`" if cell else words or "–" for cell, words in zip(short, ("", "", "", does), strict=True))
    return [f"{facts.subject.name}{known}", culprit, *texts, wording.tell_span(facts)]
