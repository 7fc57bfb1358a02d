"""What one run of a reproducer shows, from its exit status and what it printed.

A reproducer ends with a line ``BUG: …`` and status 1, with ``OK: …`` and status 0, or with 3 where its device is not
there. Whatever else it does, it was not written to do: then the Python stack says whether the compiled program is at
fault or something before it.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from fuzzcompile.corpus.replay.process import Ended
from fuzzcompile.corpus.replay.status import Status
from fuzzcompile.model.contract import ReportJson

BUG = "BUG: "
_NO_DEVICE = 3
# Code that runs only for a compiled program: the compiler's, what it generated, and torch.compile itself.
_COMPILED = re.compile(
    r'File "[^"]*(?:\btorch/_(?:dynamo|inductor|functorch)/|torchinductor)[^"]*"'
    r'|File "[^"]*\btorch/__init__\.py", line \d+,? in compile\b'
)
_RAISED = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception|Failed|Failure|Interrupt|Unsupported)\w*)(?:: (.*))?$", re.M)
_BOTH = re.compile(r"eager raises (?P<eager>.+?); compiled raises (?P<compiled>.+)$", re.M)
_ENDING = re.compile(r"exit status of compiled: (?P<status>-?\d+|none)")
_NOTHING = "nothing"
# The machine or the installation is at fault, not the program.
_UNFIT = re.compile(
    r"\b(?:ImportError|ModuleNotFoundError)\b|InvalidCxxCompiler|No working C\+\+ compiler|No space left on device"
    r"|Cannot find a working triton|Unexpected optimization option|\bMemoryError\b|out of memory"
)
# A version may lack what the program calls.
_ABSENT = ("AttributeError", "NameError", "TypeError")
_ERRORS, _ACCEPTS, _CRASH, _TIMEOUT = ("compile_error", "runtime_error"), "accepts_invalid", "crash", "timeout"
_COMPARED = 60  # characters of a normalised message


@dataclass(frozen=True)
class Expected:
    """What a reproducer was made to show: a verdict, and the error that compiled (or, if it accepts, eager) raised."""

    verdict: str
    error: str = ""

    @classmethod
    def of(cls, report: ReportJson) -> Expected:
        """From the report on the reproducer."""
        said = re.sub(r"^eager raises (.*); compiled runs$", r"\1", str(report.get("detail") or ""), flags=re.S)
        return cls(str(report.get("verdict")), said.partition("\n")[0])


@dataclass(frozen=True)
class Run:
    """What one run shows, and why in a few words."""

    status: Status
    why: str
    output: str


def read(ended: Ended, expected: Expected) -> Run:
    """What a run shows of the bug for which the reproducer was made."""
    status, why = _read(ended, expected)
    return Run(status, why, ended.output)


def _read(ended: Ended, expected: Expected) -> tuple[Status, str]:
    if ended.status is None:
        return _hung(ended, expected)
    if ended.status < 0:
        return _killed(ended, expected)
    said = next((line for line in ended.output.splitlines() if line.startswith(BUG)), None)
    if ended.status == 1 and said is not None:
        return _shown(ended.output, expected, said)
    if ended.status == 0 and said is None:
        return _passed(ended.output, expected)
    if ended.status == _NO_DEVICE:
        return Status.NOT_RUN, _last_line(ended.output) or "it needs a device that is not here"
    return _raised(ended.output, f"exit status {ended.status} without a verdict")


def _shown(output: str, expected: Expected, said: str) -> tuple[Status, str]:
    """It says that the bug is there: of an error or a crash, whether it is the same."""
    both, ending = _BOTH.search(output), _ENDING.search(output)
    if both is not None and expected.verdict in _ERRORS:
        return _compared(both["compiled"], expected)
    if both is not None and expected.verdict == _ACCEPTS and _lacks(both["eager"], expected):
        return Status.ERRORED, f"eager raises {both['eager']}"
    if ending is not None:
        return _ended(ending["status"], output, expected)
    return Status.FAILING, said.removeprefix(BUG)


def _compared(compiled: str, expected: Expected) -> tuple[Status, str]:
    if _UNFIT.search(compiled):
        return Status.ERRORED, f"compiled raises {compiled}"
    same = not expected.error or _same_error(compiled, expected.error)
    return Status.FAILING if same else Status.DIFFERENT, f"compiled raises {compiled}"


def _ended(status: str, output: str, expected: Expected) -> tuple[Status, str]:
    """The compiled program ran in a process of its own, which did not end well."""
    why = "the compiled program does not end" if status == "none" else f"the compiled program ends with {status}"
    if expected.verdict not in (_CRASH, _TIMEOUT) or (status == "none") == (expected.verdict == _TIMEOUT):
        if status == "1" and "Traceback" in output:  # an exception is no crash
            return _raised(output, why)
        return Status.FAILING, why
    return (Status.ERRORED if _UNFIT.search(output) else Status.DIFFERENT), why


def _passed(output: str, expected: Expected) -> tuple[Status, str]:
    """It says that all is well: but it may have compared one failure with another."""
    both = _BOTH.search(output)
    eager, compiled = (both["eager"], both["compiled"]) if both is not None else (_NOTHING, _NOTHING)
    if eager != _NOTHING and (expected.verdict in _ERRORS or _lacks(eager, expected)):
        return Status.ERRORED, f"eager raises {eager}"
    if eager == _NOTHING and compiled != _NOTHING:
        status = Status.ERRORED if _UNFIT.search(compiled) else Status.DIFFERENT
        return status, f"eager runs and compiled raises {compiled}"
    return Status.FIXED, (_last_line(output) or "it passes").removeprefix("OK: ")


def _lacks(eager: str, expected: Expected) -> bool:
    """Whether eager raises because this torch lacks what the program calls, and not as it did then."""
    kind, recorded = eager.partition(":")[0], expected.error.partition(":")[0]
    return kind != recorded and (kind in _ABSENT or _UNFIT.search(eager) is not None)


def _hung(ended: Ended, expected: Expected) -> tuple[Status, str]:
    why = f"still running after {ended.seconds:.0f} s"
    if expected.verdict == _TIMEOUT:
        return Status.FAILING, why
    return (Status.DIFFERENT if _COMPILED.search(ended.output) else Status.ERRORED), why


def _killed(ended: Ended, expected: Expected) -> tuple[Status, str]:
    number = -(ended.status or 0)
    names = {member.value: member.name for member in signal.Signals}
    why = f"ended by {names.get(number, f'signal {number}')}"
    if expected.verdict == _CRASH:
        return Status.FAILING, why
    return (Status.DIFFERENT if _COMPILED.search(ended.output) else Status.ERRORED), why


def _raised(output: str, otherwise: str) -> tuple[Status, str]:
    """It ended with an exception that it does not handle."""
    errors = [match[0] for match in _RAISED.finditer(output)]
    if not errors:
        return Status.ERRORED, _last_line(output) or otherwise
    unfit = any(_UNFIT.search(error) for error in errors)
    compiled = _COMPILED.search(output) is not None and not unfit
    return (Status.DIFFERENT if compiled else Status.ERRORED), errors[-1]


def _same_error(said: str, recorded: str) -> bool:
    """Whether two errors have one type, under whatever wrappers of the compiler, and one message."""
    if said.rstrip().endswith("raised:"):  # a wrapper, and the rest is on the next line
        return True
    kind, _, message = recorded.partition(":")
    wrapped = re.search(rf"\b{re.escape(kind.strip())}\b:?(.*)", said, re.S)
    if wrapped is None:
        return False
    now, then = (_normalised(text)[:_COMPARED] for text in (wrapped[1], message))
    return now.startswith(then) or then.startswith(now)


def _normalised(message: str) -> str:
    """A message without what changes from run to run: addresses, quoted names, numbers."""
    text = re.sub(r"0x[0-9a-fA-F]+|'[^']*'|\"[^\"]*\"", "…", message)
    return " ".join(re.sub(r"-?\d+(\.\d+)?", "N", text).split())


def _last_line(output: str) -> str:
    return next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "")
