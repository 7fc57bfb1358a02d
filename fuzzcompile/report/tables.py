"""Rows of the tables that pages and drafts show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fuzzcompile.model.contract import CulpritJson, OutputJson
from fuzzcompile.model.privacy import fold_lines
from fuzzcompile.report.facts import IssueFacts
from fuzzcompile.report.proof import plain_toggle

_MAX_ROWS = 12
_LAYOUTS = ("dtype", "shape", "stride")
_METADATA = (*_LAYOUTS, "alias", "missing", "integer")
_NOTHING = "–"
_ERRORS = ("max_abs_error_eager", "max_abs_error_compiled", "error_ratio", "noise_floor")


def error_rows(facts: IssueFacts) -> tuple[list[dict[str, str]], int]:
    """The table of outputs, wrong ones first, as text; and how many outputs it leaves out."""
    return list(_errors(facts)), max(0, len(facts.outputs) - _MAX_ROWS)


def is_measured(row: Mapping[str, str]) -> bool:
    """Whether a row of the table of outputs has an error."""
    return any(row[key] != _NOTHING for key in _ERRORS)


def figure(entry: OutputJson, key: str) -> str:
    """A figure of the evidence as text: infinities by name, a dash where there is none."""
    value = entry.get(key)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:.3g}"
    if key.endswith("_error_compiled") and entry.get("non_finite"):
        return str(entry["non_finite"])
    return _NOTHING


def as_run(answer: bool | None) -> str:
    """The answer of a check that may not have been run."""
    return "not run" if answer is None else "yes" if answer else "no"


def named(culprit: CulpritJson) -> str:
    """A rewrite with its stage and its place in the source."""
    place = f", `{culprit['source']}:{culprit.get('line')}`" if culprit.get("source") else ""
    return f"`{culprit.get('rewrite') or culprit.get('family')}` ({culprit.get('stage')}{place})"


def ablation_rows(facts: IssueFacts) -> Iterator[dict[str, str]]:
    """What was switched off or on, whether that repairs the case, and the error that was left."""
    for entry in facts.report.get("ablations") or ():
        error = entry.get("error")
        yield {
            "toggle": plain_toggle(str(entry.get("toggle"))),
            "repairs": "yes" if entry.get("repairs") else "no",
            "error": str(entry.get("non_finite") or _NOTHING) if error is None else f"{error:.3g}",
        }


def _errors(facts: IssueFacts) -> Iterator[dict[str, str]]:
    wrong = facts.wrong
    for entry in [*wrong, *(output for output in facts.outputs if output not in wrong)][:_MAX_ROWS]:
        # Where dtype, shape or presence differ, no distance was measured; of another layout it says nothing.
        finding = entry.get("finding")
        bare = finding in _LAYOUTS or (finding in _METADATA and not entry.get("max_abs_error_compiled"))
        row = {key: _NOTHING if bare else figure(entry, key) for key in _ERRORS}
        within = None if bare else entry.get("within_default_tolerance")
        row["tolerance"] = _NOTHING if within is None else "pass" if within else "fail"
        row["name"] = str(entry.get("name"))
        detail = fold_lines(str(entry.get("detail") or ""), 100)
        row["finding"] = " ".join(part for part in (str(entry.get("finding") or _NOTHING), detail) if part)
        yield row
