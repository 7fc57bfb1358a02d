"""Runs plain scripts: which one shows the bug, alone and under each backend."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fuzzcompile.model.contract import ReportJson, RungJson
from fuzzcompile.model.culprit_contract import read_details
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.model.versions import PACKAGE
from fuzzcompile.programs.issue import checks
from fuzzcompile.programs.issue.checks import split_error
from fuzzcompile.programs.issue.plain_script import PlainScript
from fuzzcompile.programs.scripts.clean_process import FinishedProcess, run_alone

# The output of a script, cut to the lines that a reader needs.

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


# A clean process does not find a package that PYTHONPATH alone leads to.
_OWN_PACKAGE = {"PYTHONPATH": str(PACKAGE.parent)}


def shorten_output(output: str) -> str:
    """Return the output of a script in a few lines, without the frames of a traceback."""
    before, _, error = checks.split_error(output)
    lines = [line.rstrip() for line in (*before.splitlines(), *error.splitlines())]
    lines = [line for line in lines if line and not _HINTS.match(line)]
    if len(lines) > _MOST_LINES:  # a compiler's message: what it calls errors
        errors = [line for line in lines[1:] if _COMPILER_ERROR.search(line)]
        lines = [lines[0], *(errors or lines[1:])[: _MOST_LINES - 2], "..."]
    return "\n".join(line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]}..." for line in lines)


def choose_line(output: str) -> str:
    """Return the most informative line of an output."""
    _, _, error = checks.split_error(output)
    lines = [line.strip() for line in (error or output).splitlines() if line.strip() and not _HINTS.match(line)]
    if not lines:
        return ""
    if not error:
        return lines[-1][:_MOST_CHARACTERS]
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


BACKENDS = ("eager", "aot_eager", "aot_eager_decomp_partition", "inductor")
# No backend: `torch.compile` switched off, so that a script that shows anything there shows no bug of the compiler.
_OFF = "off"
_NOT_RUN = "not run"
# The order of trying: whether the script shows the bug, and whether it is silent without a compiler.
_TRIED = ("inductor", _OFF, "eager", "aot_eager", "aot_eager_decomp_partition")
# Seconds for one process, and least seconds that are worth starting one for.
_LIMIT = 90.0
_LEAST = 5.0


@dataclass(frozen=True)
class LadderResult:
    """The results of a plain script: its ladder, whether it shows the bug, and its output when run alone."""

    plain: PlainScript
    shows: bool
    output: str
    ladder: Sequence[RungJson]


@dataclass(frozen=True)
class _Rung:
    result: str
    output: str


@dataclass(frozen=True)
class Deadline:
    """Time for all processes together: ``end`` is on the clock of `time.monotonic`."""

    end: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return a clock that ends in so many seconds."""
        return cls(time.monotonic() + seconds)

    @property
    def limit(self) -> float | None:
        """Seconds for one more process; None if there is no time for one."""
        left = min(_LIMIT, self.end - time.monotonic())
        return left if left >= _LEAST else None


def climb_ladder(candidates: Sequence[PlainScript], clock: Deadline) -> LadderResult:
    """Try plain scripts until one shows the bug and is silent without a compiler; run that one alone.

    All of it takes two processes, and one more for each rung behind a crash. What there is no time for is not run.
    """
    dies = [plain for plain in candidates if plain.check.kind == "dies"]
    if dies:
        return _run_one_by_one(dies[0], clock)
    seen = _try_candidates([[_make_rung(plain, backend) for backend in _TRIED] for plain in candidates], clock)
    best = next((number for number in range(len(candidates)) if _is_honest(candidates[number], seen, number)), None)
    plain = candidates[best or 0]
    alone = _run_rung_alone(plain, "inductor", clock)
    found = {**seen.get(best or 0, {}), "inductor": alone}
    ladder = [
        _rung_as_json(backend, found.get(backend) or _run_rung_alone(plain, backend, clock), plain)
        for backend in BACKENDS
    ]
    shows = checks.shows_bug(plain.check.kind, alone.result) and best is not None
    return LadderResult(plain, shows, alone.output, ladder)


def _make_rung(plain: PlainScript, backend: str) -> dict[str, str]:
    script = plain.text(None if backend == "inductor" else backend)
    return {"backend": backend, "script": script, "check": plain.check.kind}


def _try_candidates(candidates: Sequence[Sequence[Mapping[str, str]]], clock: Deadline) -> dict[int, dict[str, _Rung]]:
    """Return the result of each candidate under each backend that was tried, by its number."""
    found: dict[int, dict[str, _Rung]] = {}
    driver = Path(checks.__file__).read_text(encoding="utf-8")
    limit = clock.limit
    if limit is None:
        return {}
    ran = run_alone(
        driver,
        environment=_OWN_PACKAGE,
        timeout=limit,
        beside={"scripts.json": json.dumps(candidates)},
        wanted=["seen.jsonl"],
    )
    for line in ran.files.get("seen.jsonl", "").splitlines():
        entry = json.loads(line)
        own = found.setdefault(entry["candidate"], {})
        own[entry["backend"]] = _Rung(
            str(entry.get("result") or "raises"), str(entry.get("output") or _describe_death(ran))
        )
    return found


def _is_honest(plain: PlainScript, seen: Mapping[int, Mapping[str, _Rung]], number: int) -> bool:
    own = seen.get(number, {})
    return (
        "inductor" in own
        and checks.shows_bug(plain.check.kind, own["inductor"].result)
        and _OFF in own
        and own[_OFF].result == "right"
    )


def _run_one_by_one(plain: PlainScript, clock: Deadline) -> LadderResult:
    """The ladder of a script that may take its process down."""
    found = {backend: _run_rung_alone(plain, backend, clock) for backend in BACKENDS}
    ladder = [_rung_as_json(backend, found[backend], plain) for backend in BACKENDS]
    shows = found["inductor"].result == "raises" and found["eager"].result == "right"
    return LadderResult(plain, shows, found["inductor"].output, ladder)


def _run_rung_alone(plain: PlainScript, backend: str, clock: Deadline) -> _Rung:
    limit = clock.limit
    if limit is None:
        return _Rung(_NOT_RUN, "no time was left")
    ran = run_alone(plain.text(None if backend == "inductor" else backend), timeout=limit)
    if plain.check.kind == "dies":
        return _Rung("right" if ran.status == 0 else "raises", ran.output if ran.status == 0 else _describe_death(ran))
    return _Rung(checks.classify_output(plain.check.kind, ran.output, ran.status), ran.output)


def _describe_death(ran: FinishedProcess) -> str:
    return f"{ran.output}\nthe process ended with status {ran.status}"


def _rung_as_json(backend: str, rung: _Rung, plain: PlainScript) -> RungJson:
    says = "" if rung.result == "right" else choose_line(rung.output)
    if plain.check.kind == "accepts" and rung.result != _NOT_RUN:
        says = (
            "accepts what eager refuses"
            if rung.result == "wrong"
            else f"raises as eager does: {choose_line(rung.output)}"
        )
    return RungJson(backend=backend, result=rung.result, says=says)


# Scripts that need no compiler: an ATen kernel that is wrong on the inputs that compiled programs give it.

_VALUES = (Verdict.MISCOMPILE, Verdict.WRONG_GRADIENT, Verdict.NONFINITE, Verdict.RUNTIME_ERROR, Verdict.CRASH)


def find_eager_script(
    source: str, report: ReportJson, ladder: Sequence[RungJson], clock: Deadline
) -> FinishedProcess | None:
    """A script that shows the fault of a kernel in eager mode, and what it printed; None if no kernel is at fault.

    It is looked for where a backend that only runs ATen operators differs from eager already, or where the culprit of
    ``report`` says that a kernel is at fault. The kernel may be the one that eager mode calls: then the compiled
    program is right.

    Args:
        source: the case.
        report: the report on it.
        ladder: what each backend showed.
        clock: bounds the processes; what there is no time for is not looked at.
    """
    kernel = read_details(report.get("culprit")).get("aten_kernel")
    named = kernel["operator"] if kernel is not None else None
    early = any(rung["result"] in ("wrong", "raises") for rung in ladder[1:3])
    limit = clock.limit
    if report.get("verdict") not in _VALUES or not (early or named) or limit is None:
        return None
    named_too = [named] if named else []
    command = ("-m", "fuzzcompile.programs.issue.kernels")
    ran = run_alone(source, command=command, arguments=named_too, environment=_OWN_PACKAGE, timeout=limit)
    line = next((line for line in ran.output.splitlines() if line.startswith('{"operator"')), None)
    for script in json.loads(line)["scripts"] if line is not None else ():
        alone = run_alone(script, timeout=clock.limit or 1)
        if split_error(alone.output)[2] or alone.status not in (0, 1):
            return FinishedProcess(alone.status, alone.output, {"script": script})
    return None
