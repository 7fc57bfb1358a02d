"""What a reduced case shows: the script for an issue, its ladder, and what goes with them."""

from __future__ import annotations

from itertools import islice

from fuzzcompile.contract import ReportJson, ShownJson
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.reduction.plain.devices import makes_sense_on_cuda
from fuzzcompile.reduction.plain.ladder import Seen, climbed, said
from fuzzcompile.reduction.plain.script import plain_scripts
from fuzzcompile.reduction.scripts.comparing import Script
from fuzzcompile.reporting.privacy import scrub

# Most scripts to try: each takes a compile or two.
_MOST_TRIED = 5
_ERRORS = (Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR, Verdict.CRASH)


def shown_as_issue(chosen: Script, report: ReportJson) -> ShownJson:
    """Make the plain script of a case, run it alone and under each backend, and keep what was seen.

    Args:
        chosen: how the case is run, and what is compared.
        report: the report on it.
    """
    candidates = list(islice(plain_scripts(chosen), _MOST_TRIED))
    if not candidates:
        return ShownJson()
    return _as_json(climbed(candidates), report)


def _as_json(seen: Seen, report: ReportJson) -> ShownJson:
    made = ShownJson(
        plain=seen.plain.text(),
        plain_output=scrub(said(seen.output)),
        plain_shows=seen.shows,
        ladder=[{**rung, "says": scrub(rung["says"])} for rung in seen.ladder],
    )
    if makes_sense_on_cuda(report):
        made["cuda"] = seen.plain.text(cuda=True)
    if report.get("verdict") in _ERRORS:
        made["error_log"] = scrub(seen.output)
    return made
