"""What is shown of a reduced case: its reproducer, and for an issue its plain script with ladder and environment.

``python -m fuzzcompile.programs.scripts.issue_script FILE`` runs the plain scripts in a JSON file one after the other
in one process, and leaves what each showed in ``seen.jsonl``.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import math
import re
import runpy
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import torch

from fuzzcompile.compiler.custom_code import has_custom_code
from fuzzcompile.model.contract import COMPILE, EvidenceJson, ReportJson, RungJson, ShownJson, read_target
from fuzzcompile.model.culprit_contract import read_details
from fuzzcompile.model.custom import is_custom
from fuzzcompile.model.errors import describe_error
from fuzzcompile.model.privacy import scrub
from fuzzcompile.model.verdicts import ERRORS, Verdict
from fuzzcompile.programs.scripts.clean_process import OWN_PACKAGE, FinishedProcess, collect_environment, run_alone
from fuzzcompile.programs.scripts.plain_script import (
    ACCEPTED,
    PlainScript,
    choose_input_kinds,
    generate_plain_scripts,
    may_show_on_cuda,
)
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
    narrow,
    rename_for_users,
    split_case,
    unwrap_module,
)
from fuzzcompile.run.plants import list_plants

# Most scripts to try, and of those for one value of several: each takes a compile or two.
MOST_TRIED, _NARROWER_TRIED = 6, 2
# Seconds for all of them together, at most: a minimization in a campaign has little time left.
_SECONDS = 150.0
_RAISING = (*ERRORS, Verdict.CRASH)
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
    source: str,
    report: ReportJson,
    neighbour: str | None,
    *,
    for_issue: bool,
    ends: float = math.inf,
    plants: Sequence[Path] | None = None,
) -> ReproducerResult:
    """Build the reproducer and run it in a clean process, several times if the first run does not show the bug.

    That of a target's finding is judged there for the target instead. Under passes or a backend of the user's own, one
    whose culprit is PyTorch's is tried without them first; where it needs them, no script for an issue is made, and
    none with ``plants``: the files that the clean process executes first; by default what this process has executed.
    With ``for_issue`` what an issue shows is made too, if the bug is confirmed: in the time until ``ends``, a value of
    ``time.monotonic()``, or ten seconds. An interrupt ends the runs; the reproducer is returned unconfirmed.
    CaseError or UsageError if none can be built.
    """
    custom, script = has_custom_code(), None
    plants = list_plants() if plants is None else plants
    if custom and not is_custom((report.get("culprit") or {}).get("pass")):
        bare = choose_script(source, report, neighbour=neighbour, custom=False)
        if confirm_reproducer(write_reproducer(bare, report), plants=plants).confirmed:
            custom, script = False, bare  # a bug of PyTorch that needs nothing of the user's own
    script = script or choose_script(source, report, neighbour=neighbour)
    shown = _confirm(write_reproducer(script, report), report, plants)
    if not for_issue or custom or plants or not shown.confirmed:
        return shown
    seconds = max(_LEAST_PLAIN, ends - time.monotonic())
    try:
        return replace(shown, plain=build_issue_script(source, script, report, seconds))
    except KeyboardInterrupt:
        return replace(shown, interrupted=True)
    except Exception as error:  # a case may be of any form, and its reproducer stands without this script
        why = f"no script for an issue could be made ({describe_error(error)})"
        return replace(shown, note="; ".join(filter(None, (shown.note, why))))


def _confirm(reproducer: str, report: ReportJson, plants: Sequence[Path]) -> ReproducerResult:
    def run() -> FinishedProcess:
        if read_target(report) is None:
            return confirm_reproducer(reproducer, plants=plants)
        return confirm_for_target(reproducer, report, plants=plants)

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


_OF_A_RANK = ("rank ", "BUG: ", "OK: ")


def show_written(
    written: str, report: ReportJson, *, for_issue: bool, plants: Sequence[Path] | None = None
) -> ReproducerResult:
    """Run a reproducer that the processes of its case have written; an issue shows what it prints (:func:`show`)."""
    plants = list_plants() if plants is None else plants
    shown = _confirm(written, report, plants)
    if not for_issue or plants or not shown.confirmed:
        return shown
    lines = [line for line in shown.said.splitlines() if line.startswith(_OF_A_RANK)]  # warnings are of every process
    seen = ShownJson(plain_output=scrub(shorten_output("\n".join(lines))), collect_env=collect_environment())
    return replace(shown, plain=seen)


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
    if report.get("verdict") == Verdict.EAGER_WRONG:  # no backend is at fault: the operator is called by itself
        return made | _show_eager(chosen.source, report, (), ends)
    if chosen.probe.case.settings.path != COMPILE:
        return made  # the ladder is of backends of torch.compile
    narrower = _narrow(chosen, report)
    few = islice(generate_plain_scripts(narrower), _NARROWER_TRIED) if narrower is not None else ()
    scripts = islice(chain(few, generate_plain_scripts(chosen)), MOST_TRIED)
    candidates = [replace(plain, cuda=chosen.on_gpu) for plain in scripts]
    if not candidates:
        return made
    if target is not None:  # a device that is not there
        text = replace(candidates[0], cuda=True).text()
        ladder = [RungJson(backend=backend, result="not run", says=f"no {target} here") for backend in BACKENDS]
        return made | ShownJson(plain=text, plain_output="", plain_shows=False, cuda=text, ladder=ladder)
    seen = climb_ladder(candidates, ends)
    if seen.plain.chosen is narrower and (short := find_faulty_expression(source, narrower, report)) is not None:
        made["expression"] = short
    made["plain"], made["plain_output"] = seen.plain.text(), scrub(shorten_output(seen.output))
    made["plain_shows"] = seen.shows
    made["ladder"] = [{**rung, "says": scrub(rung["says"])} for rung in seen.ladder]
    if not seen.plain.cuda and may_show_on_cuda(report):
        made["cuda"] = replace(seen.plain, cuda=True).text()
    if report.get("verdict") in _RAISING:
        made["error_log"] = scrub(shorten_error(seen.output))
    return made | _show_eager(chosen.source, report, made["ladder"], ends)


def _narrow(chosen: ScriptPlan, report: ReportJson) -> ScriptPlan | None:
    """The plan of a program that only computes what is compared first; None if there is none."""
    if not chosen.targets or chosen.calls or chosen.probe.case.run is not None:
        return None
    target, probe = chosen.targets[0], chosen.probe
    narrowed = narrow(chosen.source, probe.inputs[0], probe.outputs[0], target.observable.name)
    if narrowed is None:
        return None
    source, name = narrowed
    evidence: EvidenceJson = {**(report.get("evidence") or {}), "outputs": [{**target.evidence, "name": name}]}
    try:
        return choose_script(source, {**report, "evidence": evidence})
    except Exception:  # what was left out may have been what made the program run
        return None


def _show_eager(source: str, report: ReportJson, ladder: Sequence[RungJson], ends: float) -> ShownJson:
    alone = find_eager_script(source, report, ladder, ends)
    if alone is None:
        return ShownJson()
    kernel = read_details(report.get("culprit")).get("aten_kernel")
    # Where the report does not say whether eager gives the kernel such inputs: if aot_eager agrees with eager.
    wrong = kernel["wrong_in"] == "eager" if kernel is not None else ladder[1]["result"] == "right"
    script, output = alone.files["script"], scrub(shorten_output(alone.output))
    return ShownJson(eager_only=script, eager_only_output=output, eager_is_wrong=wrong)


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


# The output of a script: what it says of the bug, and the lines that a reader needs.

# The last line of a traceback: the type of an error and its message.
_ERROR = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?::|$)")
_HEAD = "Traceback (most recent call last):"
_FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line \d+', re.MULTILINE)
# Where an assertion of the script itself is raised.
_OWN_FILES = ("repro.py", "rung.py", "torch/testing/_comparison.py")
# Lines of an error that say how to get more output, or are empty.
_HINTS = re.compile(
    r"^(Set TORCH|For even more developer|You can suppress|    import torch\._dynamo|    torch\._dynamo\.config)"
)
_COMPILER_ERROR = re.compile(r"\b(fatal )?error: ")
_MOST_LINES = 12
_MOST_CHARACTERS = 160
# Lines of an error's text.
_MOST_LOGGED = 200
# A warning, and the lines of source that g++ and clang quote below it.
_WARNING = re.compile(r":\d+:\d+: warning: ")
_QUOTED = re.compile(r"\s*\d*\s*\|| +[\^~]")


def _split_error(output: str) -> tuple[str, str, str]:
    """Split an output into the text before the final traceback, the traceback's frames, and the error with its text.

    The last two are empty if no error ended it.
    """
    before, head, rest = output.rpartition(f"\n{_HEAD}\n") if not output.startswith(f"{_HEAD}\n") else ("", "x", output)
    if not head:
        return output, "", ""
    lines = rest.splitlines()
    number = next((n for n, line in enumerate(lines) if line != _HEAD and _ERROR.match(line)), len(lines))
    return before.split(_HEAD)[0], "\n".join(lines[:number]), "\n".join(lines[number:])


def classify_output(check: str, output: str, status: int) -> str:
    """Return the result of a script, from its output and exit status: "right", "wrong" or "raises".

    ``check`` says how it shows the bug: "asserts", "prints" (what both sides give, eager mode first), "views" (a view
    that only compiled results refuse), "raises", "accepts" (prints what compiled code returns, and raises after that),
    "dies".
    """
    _, frames, error = _split_error(output)
    if check == "dies":
        return "right" if status == 0 else "raises"
    if status != 0 and not error:
        return "raises"
    if check == "accepts":
        return "wrong" if error and any(line.startswith(ACCEPTED) for line in output.splitlines()) else "right"
    if check == "prints" and not error:
        return "wrong" if _are_apart(output) else "right"
    if not error:
        return "right"
    wrong = {"asserts": "AssertionError", "views": "RuntimeError: view "}.get(check)
    files = _FRAME.findall(frames)
    own = bool(files) and files[-1].endswith(_OWN_FILES)
    return "wrong" if wrong is not None and own and error.startswith(wrong) else "raises"


# Printed values of torch and Python, each with the lines that go on with it, and a number as torch prints it.
_PRINTED = re.compile(
    r"^(?:tensor\(|torch\.|PyTreeSpec|TreeSpec|[(\[*-]|True|False|None|\d).*\n?(?:^[ \n].*\n?)*", re.MULTILINE
)
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|inf|nan)(?!\w)")
# What rounding may move of a printed number: a share of it, and of the largest one, as four decimals are printed.
_PRINTED_SHARE, _LAST_DIGITS = 1e-3, 2e-4


def _are_apart(output: str) -> bool:
    """Return whether the last two values that a script printed differ by more than rounding."""
    printed = _PRINTED.findall(drop_noise(output))[-2:]
    if len({" ".join(_NUMBER.sub("", value).split()) for value in printed}) > 1:
        return True
    pairs = list(zip(*map(_NUMBER.findall, printed), strict=True)) if len(printed) == 2 else []
    least = _LAST_DIGITS * max((abs(float(a)) for a, _ in pairs if math.isfinite(float(a))), default=0.0)

    def is_rounding(a: str, b: str) -> bool:
        return "." in a and math.isclose(float(a), float(b), rel_tol=_PRINTED_SHARE, abs_tol=least)

    return any(a != b and not is_rounding(a, b) for a, b in pairs)


def shows_bug(check: str, result: str) -> bool:
    """Return whether a script that showed ``result`` under Inductor shows the bug."""
    return result == ("raises" if check in ("raises", "dies") else "wrong")


# Lines of torch's own log, and warnings with the line of code that they quote: of this machine, not of the bug.
_NOISE = re.compile(
    r"^(?:\[?[WI]\d{4} \d\d:\d\d:\d\d\.\d+ .*|No CUDA runtime is found.*|\S+:\d+: \w*Warning: .*(?:\n  \S.*)?)\n?",
    re.MULTILINE,
)


def drop_noise(output: str) -> str:
    """Return an output without what the machine adds: the log's remarks, and Python's warnings."""
    return _NOISE.sub("", output)


def shorten_output(output: str) -> str:
    """Return the output of a script in a few lines, without the frames of a traceback."""
    before, _, error = _split_error(drop_noise(output))
    lines = [line.rstrip() for line in (*before.splitlines(), *error.splitlines())]
    lines = [line for line in lines if line and not _HINTS.match(line)]
    if len(lines) > _MOST_LINES:  # a compiler's message: what it calls errors
        errors = [line for line in lines[1:] if _COMPILER_ERROR.search(line)]
        lines = [lines[0], *(errors or lines[1:])[: _MOST_LINES - 2], "..."]
    return "\n".join(line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]}..." for line in lines)


def choose_line(output: str) -> str:
    """Return the most informative line of an output."""
    _, _, error = _split_error(output)
    lines = [line.strip() for line in (error or output).splitlines() if line.strip() and not _HINTS.match(line)]
    if not lines or not error:
        return lines[-1][:_MOST_CHARACTERS] if lines else ""
    apart = next((line for line in lines if line.startswith("Greatest absolute")), "")
    first = lines[0].removeprefix("AssertionError: ").removeprefix("AssertionError")
    if not first:
        printed = [line for line in output.splitlines() if line.strip()]
        first = printed[0] if printed and not printed[0].startswith("Traceback") else "the assertion fails"
    text = " ".join(part for part in (first, re.sub(r" \(up to.*", "", apart)) if part)
    return re.sub(r"\d+\.\d{4,}(e[-+]\d+)?", lambda number: f"{float(number[0]):.3g}", text)[:_MOST_CHARACTERS]


def shorten_error(output: str) -> str:
    """The text of an error without a C++ compiler's warnings, with the middle left out of a very long one."""
    kept: list[str] = []
    warned = False
    for line in output.splitlines():
        warned = _WARNING.search(line) is not None or (warned and _QUOTED.match(line) is not None)
        if not warned:
            kept.append(line)
    if len(kept) > _MOST_LOGGED:
        left_out = len(kept) - _MOST_LOGGED
        kept[_MOST_LOGGED // 2 : -_MOST_LOGGED // 2] = [f"... {left_out} lines left out ..."]
    return "\n".join(kept) + "\n"


# The ladder: a script under each backend, from the one that compiles least.

BACKENDS = ("eager", "aot_eager", "aot_eager_decomp_partition", "inductor")
# No backend: `torch.compile` switched off, so that a script that shows anything there shows no bug of the compiler.
_OFF = "off"
_NOT_RUN = "not run"
# The order of trying: whether the script shows the bug, and whether it is silent without a compiler.
_TRIED = ("inductor", _OFF, "eager", "aot_eager", "aot_eager_decomp_partition")
# Seconds for one process, and least seconds that are worth starting one for.
_LIMIT = 90.0
_LEAST = 5.0
# A clean process does not find a package that PYTHONPATH alone leads to.


class LadderResult(NamedTuple):
    """The results of a plain script: its ladder, whether it shows the bug, and its output when run alone."""

    plain: PlainScript
    shows: bool
    output: str
    ladder: Sequence[RungJson]


class _Rung(NamedTuple):
    result: str
    output: str


def _find_time(ends: float) -> float | None:
    left = min(_LIMIT, ends - time.monotonic())
    return left if left >= _LEAST else None


def climb_ladder(candidates: Sequence[PlainScript], ends: float) -> LadderResult:
    """Try plain scripts until one shows the bug and is silent without a compiler; run that one alone.

    All of it takes two processes, and one more for each rung behind a crash. What there is no time for is not run. Of a
    script that takes its process down, each rung is run alone.
    """
    dies = next((plain for plain in candidates if plain.check.kind == "dies"), None)
    seen = _try_candidates(candidates, ends) if dies is None else {}
    silent = [number for number, rungs in seen.items() if _OFF in rungs and rungs[_OFF].result == "right"]
    honest = [n for n in silent if shows_bug(candidates[n].check.kind, seen[n]["inductor"].result)]
    number = honest[0] if honest else 0
    plain = dies or candidates[number]
    found = {**seen.get(number, {}), "inductor": _run_rung_alone(plain, "inductor", ends)}
    rungs = {backend: found.get(backend) or _run_rung_alone(plain, backend, ends) for backend in BACKENDS}
    shows = shows_bug(plain.check.kind, rungs["inductor"].result)
    shows &= bool(honest) if dies is None else rungs["eager"].result == "right"
    ladder = [_rung_as_json(backend, rung, plain) for backend, rung in rungs.items()]
    return LadderResult(plain, shows, rungs["inductor"].output, ladder)


def _try_candidates(candidates: Sequence[PlainScript], ends: float) -> dict[int, dict[str, _Rung]]:
    limit = _find_time(ends)
    if limit is None:
        return {}
    asked = [(plain.check.kind, {backend: plain.text(backend) for backend in _TRIED}) for plain in candidates]
    command = ("-m", "fuzzcompile.programs.scripts.issue_script")
    ran = run_alone(json.dumps(asked), command=command, environment=OWN_PACKAGE, timeout=limit, wanted=["seen.jsonl"])
    found: dict[int, dict[str, _Rung]] = {}
    for line in ran.files.get("seen.jsonl", "").splitlines():
        number, backend, *answer = json.loads(line)
        found.setdefault(number, {})[backend] = _Rung(*answer) if answer else _Rung("raises", _describe_death(ran))
    return found


def _run_rung_alone(plain: PlainScript, backend: str, ends: float) -> _Rung:
    if (limit := _find_time(ends)) is None:
        return _Rung(_NOT_RUN, "no time was left")
    ran = run_alone(plain.text(backend), timeout=limit)
    died = plain.check.kind == "dies" and ran.status != 0
    result = classify_output(plain.check.kind, ran.output, ran.status)
    return _Rung(result, _describe_death(ran) if died else ran.output)


def _describe_death(ran: FinishedProcess) -> str:
    return f"{ran.output}\nthe process ended with status {ran.status}"


def _rung_as_json(backend: str, rung: _Rung, plain: PlainScript) -> RungJson:
    says = "" if rung.result == "right" else choose_line(rung.output)
    if plain.check.kind == "accepts" and rung.result != _NOT_RUN:
        raises = f"raises as eager does: {choose_line(rung.output)}"
        says = "accepts what eager refuses" if rung.result == "wrong" else raises
    return RungJson(backend=backend, result=rung.result, says=says)


def _run(script: str) -> tuple[str, int]:
    """Run a script in this process; return its output, and the exit status that it would have."""
    torch._dynamo.reset()
    Path("rung.py").write_text(script, encoding="utf-8")
    printed, status = io.StringIO(), 0
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            runpy.run_path("rung.py", run_name="__main__")
        except BaseException:  # the script is a candidate: whatever it raises is what it shows
            status = 1
            traceback.print_exc()
    return printed.getvalue(), status


def main(path: str) -> None:
    """Run scripts in this process until one shows the bug and is silent without a compiler."""
    with Path("seen.jsonl").open("w", encoding="utf-8") as seen:
        for number, (check, scripts) in enumerate(json.loads(Path(path).read_text(encoding="utf-8"))):
            for backend, script in scripts.items():
                print(json.dumps([number, backend]), file=seen, flush=True)  # it may end this process
                output, status = _run(script)
                result = classify_output(check, output, status)
                print(json.dumps([number, backend, result, output]), file=seen, flush=True)
                wanted = {"inductor": shows_bug(check, result), _OFF: result == "right"}
                if not wanted.get(backend, True):
                    break
            else:
                return


# Scripts that need no compiler: an ATen kernel that is wrong on the inputs that compiled programs give it.

_VALUES = (
    *(Verdict.MISCOMPILE, Verdict.WRONG_GRADIENT, Verdict.NONFINITE, Verdict.EAGER_WRONG),
    *(Verdict.RUNTIME_ERROR, Verdict.CRASH),
)


def find_eager_script(
    source: str, report: ReportJson, ladder: Sequence[RungJson], ends: float
) -> FinishedProcess | None:
    """A script that shows the fault of a kernel in eager mode, and what it printed; None if no kernel is at fault.

    It is looked for where a backend of the ``ladder`` that only runs ATen operators differs from eager already, or
    where the culprit of ``report`` says that a kernel is at fault, as long as there is time until ``ends``. The kernel
    may be the one that eager mode calls: then the compiled program is right.
    """
    kernel = read_details(report.get("culprit")).get("aten_kernel")
    named = [kernel["operator"]] if kernel is not None and kernel["operator"] else []
    early = any(rung["result"] in ("wrong", "raises") for rung in ladder[1:3])
    limit = _find_time(ends)
    if report.get("verdict") not in _VALUES or not (early or named) or limit is None:
        return None
    command = ("-m", "fuzzcompile.programs.scripts.kernels")
    ran = run_alone(source, command=command, arguments=named, environment=OWN_PACKAGE, timeout=limit)
    line = next((line for line in ran.output.splitlines() if line.startswith('{"operator"')), None)
    for script in json.loads(line)["scripts"] if line is not None else ():
        alone = run_alone(script, timeout=_find_time(ends) or 1)
        if _split_error(alone.output)[2] or alone.status not in (0, 1):
            return replace(alone, files={"script": script})
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])
