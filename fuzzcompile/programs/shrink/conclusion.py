"""Conclude a reduction: find the nearest passing program, build the reproducer and run it alone."""

from __future__ import annotations

import ast
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from fuzzcompile.compiler.custom_code import has_custom_code
from fuzzcompile.model.contract import COMPILE, ReportJson, RungJson, ShownJson, read_target
from fuzzcompile.model.culprit_contract import read_details
from fuzzcompile.model.privacy import scrub
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.programs.edits.changes import generate_changes, generate_substitutes
from fuzzcompile.programs.ir.case_source import write_program, write_source
from fuzzcompile.programs.ir.program import Program
from fuzzcompile.programs.issue.ladder import (
    BACKENDS,
    Deadline,
    LadderResult,
    climb_ladder,
    find_eager_script,
    shorten_error,
    shorten_output,
)
from fuzzcompile.programs.issue.plain_script import (
    PlainScript,
    choose_input_kinds,
    generate_plain_scripts,
    may_show_on_cuda,
)
from fuzzcompile.programs.issue.straight_code import (
    Pieces,
    grow_last,
    inline_values,
    rename_for_users,
    split_case,
    unwrap_module,
)
from fuzzcompile.programs.scripts.clean_process import collect_environment
from fuzzcompile.programs.scripts.repro_script import ScriptPlan
from fuzzcompile.programs.scripts.reproducer import (
    ReproducerConfirmation,
    blames_custom,
    build_reproducer,
    choose_script,
    confirm_for_target,
    confirm_reproducer,
    write_reproducer,
)
from fuzzcompile.programs.shrink.outcome import SearchTally
from fuzzcompile.programs.shrink.search import OutOfBudget, Prober, SearchBudget

# Find the nearest program that passes: one change in one line of the reduced program.

# Candidates compiled at most.
_MOST = 14


def find_passing_neighbour(program: Program, passes: Callable[[Program], bool], *, most: int = _MOST) -> str | None:
    """The source of the first program one change away that ``passes``, as many lines long; None if none does.

    Args:
        program: a program that shows a bug.
        passes: compiles another one, and returns whether that shows none.
        most: how many programs are tried.
    """
    own = len(write_source(program).splitlines())
    changed = [*generate_changes(program), *generate_substitutes(program)]
    written = ((change.program, write_source(change.program)) for change in changed)
    near = ((candidate, source) for candidate, source in written if len(source.splitlines()) == own)
    return next((source for candidate, source in islice(near, most) if passes(candidate)), None)


# The operation at fault, as a user writes it.

_WIDTH = 76
_LINE = re.compile(r":(\d+)")


def find_faulty_expression(source: str, chosen: ScriptPlan, report: ReportJson) -> str | None:
    """Return the expression at the culprit's site, else one that its name mentions, of at most some 76 characters.

    Without either it is the expression that is returned.

    Args:
        source: the text that was judged; the culprit's site is a line of it.
        chosen: how its case is run.
        report: the report.
    """
    pieces = split_case(chosen.drive.source)
    number = _find_statement(pieces, source, str((report.get("culprit") or {}).get("site") or ""))
    function = rename_for_users(unwrap_module(pieces), choose_input_kinds(chosen)).function
    if function is None:
        return None
    body = list(function.body)
    place = number if number is not None and _computes(body[number]) else _find_culprit_call(body, report)
    return next((text for text in _expressions(body, place) if len(text) <= _WIDTH), None)


def _expressions(body: list[ast.stmt], place: int) -> Iterator[str]:
    """Texts for the statement at ``place``, the longest first."""
    whole = inline_values(body)
    if len(whole) == 1:
        yield _value(whole[0])
    yield _value(grow_last(body[: place + 1], _WIDTH + len("return ")))
    plain = _value(body[place])
    yield plain
    calls = [node for node in ast.walk(body[place]) if isinstance(node, ast.Call)]
    if calls:
        yield f"{ast.unparse(calls[0].func)}(...)"
    yield f"{plain[: _WIDTH - 3]}..."


def _find_culprit_call(body: list[ast.stmt], report: ReportJson) -> int:
    """The number of the last statement that calls something by a name out of the culprit's; else of the last one."""
    culprit = report.get("culprit") or {}
    said = f"{culprit.get('rewrite')} {culprit.get('family')} {culprit.get('pass')}".lower()
    for place in reversed(range(len(body))):
        calls = [
            ast.unparse(node.func).rpartition(".")[2] for node in ast.walk(body[place]) if isinstance(node, ast.Call)
        ]
        if any(len(name) > 2 and name.lower() in said for name in calls):
            return place
    return len(body) - 1


def _computes(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Call | ast.BinOp | ast.AugAssign) for node in ast.walk(statement))


def _value(statement: ast.stmt) -> str:
    value = getattr(statement, "value", None)
    text = ast.unparse(value if isinstance(value, ast.expr) and not isinstance(statement, ast.AugAssign) else statement)
    return text[1:-1] if isinstance(value, ast.Tuple) and value.elts else text


def _find_statement(pieces: Pieces, source: str, site: str) -> int | None:
    """The number of the compiled function's statement at a site; None if it is not in that function."""
    line = _LINE.search(site)
    lines = source.splitlines()
    function = unwrap_module(pieces).function
    if line is None or function is None or not 0 < int(line[1]) <= len(lines):
        return None
    try:
        wanted = ast.unparse(ast.parse(lines[int(line[1]) - 1].strip().replace("self.", "")))
    except SyntaxError:
        return None
    texts = [ast.unparse(statement).replace("self.", "") for statement in function.body]
    return texts.index(wanted) if wanted in texts else None


# The script for an issue, made from a reduced case, with its ladder, environment and outputs.

# Most scripts to try: each takes a compile or two.
_MOST_TRIED = 6
# Seconds for all of them together, at most: a minimization in a campaign has little time left.
_SECONDS = 150.0
_ERRORS = (Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR, Verdict.CRASH)


def build_issue_script(source: str, chosen: ScriptPlan, report: ReportJson, seconds: float = _SECONDS) -> ShownJson:
    """Make the plain script of a case, run it alone and under each backend, and keep what was seen.

    Args:
        source: the case as it was judged.
        chosen: how the case is run, and what is compared.
        report: the report on it.
        seconds: what there is time for; at most 150.
    """
    clock = Deadline.after(min(_SECONDS, seconds))
    made = ShownJson(collect_env=collect_environment())
    expression = find_faulty_expression(source, chosen, report)
    if expression is not None:
        made["expression"] = expression
    if chosen.drive.probe.case.settings.path != COMPILE:
        return made  # the ladder is of backends of torch.compile
    on_gpu = chosen.drive.on_gpu
    candidates = [replace(plain, cuda=on_gpu) for plain in islice(generate_plain_scripts(chosen), _MOST_TRIED)]
    if read_target(report) is not None or not candidates:
        return made | _show_without_run(candidates, report)
    made |= _ladder_as_json(climb_ladder(candidates, clock), report)
    kernel = find_eager_script(chosen.drive.source, report, made["ladder"], clock)
    if kernel is not None:
        made["eager_only"], made["eager_only_output"] = kernel.files["script"], scrub(shorten_output(kernel.output))
        made["eager_is_wrong"] = _eager_is_wrong(report, made)
    return made


def _eager_is_wrong(report: ReportJson, made: ShownJson) -> bool:
    """Return whether eager gives the kernel such inputs: by the report, else if aot_eager agrees with eager."""
    kernel = read_details(report.get("culprit")).get("aten_kernel")
    return kernel["wrong_in"] == "eager" if kernel is not None else made["ladder"][1]["result"] == "right"


def _show_without_run(candidates: Sequence[PlainScript], report: ReportJson) -> ShownJson:
    """The script for a device that is not there."""
    if not candidates:
        return ShownJson()
    text = replace(candidates[0], cuda=True).text()
    ladder = [
        RungJson(backend=backend, result="not run", says=f"no {read_target(report)} here") for backend in BACKENDS
    ]
    return ShownJson(plain=text, plain_output="", plain_shows=False, cuda=text, ladder=ladder)


def _ladder_as_json(seen: LadderResult, report: ReportJson) -> ShownJson:
    made = ShownJson(
        plain=seen.plain.text(),
        plain_output=scrub(shorten_output(seen.output)),
        plain_shows=seen.shows,
        ladder=[{**rung, "says": scrub(rung["says"])} for rung in seen.ladder],
    )
    if not seen.plain.cuda and may_show_on_cuda(report):
        made["cuda"] = replace(seen.plain, cuda=True).text()
    if report.get("verdict") in _ERRORS:
        made["error_log"] = scrub(shorten_error(seen.output))
    return made


# Further runs of a reproducer that does not show the bug the first time: the bug may come and go.
_FURTHER_RUNS = 2
# Seconds for the script of an issue where none are left: budgets may be overrun by so much.
_LEAST_PLAIN = 10.0


@dataclass(frozen=True)
class ReproducerResult:
    """A reproducer, whether it showed the bug when run alone, and its output; ``note`` is for the user.

    ``plain`` is the script for an issue with what it showed; None if none was made. ``interrupted``: by the user.
    """

    reproducer: str
    confirmed: bool
    said: str
    note: str = ""
    plain: ShownJson | None = None
    interrupted: bool = False


def find_neighbour(
    program: Program, prober: Prober, tally: SearchTally, budget: SearchBudget, *, screen: bool
) -> str | None:
    """The source of a program one change away that passes; None if none of those that are tried does.

    With ``screen``, candidates are probed without code generation first, and in full only if that passes. An interrupt
    or a spent budget ends the search.
    """

    def passes(candidate: Program) -> bool:
        for screened in (True, False) if screen else (False,):
            if budget.spent(tally.tests):
                raise OutOfBudget
            probed = prober.probe(write_program(candidate), screen=screened)
            tally.add(probed)
            if probed.verdict not in (Verdict.EQUAL, Verdict.ROUNDING):
                return False
        return True

    try:
        return find_passing_neighbour(program, passes)
    except (KeyboardInterrupt, OutOfBudget):
        return None


def show(
    source: str, report: ReportJson, neighbour: str | None, *, for_issue: bool, ends: float = math.inf
) -> ReproducerResult:
    """Build the reproducer and run it in a clean process, several times if the first run does not show the bug.

    That of a target's finding is judged there for the target instead. Under passes or a backend of the user's own, one
    whose culprit is PyTorch's is tried without them first; where it needs them, no script for an issue is made.

    An interrupt ends the runs; the reproducer is returned unconfirmed.

    Args:
        source: the text of the case.
        report: its report.
        neighbour: the source of a program that passes.
        for_issue: also make what an issue shows, if the bug is confirmed.
        ends: until when there is time for that, as a value of ``time.monotonic()``; ten seconds are taken anyway.

    Raises:
        CaseError, UsageError: no reproducer can be built.
    """
    if has_custom_code():
        if not blames_custom(report):
            # A bug of PyTorch that needs nothing of the user's own.
            bare = choose_script(source, report, neighbour=neighbour, custom=False)
            if confirm_reproducer(write_reproducer(bare, report)).confirmed:
                return _run(bare, source, report, for_issue=for_issue, ends=ends)
        for_issue = False
    return _run(choose_script(source, report, neighbour=neighbour), source, report, for_issue=for_issue, ends=ends)


def _run(script: ScriptPlan, source: str, report: ReportJson, *, for_issue: bool, ends: float) -> ReproducerResult:
    """Run the reproducer as :func:`show` says."""
    reproducer = write_reproducer(script, report)

    def run() -> ReproducerConfirmation:
        return confirm_reproducer(reproducer) if read_target(report) is None else confirm_for_target(reproducer, report)

    try:
        confirmation = run()
        first = ReproducerResult(reproducer, confirmation.confirmed, confirmation.output)
        if confirmation.confirmed:
            return _add_issue_script(first, source, script, report, ends) if for_issue else first
        again = [run() for _ in range(_FURTHER_RUNS)]
    except KeyboardInterrupt:
        return ReproducerResult(reproducer, False, "the confirmation was interrupted", interrupted=True)
    shown = [confirmation for confirmation in again if confirmation.confirmed]
    if not shown:
        return replace(first, note=f"the reproducer does not show the bug alone in {len(again) + 1} runs")
    note = f"the bug comes and goes: the reproducer showed it in {len(shown)} of {len(again) + 1} runs"
    late = ReproducerResult(reproducer, True, shown[0].output, note)
    return _add_issue_script(late, source, script, report, ends) if for_issue else late


def _add_issue_script(
    shown: ReproducerResult, source: str, script: ScriptPlan, report: ReportJson, ends: float
) -> ReproducerResult:
    """With the script for an issue; an interrupt leaves it out."""
    try:
        return replace(
            shown, plain=build_issue_script(source, script, report, max(_LEAST_PLAIN, ends - time.monotonic()))
        )
    except KeyboardInterrupt:
        return replace(shown, interrupted=True)
    except Exception as error:  # a case may be of any form, and its reproducer stands without this script
        why = f"no script for an issue could be made ({type(error).__name__}: {error})"
        return replace(shown, note="; ".join(filter(None, (shown.note, why))))


def can_build_reproducer(source: str, report: ReportJson) -> bool:
    """Return whether a reproducer can be built from a reduced text."""
    try:
        build_reproducer(source, report)
    except Exception:  # it runs the case, which may raise anything once statements are gone
        return False
    return True


def build_unconfirmed(source: str, report: ReportJson) -> ReproducerResult:
    """The reproducer of an interrupted search, not run; the source itself if none can be built."""
    said = "the search was interrupted"
    try:
        return ReproducerResult(build_reproducer(source, report), False, said)
    except Exception:  # it runs the case, which may raise anything once statements are gone
        return ReproducerResult(source, False, said)
