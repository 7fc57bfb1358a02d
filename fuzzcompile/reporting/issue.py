"""The draft of a GitHub issue, in the form of PyTorch's torch.compile bug report."""

from __future__ import annotations

from collections.abc import Iterator

from fuzzcompile.contract import CulpritJson
from fuzzcompile.reporting import wording
from fuzzcompile.reporting.facts import IssueFacts
from fuzzcompile.reporting.privacy import scrub
from fuzzcompile.reporting.proof import diff_of, workaround_with_cost
from fuzzcompile.reporting.rules import fit_to_file, rules
from fuzzcompile.reporting.versions import versions
from fuzzcompile.templating import environment

_MAX_ROWS = 12
_MAX_DIFF = 40
_MAX_KERNEL = 120
_METADATA = ("dtype", "shape", "stride", "alias", "missing", "integer")
_ERRORS = ("max_abs_error_eager", "max_abs_error_compiled", "error_ratio", "noise_floor")


def draft_issue(facts: IssueFacts) -> str:
    """The draft in Markdown; for a verdict that is no bug, a short text that says why there is none.

    It claims what the facts show and nothing beyond: what was not run is reported as not run.
    """
    template = environment().get_template("reports/issue.md.j2")
    errors, left_out = error_rows(facts)
    return template.render(
        facts=facts,
        title=wording.title(facts) if facts.is_bug else "",
        summary=wording.summary(facts),
        why_not=wording.why_not(facts),
        errors=errors,
        left_out=left_out,
        attribution=list(_attribution(facts)),
        contributors=[_named(culprit) for culprit in facts.report.get("contributors") or ()],
        changed_bits=list(dict.fromkeys(_named(rewrite) for rewrite in facts.report.get("changed_bits") or ())),
        ablations=list(_ablations(facts)),
        diff=[scrub(line) for line in diff_of(facts.culprit)[:_MAX_DIFF]],
        kernel=_kernel(facts),
        workaround=workaround_with_cost(facts.report),
        log=scrub(facts.output.strip()) if facts.output else "",
        versions=versions({**facts.environment, **facts.where}),
        rules=rules(facts) if facts.is_bug else [],
        fit=facts.is_bug and fit_to_file(facts),
    )


def error_rows(facts: IssueFacts) -> tuple[list[dict[str, str]], int]:
    """The table of outputs, wrong ones first, as text; and how many outputs it leaves out."""
    return list(_errors(facts)), max(0, len(facts.outputs) - _MAX_ROWS)


def _errors(facts: IssueFacts) -> Iterator[dict[str, str]]:
    wrong = facts.wrong
    for entry in [*wrong, *(output for output in facts.outputs if output not in wrong)][:_MAX_ROWS]:
        # Where dtype, shape or presence differ, no distance was measured.
        bare = entry.get("finding") in _METADATA and not entry.get("max_abs_error_compiled")
        row = {key: "–" if bare else wording.figure(entry, key) for key in _ERRORS}
        within = None if bare else entry.get("within_default_tolerance")
        row["tolerance"] = "–" if within is None else "pass" if within else "fail"
        row["name"] = str(entry.get("name"))
        row["finding"] = " ".join(
            part
            for part in (
                str(entry.get("finding") or "–"),
                wording.one_line(str(entry.get("detail") or ""), 100),
            )
            if part
        )
        yield row


def _attribution(facts: IssueFacts) -> Iterator[tuple[str, str]]:
    culprit = facts.culprit
    if culprit is None:
        return
    place = culprit.get("source")
    if place and culprit.get("line") is not None:
        place = f"{place}:{culprit['line']}"
    named = {
        "Stage": culprit.get("stage"),
        "Pass": culprit.get("pass"),
        "Rewrite": culprit.get("rewrite"),
        "Source in the installed torch": place,
        "User code": culprit.get("site"),
    }
    yield from ((label, f"`{scrub(str(value))}`") for label, value in named.items() if value)
    step = culprit.get("step")
    if step is not None:
        yield "Step in replay, relative to the size of the result", f"{step:.3g}"
    siblings = ", ".join(f"`{name}`" for name in culprit.get("siblings") or ())
    together = f", with {siblings}, which takes its place when it is vetoed" if siblings else ""
    yield "Necessary (gone without it)", as_run(culprit.get("necessary")) + together
    yield "Sufficient (stays with it alone)", as_run(culprit.get("sufficient"))


def _kernel(facts: IssueFacts) -> list[str]:
    """The generated kernel at fault, for a target: nobody can look at it on the device."""
    if facts.target is None or facts.culprit is None:
        return []
    source = facts.culprit.get("details", {}).get("kernel_source")
    return [scrub(line) for line in str(source or "").strip().splitlines()[:_MAX_KERNEL]]


def as_run(answer: bool | None) -> str:
    """The answer of a check that may not have been run."""
    return "not run" if answer is None else "yes" if answer else "no"


def _named(culprit: CulpritJson) -> str:
    place = f", `{culprit['source']}:{culprit.get('line')}`" if culprit.get("source") else ""
    return f"`{culprit.get('rewrite') or culprit.get('family')}` ({culprit.get('stage')}{place})"


def _ablations(facts: IssueFacts) -> Iterator[dict[str, str]]:
    for entry in facts.report.get("ablations") or ():
        error = entry.get("error")
        yield {
            "toggle": scrub(str(entry.get("toggle"))),
            "repairs": "yes" if entry.get("repairs") else "no",
            "error": str(entry.get("non_finite") or "–") if error is None else f"{error:.3g}",
        }
