"""What is shown of a reduced case: its reproducer, and for an issue its plain script with ladder and environment."""

from __future__ import annotations

import ast
import math
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from fuzzcompile.compiler.custom_code import has_custom_code
from fuzzcompile.model.contract import COMPILE, ReportJson, RungJson, ShownJson, read_target
from fuzzcompile.model.culprit_contract import read_details
from fuzzcompile.model.custom import is_custom
from fuzzcompile.model.privacy import scrub
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.programs.scripts.clean_process import FinishedProcess, collect_environment
from fuzzcompile.programs.scripts.ladder import (
    BACKENDS,
    climb_ladder,
    find_eager_script,
    shorten_error,
    shorten_output,
)
from fuzzcompile.programs.scripts.plain_script import choose_input_kinds, generate_plain_scripts, may_show_on_cuda
from fuzzcompile.programs.scripts.reproducer import (
    build_reproducer,
    choose_script,
    confirm_for_target,
    confirm_reproducer,
    write_reproducer,
)
from fuzzcompile.programs.scripts.script_plan import ScriptPlan
from fuzzcompile.programs.scripts.straight_code import (
    Pieces,
    grow_last,
    inline_values,
    rename_for_users,
    split_case,
    unwrap_module,
)

# Most scripts to try: each takes a compile or two.
_MOST_TRIED = 6
# Seconds for all of them together, at most: a minimization in a campaign has little time left.
_SECONDS = 150.0
_ERRORS = (Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR, Verdict.CRASH)
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


def show(
    source: str, report: ReportJson, neighbour: str | None, *, for_issue: bool, ends: float = math.inf
) -> ReproducerResult:
    """Build the reproducer and run it in a clean process, several times if the first run does not show the bug.

    That of a target's finding is judged there for the target instead. Under passes or a backend of the user's own, one
    whose culprit is PyTorch's is tried without them first; where it needs them, no script for an issue is made.
    With ``for_issue`` what an issue shows is made too, if the bug is confirmed: in the time until ``ends``, a value of
    ``time.monotonic()``, or ten seconds. An interrupt ends the runs; the reproducer is returned unconfirmed.
    CaseError or UsageError if none can be built.
    """
    custom, script = has_custom_code(), None
    if custom and not is_custom((report.get("culprit") or {}).get("pass")):
        bare = choose_script(source, report, neighbour=neighbour, custom=False)
        if confirm_reproducer(write_reproducer(bare, report)).confirmed:
            custom, script = False, bare  # a bug of PyTorch that needs nothing of the user's own
    script = script or choose_script(source, report, neighbour=neighbour)
    shown = _confirm(write_reproducer(script, report), report)
    if not for_issue or custom or not shown.confirmed:
        return shown
    seconds = max(_LEAST_PLAIN, ends - time.monotonic())
    try:
        return replace(shown, plain=build_issue_script(source, script, report, seconds))
    except KeyboardInterrupt:
        return replace(shown, interrupted=True)
    except Exception as error:  # a case may be of any form, and its reproducer stands without this script
        why = f"no script for an issue could be made ({type(error).__name__}: {error})"
        return replace(shown, note="; ".join(filter(None, (shown.note, why))))


def _confirm(reproducer: str, report: ReportJson) -> ReproducerResult:
    def run() -> FinishedProcess:
        return confirm_reproducer(reproducer) if read_target(report) is None else confirm_for_target(reproducer, report)

    try:
        first = run()
        again = [] if first.confirmed else [run() for _ in range(_FURTHER_RUNS)]
    except KeyboardInterrupt:
        return ReproducerResult(reproducer, False, "the confirmation was interrupted", interrupted=True)
    shown = [confirmation for confirmation in again if confirmation.confirmed]
    if shown:
        note = f"the bug comes and goes: the reproducer showed it in {len(shown)} of {len(again) + 1} runs"
        return ReproducerResult(reproducer, True, shown[0].output, note)
    note = f"the reproducer does not show the bug alone in {len(again) + 1} runs" if again else ""
    return ReproducerResult(reproducer, first.confirmed, first.output, note)


def try_reproducer(source: str, report: ReportJson) -> str | None:
    """The reproducer of a source that was not judged; None if none can be built."""
    try:
        return build_reproducer(source, report)
    except Exception:  # it runs the case, which may raise anything once statements are gone
        return None


def build_issue_script(source: str, chosen: ScriptPlan, report: ReportJson, seconds: float = _SECONDS) -> ShownJson:
    """Make the plain script of a case, run it alone and under each backend, and keep what was seen.

    ``source`` is the case as it was judged, ``seconds`` what there is time for: at most 150.
    """
    ends, target = time.monotonic() + min(_SECONDS, seconds), read_target(report)
    made = ShownJson(collect_env=collect_environment())
    expression = find_faulty_expression(source, chosen, report)
    if expression is not None:
        made["expression"] = expression
    if chosen.probe.case.settings.path != COMPILE:
        return made  # the ladder is of backends of torch.compile
    candidates = [replace(plain, cuda=chosen.on_gpu) for plain in islice(generate_plain_scripts(chosen), _MOST_TRIED)]
    if not candidates:
        return made
    if target is not None:  # a device that is not there
        text = replace(candidates[0], cuda=True).text()
        ladder = [RungJson(backend=backend, result="not run", says=f"no {target} here") for backend in BACKENDS]
        return made | ShownJson(plain=text, plain_output="", plain_shows=False, cuda=text, ladder=ladder)
    seen = climb_ladder(candidates, ends)
    made["plain"], made["plain_output"] = seen.plain.text(), scrub(shorten_output(seen.output))
    made["plain_shows"] = seen.shows
    made["ladder"] = [{**rung, "says": scrub(rung["says"])} for rung in seen.ladder]
    if not seen.plain.cuda and may_show_on_cuda(report):
        made["cuda"] = replace(seen.plain, cuda=True).text()
    if report.get("verdict") in _ERRORS:
        made["error_log"] = scrub(shorten_error(seen.output))
    alone = find_eager_script(chosen.source, report, made["ladder"], ends)
    if alone is not None:
        made["eager_only"], made["eager_only_output"] = alone.files["script"], scrub(shorten_output(alone.output))
        kernel = read_details(report.get("culprit")).get("aten_kernel")
        # Where the report does not say whether eager gives the kernel such inputs: if aot_eager agrees with eager.
        wrong = kernel["wrong_in"] == "eager" if kernel is not None else made["ladder"][1]["result"] == "right"
        made["eager_is_wrong"] = wrong
    return made


# The operation at fault, as a user writes it.

_WIDTH = 76
_LINE = re.compile(r":(\d+)")


def find_faulty_expression(source: str, chosen: ScriptPlan, report: ReportJson) -> str | None:
    """Return the expression at the culprit's site, else one that its name mentions, of at most some 76 characters.

    The site is a line of ``source``, the text that was judged. Without either it is the expression that is returned.
    """
    pieces, culprit = split_case(chosen.source), report.get("culprit") or {}
    function = rename_for_users(unwrap_module(pieces), choose_input_kinds(chosen)).function
    if function is None:
        return None
    body, place = list(function.body), _find_statement(pieces, source, str(culprit.get("site") or ""))
    if place is None or not any(isinstance(x, ast.Call | ast.BinOp | ast.AugAssign) for x in ast.walk(body[place])):
        said = f"{culprit.get('rewrite')} {culprit.get('family')} {culprit.get('pass')}".lower()
        calls = [(n, node.func) for n, s in enumerate(body) for node in ast.walk(s) if isinstance(node, ast.Call)]
        named = [(n, ast.unparse(function).rpartition(".")[2].lower()) for n, function in calls]
        place = max((n for n, name in named if len(name) > 2 and name in said), default=len(body) - 1)
    return next((text for text in _expressions(body, place) if len(text) <= _WIDTH), None)


def _expressions(body: Sequence[ast.stmt], place: int) -> Iterator[str]:
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


def _value(statement: ast.stmt) -> str:
    value = getattr(statement, "value", None)
    text = ast.unparse(value if isinstance(value, ast.expr) and not isinstance(statement, ast.AugAssign) else statement)
    return text[1:-1] if isinstance(value, ast.Tuple) and value.elts else text


def _find_statement(pieces: Pieces, source: str, site: str) -> int | None:
    line, lines, function = _LINE.search(site), source.splitlines(), unwrap_module(pieces).function
    if line is None or function is None or not 0 < int(line[1]) <= len(lines):
        return None
    try:
        wanted = ast.unparse(ast.parse(lines[int(line[1]) - 1].strip().replace("self.", "")))
    except SyntaxError:
        return None
    texts = [ast.unparse(statement).replace("self.", "") for statement in function.body]
    return texts.index(wanted) if wanted in texts else None
