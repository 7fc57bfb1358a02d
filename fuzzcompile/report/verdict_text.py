"""A triage report for the terminal: the verdict, the numbers, the culprit, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fuzzcompile.model.contract import EAGER, OutputJson, PromiseJson, ReportJson, name_non_finite, read_target
from fuzzcompile.model.culprit_contract import CulpritJson, format_place, read_details
from fuzzcompile.model.custom import is_custom
from fuzzcompile.model.evidence import InternalError
from fuzzcompile.model.hints import CommandSubject
from fuzzcompile.model.verdicts import FORMS, HARMLESS
from fuzzcompile.report.circumstances import WORDS, advice_for, circumstances, meaning_for, several
from fuzzcompile.report.mechanism import tell_mechanism
from fuzzcompile.report.proof import (
    NEEDED,
    find_step,
    format_number,
    format_shown,
    format_workaround,
    get_diff,
    has_errors,
    list_proof_facts,
    matched,
    name_role,
    tried,
    workaround_with_cost,
)

_MATCHED = 6  # lines of the program shown
_LINES = 30  # lines of a diff or a kernel shown


def proof_lines(culprit: CulpritJson) -> Iterator[str]:
    """Yield the culprit's match, the distance by which it moved the result, and the graph before and after it."""
    yield from (f"matched {line}" for line in matched(culprit)[:_MATCHED])
    if step := find_step(culprit):
        yield f"moves the result, in units of its size, by {step}"
    diff = "\n".join(get_diff(culprit))
    for label, text in (*list_proof_facts(culprit), ("graph before (-) and after (+)", diff)):
        if "\n" in text:
            lines = text.splitlines()
            yield f"{label}:"
            yield from (f"  {line}" for line in lines[:_LINES])
            if len(lines) > _LINES:
                yield f"  ... and {len(lines) - _LINES} more lines (--json has all)"
        elif text:
            yield f"{label}: {text}"


def ablation_table(report: ReportJson) -> Table:
    """Each ablation, and whether it removed the divergence."""
    table, with_errors = _table("  tried", ["bug gone"]), has_errors(report)
    if with_errors:
        table.add_column("error left", justify="right", no_wrap=True)
    for row in tried(report):
        errors = [row.error] if with_errors else []
        table.add_row(Text(f"  {row.toggle.replace('`', '')}"), "yes" if row.repairs else "no", *errors)
    return table


def _table(first: str, others: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(first, overflow="fold")
    for heading in others:
        table.add_column(heading, no_wrap=True)
    return table


# What a report says of a contract: the settings in force, and what became of each promise of equal bits.

_PLACES = 3  # places without a promise that are shown
_NAMES = {
    "eager": "compiled equals eager",
    "batch": "a row alone equals its row in a batch",
    "run_to_run": "run to run",
}


def broken_promise(report: ReportJson) -> PromiseJson | None:
    """The broken promise that the report's verdict is about; None if the verdict has another reason."""
    contract = report.get("contract")
    if contract is None or not report.get("detail", "").startswith(f"{contract['name']} contract"):
        return None
    return next((promise for promise in contract["promises"] if promise["holds"] is False), None)


def promise_lines(report: ReportJson) -> Iterator[str]:
    """The contract for the reader; nothing where none was asked about."""
    contract = report.get("contract")
    if contract is None:
        return
    settings = ", ".join(f"{entry} = {value}" for entry, value in contract["settings"].items())
    yield f"{contract['name']} contract under {settings}:"
    for promise in contract["promises"]:
        state = {True: "holds", False: "BROKEN", None: "not promised" if promise["outputs"] else "no answer"}
        name = _NAMES.get(promise["promise"], promise["promise"])
        yield f"  {name}: {state[promise['holds']]}: {promise['why']}"
        others = [place for place in promise["unpromised"] if place != promise["first"]]
        for place in others[:_PLACES]:
            kernel = f", kernel {place['kernel']}" if place["kernel"] else ""
            yield f"    bits part here too{kernel}: {place['operator']} at {place['site']}: {place['why']}"
        if len(others) > _PLACES:
            yield f"    and at {len(others) - _PLACES} more places without a promise (--json has them)"


_WIDTH = 120  # where standard output is no terminal
_ROWS = 12  # wrong outputs shown
_CLOSE = ("close", "wild")  # by rounding, or without a digit in eager either
_FEW = 3  # outputs shown that differ by rounding, and outputs whose values are shown
# What differs is not a value: the table has no numbers for these.
_NO_VALUES = (*FORMS, "missing", "alias")
# Bugs of something else than values: rounding beside them says nothing.
_NOT_OF_VALUES = ("metadata", "aliasing", "compile_error", "runtime_error", "accepts_invalid", "crash", "timeout")
_AS_FAR = 1.05  # ratio of errors below which compiled counts as no farther than eager


def report_console() -> Console:
    """Standard output; where it is no terminal, of a fixed width and plain."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)


def print_report(
    console: Console,
    report: ReportJson,
    *,
    proof: bool = False,
    name: str | CommandSubject = "CASE",
    known: bool = False,
) -> None:
    """Print a report; ``proof`` adds the graph before and after the culprit, and the ablations.

    ``name`` is how the case is named on a command line; ``known``, that the baseline lists this bug.
    """
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    kind = ("BUG, known" if known else "BUG") if report["is_bug"] else "no bug"
    where = report["device"] if read_target(report) is None else f"told {read_target(report)}, run on the CPU"
    say(f"{report['case']}: {report['verdict']} ({kind}, confidence {report['confidence']}): "
        f"{meaning(report)} [torch {report['torch']}, {where}]")  # fmt: skip
    if report.get("detail"):
        say(f"  {report['detail']}")
    ran_alone = report["evidence"].get("path") == EAGER  # and nothing else is there to be trusted
    if (side := report.get("wrong")) is not None and not ran_alone:
        say(f"  {WORDS['trust'][side]}")
    outputs = report["evidence"]["outputs"]
    differing = [output for output in outputs if output.get("finding") != "same"]
    wrong = [output for output in differing if report["is_bug"] and output["finding"] not in _CLOSE]
    rounded = [output for output in differing if output not in wrong]
    rounded.sort(key=lambda output: -(output.get("error_ratio") or 0.0))
    shown = [*wrong[:_ROWS], *rounded[: max(0, _FEW - len(wrong))]]
    measured = [output for output in shown if output["finding"] not in _NO_VALUES and not _is_plain(output)]
    if report["verdict"] not in _NOT_OF_VALUES and measured:
        console.print(_outputs_table(shown))
        if len(differing) > len(shown):
            say(f"  and {len(differing) - len(shown)} more outputs that differ (--json has all)")
        if len(differing) < len(outputs):
            say(f"  the same bits: {len(outputs) - len(differing)} of {len(outputs)} outputs")
    for lines in (_places(shown), promise_lines(report), circumstances(report), _attribution(report, proof=proof)):
        for line in lines:
            say(f"  {line}")
    if proof and report["ablations"]:
        console.print(ablation_table(report))
    if proof and report.get("workaround"):
        say(f"  workaround: {workaround_with_cost(report)}")
    say(f"  what to do: {'nothing new: the baseline lists it, or it is ignored' if known else advice(report, name)}")


def _is_plain(output: OutputJson) -> bool:
    """Return whether an output that differs is a value of Python, of which no error is measured."""
    return output["finding"] == "integer" and output.get("where") is None


def meaning(report: ReportJson) -> str:
    """Explain the report's verdict in a few words."""
    broken = broken_promise(report)
    text = WORDS["meaning_by_side"].get(report.get("wrong")) or WORDS["meaning"].get(report["verdict"], "")
    if InternalError.parse(report.get("detail") or "") is not None:
        text = WORDS["both_raise"].get(report["verdict"], text)
    if report.get("evidence", {}).get("path") == EAGER:
        text = WORDS["eager_alone"].get(report["verdict"], text)
    if broken is not None and broken["promise"] == "run_to_run":
        text = "compiled gives other bits from run to run"
    elif broken is not None:
        other = "eager" if broken["promise"] == "eager" else "the same row alone"
        text = f"bits differ from {other} where torch's settings promise that they do not"
    if read_target(report) is not None:
        text = meaning_for(report, text)
    against = report.get("evidence", {}).get("against") or "eager"
    return text if against == "eager" else f"{text} (compared with {against})"


def advice(report: ReportJson, name: str | CommandSubject) -> str:
    """Advise on the report; ``name`` is the case's name on a command line."""
    verdict, target, culprit = report["verdict"], read_target(report), report.get("culprit")
    if not report["is_bug"] and target is not None and verdict in HARMLESS:
        return "nothing: of what was looked at, nothing is wrong"
    if not report["is_bug"]:
        return _about_rounding(report) if verdict == "rounding" else WORDS["advice"].get(verdict, "nothing")
    workaround = format_workaround(report)
    if culprit and (source := culprit.get("source")) and not source.startswith("torch/"):
        until = f"; until then, {workaround}" if workaround and is_custom(culprit.get("pass")) else ""
        return f"fix {culprit['rewrite']} ({format_place(source, culprit['line'])}): it is not part of PyTorch{until}"
    if target is not None:
        return advice_for(report, name)
    if broken_promise(report) is not None:
        return (  # no reducer keeps bits
            "report it with the case, the settings above, and the operator and kernel named "
            f"(torch {report['torch']}); minimizing keeps wrong values, not wrong bits"
        )
    if doubt := report["evidence"].get("layout_doubt"):
        help_now = f"; if it matters here, {workaround}" if workaround else ""
        return f"nothing to report, since {doubt}{help_now}"
    until = f"until it is fixed, use {workaround}; " if workaround else ""
    again = WORDS["again"].get(verdict, "")
    doubt = "check it first, confidence is low; " if report.get("confidence") == "low" and not again else ""
    subject = CommandSubject.from_name(name)
    minimize = subject.format_command("minimize")
    commands = f"`{minimize}` makes the reproducer, `{subject.format_command('issue')}` the draft"
    if not subject.is_taken_whole_by("minimize"):
        proof = f"`{subject.format_command('triage', proof=True)}` shows the proof"
        rest = f", and `{minimize}` makes a reproducer if the bug shows in the whole program too"
        commands = proof if subject.options.get("nproc") else f"{proof}{rest}"
    return f"{doubt}{again}{until}report it: {commands}"


def _name(culprit: CulpritJson) -> str:
    """The rewrite; of an error without one, the function that raised it at the culprit's place."""
    raised = read_details(culprit).get("raised") or ()
    place = culprit.get("source"), culprit.get("line")
    there = (frame["function"] for frame in raised if (frame["source"], frame["line"]) == place)
    return culprit.get("rewrite") or next(there, "unknown")


def name_culprit(culprit: CulpritJson | None) -> str:
    """A culprit in a few words: the rewrite and its file, or its stage if no file is known."""
    if not culprit:
        return "not attributed"
    name, source = _name(culprit), culprit.get("source")
    return f"{name} ({format_place(source, culprit.get('line'))})" if source else f"{name} ({culprit.get('stage')})"


def describe_culprit(culprit: CulpritJson) -> str:
    """A culprit in one line: rewrite, stage and pass, source, site, and what was proved."""
    guard = read_details(culprit).get("guard")
    name = _name(culprit)
    parts = [f"{name if guard is None else f'guard {name} ({guard})'} in {culprit['stage']}"]
    if culprit["pass"] and culprit["pass"] != culprit["rewrite"]:
        parts.append(f"pass {culprit['pass']}")
    if culprit["source"]:
        parts.append(format_place(culprit["source"], culprit["line"]))
    if culprit["site"]:
        parts.append(f"at {culprit['site']}")
    shown = format_shown(culprit)
    return f"{', '.join(parts)}{f': {shown}' if shown else ''}"


def _about_rounding(report: ReportJson) -> str:
    outputs = report["evidence"]["outputs"]
    ratio = max((ratio for output in outputs if (ratio := output.get("error_ratio")) is not None), default=None)
    text = "nothing: rounding"
    if ratio is not None and ratio <= 1:
        text += f"; compiled is no farther from float64 than eager (ratio {ratio:.2g})"
    elif ratio is not None and ratio < _AS_FAR:
        text += "; compiled is as far from float64 as eager"
    elif ratio is not None:
        text += f"; compiled is {ratio:.2g} times as far from float64 as eager, as rounding may make it"
    failing = [output for output in outputs if not output.get("within_default_tolerance", True)]
    if failing:
        apart = max((o.get("max_abs_error_eager") or 0.0) + (o.get("max_abs_error_compiled") or 0.0) for o in failing)
        text += "; assert_close fails at its defaults, so compare each with a float64 run"
        # A tolerance for all of them says nothing of those whose own size it is a share of.
        least = min((scale for o in outputs if (scale := o.get("scale"))), default=0.0)
        text += f", or give it atol={rounded_up(apart)}" if apart <= _TOLERABLE * least else ""
    return text


_TOLERABLE = 0.1  # of the size of the smallest output


def rounded_up(value: float) -> str:
    """The next number of one significant digit: a tolerance to write into a test."""
    digit, _, exponent = f"{value:.0e}".partition("e")
    if float(f"{digit}e{exponent}") < value:
        digit = str(int(digit) + 1)
    return f"{float(f'{digit}e{exponent}'):.0e}"


def _outputs_table(outputs: Sequence[OutputJson]) -> Table:
    table = _table("  output", [])
    for heading in ("eager\nmax", "\nRMS", "\nulps", "compiled\nmax", "\nRMS", "\nulps"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("\nratio", "noise\nfloor", "assert_\nclose", "\nsame", "\ncosine"):
        table.add_column(heading, no_wrap=True)
    for output in outputs:
        ratio, cosine = output.get("error_ratio"), output.get("cosine")
        cells = ["-"] * 11
        if output["finding"] not in _NO_VALUES:
            cells = [
                *(_figure(output, f"{key}_{side}") for side in ("eager", "compiled") for key in _MEASURED),
                "-" if ratio is None else f"{ratio:.2g}",
                _figure(output, "noise_floor"),
                "pass" if output["within_default_tolerance"] else "fail",
                {True: "pass", False: "fail", None: "-"}[output["torch_same"]],
                "-" if cosine is None else f"{cosine:.6f}",
            ]
        table.add_row(f"  {output['name']}", *cells)
    return table


_MEASURED = ("max_abs_error", "rms_error", "max_ulps")


def _figure(output: OutputJson, key: str) -> str:
    value = output.get(key)
    return format_number(value) if isinstance(value, int | float) else str(output.get("non_finite") or "-")


def _places(outputs: Sequence[OutputJson]) -> Iterator[str]:
    for output in outputs[:_FEW]:
        if output.get("detail"):
            kind = f"{output['finding']}: " if output["finding"] in FORMS else ""
            yield f"{output['name']}: {kind}{output['detail']}"
        elif output.get("where") is not None:
            index, at = ", ".join(map(str, output["where"] or ())), output["at"] or {}
            values = {
                run: name_non_finite(at, run) or "non-finite" if value is None else _spell(value)
                for run, value in at.items()
                if not run.startswith("non_finite")
            }
            shown = ", ".join(f"{run} {value}" for run, value in values.items())
            yield f"{output['name']}[{index}]: {shown}" if index else f"{output['name']}: {shown}"


def _spell(value: float | int | bool | str) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _attribution(report: ReportJson, *, proof: bool) -> Iterator[str]:
    culprit = report.get("culprit")
    if culprit:
        yield f"{name_role(culprit)}: {describe_culprit(culprit)}"
        if mechanism := tell_mechanism(report):
            yield f"how: {mechanism}"
        if proof:
            yield from (f"  {line}" for line in proof_lines(culprit))
        yield from (f"{NEEDED}: {describe_culprit(contributor)}" for contributor in report["contributors"])
    elif report["is_bug"]:
        yield "culprit: not attributed"
    elif report["changed_bits"]:
        names = list(dict.fromkeys(f"{rewrite['rewrite']} ({rewrite['stage']})" for rewrite in report["changed_bits"]))
        yield f"rewrites that changed any bit: {several(names, ', ')}"
    elif report["verdict"] == "rounding":
        yield "no rewrite of a graph changed a bit: generated code rounds differently from eager kernels"
    fired = [f"{rule['rewrite']} ({rule['stage']})" for rule in report.get("rewrites") or () if rule["fired"]]
    if proof and fired:
        yield f"rewrites that ran: {', '.join(dict.fromkeys(fired))}"
    yield from (f"{suspect['name']} {suspect['said']}" for suspect in report.get("suspects") or ())
