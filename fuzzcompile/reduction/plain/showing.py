"""The script for an issue, made from a reduced case, with its ladder, environment and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from fuzzcompile.contract import ReportJson, RungJson, ShownJson, told
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.privacy import scrub
from fuzzcompile.reduction.plain.devices import makes_sense_on_cuda
from fuzzcompile.reduction.plain.eager_only import eager_only
from fuzzcompile.reduction.plain.expression import expression_at_fault
from fuzzcompile.reduction.plain.ladder import BACKENDS, Clock, Seen, climbed
from fuzzcompile.reduction.plain.machine import collected_environment
from fuzzcompile.reduction.plain.outputs import error_log, said
from fuzzcompile.reduction.plain.script import Plain, plain_scripts
from fuzzcompile.reduction.scripts.comparing import Script
from fuzzcompile.sides import COMPILE

# Most scripts to try: each takes a compile or two.
_MOST_TRIED = 6
# Seconds for all of them together, at most: a minimization in a campaign has little time left.
_SECONDS = 150.0
_ERRORS = (Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR, Verdict.CRASH)


def shown_as_issue(source: str, chosen: Script, report: ReportJson, seconds: float = _SECONDS) -> ShownJson:
    """Make the plain script of a case, run it alone and under each backend, and keep what was seen.

    Args:
        source: the case as it was judged.
        chosen: how the case is run, and what is compared.
        report: the report on it.
        seconds: what there is time for; at most 150.
    """
    clock = Clock.of(min(_SECONDS, seconds))
    made = ShownJson(collect_env=collected_environment())
    expression = expression_at_fault(source, chosen, report)
    if expression is not None:
        made["expression"] = expression
    if chosen.drive.probe.case.settings.path != COMPILE:
        return made  # the ladder is of backends of torch.compile
    on_gpu = chosen.drive.on_gpu
    candidates = [replace(plain, cuda=on_gpu) for plain in islice(plain_scripts(chosen), _MOST_TRIED)]
    if told(report) is not None or not candidates:
        return made | _not_run(candidates, report)
    made |= _as_json(climbed(candidates, clock), report)
    kernel = eager_only(chosen.drive.source, report, made["ladder"], clock)
    if kernel is not None:
        made["eager_only"], made["eager_only_output"] = kernel.files["script"], scrub(said(kernel.output))
        made["eager_is_wrong"] = _eager_is_wrong(report, made)
    return made


def _eager_is_wrong(report: ReportJson, made: ShownJson) -> bool:
    """Return whether eager gives the kernel such inputs: by the report, else if aot_eager agrees with eager."""
    kernel = ((report.get("culprit") or {}).get("details") or {}).get("aten_kernel")
    said = kernel.get("wrong_in") if isinstance(kernel, dict) else None
    return said == "eager" if said else made["ladder"][1]["result"] == "right"


def _not_run(candidates: Sequence[Plain], report: ReportJson) -> ShownJson:
    """The script for a device that is not there."""
    if not candidates:
        return ShownJson()
    text = replace(candidates[0], cuda=True).text()
    ladder = [RungJson(backend=backend, result="not run", says=f"no {told(report)} here") for backend in BACKENDS]
    return ShownJson(plain=text, plain_output="", plain_shows=False, cuda=text, ladder=ladder)


def _as_json(seen: Seen, report: ReportJson) -> ShownJson:
    made = ShownJson(
        plain=seen.plain.text(),
        plain_output=scrub(said(seen.output)),
        plain_shows=seen.shows,
        ladder=[{**rung, "says": scrub(rung["says"])} for rung in seen.ladder],
    )
    if not seen.plain.cuda and makes_sense_on_cuda(report):
        made["cuda"] = replace(seen.plain, cuda=True).text()
    if report.get("verdict") in _ERRORS:
        made["error_log"] = scrub(error_log(seen.output))
    return made
