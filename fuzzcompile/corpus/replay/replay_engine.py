"""Results of one run of a reproducer, from its exit status and output.

A reproducer ends with a line ``BUG: …`` and status 1, with ``OK: …`` and status 0, or with 3 where its device is not
there. Whatever else it does, it was not written to do: then the Python stack says whether the compiled program is at
fault or something before it.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import signal
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import get_args

from fuzzcompile.corpus.models import Replay
from fuzzcompile.corpus.records import Finding, Reproducer, Status
from fuzzcompile.corpus.replay.environments import Torch
from fuzzcompile.corpus.replay.replay_history import ReplayStatus
from fuzzcompile.corpus.store import Store
from fuzzcompile.model import hints
from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.evidence import EagerRefusal
from fuzzcompile.model.privacy import scrub
from fuzzcompile.model.severity import Severity, rate_severity
from fuzzcompile.model.verdicts import ERRORS
from fuzzcompile.run.seats import read_size, run_in_seats
from fuzzcompile.run.subprocesses import run_command

# A script in a process and a folder of its own, run by whichever Python.

_SCRIPT, _OUTPUT = "repro.py", "output.txt"
_TAIL = 200_000  # bytes of output that are read


@dataclass(frozen=True)
class Ended:
    """End of a script: ``status`` is negative for a signal, and None if it was still running after its time."""

    status: int | None
    output: str
    seconds: float


def run_script(
    python: Path, source: str, environment: Mapping[str, str], *, timeout: float, stop: threading.Event
) -> Ended:
    """Run a script alone, in as many processes as it asks for, with what it prints on either stream.

    A script that crashes prints its Python stack, and so does one that is still running after ``timeout`` seconds.
    """
    count = read_size(source)
    if count is None:
        return _run_process(python, source, environment, timeout, stop)
    ran = run_in_seats(count, lambda seat: _run_process(python, source, {**environment, **seat}, timeout, stop))
    status = next((each.status for each in ran if each.status), None if any(e.status is None for e in ran) else 0)
    return Ended(status, "".join(each.output for each in ran), max(each.seconds for each in ran))


def _run_process(
    python: Path, source: str, environment: Mapping[str, str], timeout: float, stop: threading.Event
) -> Ended:
    started = time.monotonic()
    command = [str(python), "-X", "faulthandler", _SCRIPT]
    # The compiler's own workers may write a last file after they were told to end.
    with tempfile.TemporaryDirectory(prefix="fuzzcompile-", ignore_cleanup_errors=True) as folder:
        Path(folder, _SCRIPT).write_text(source, encoding="utf-8")
        # A file, not a pipe: the compiler's own workers may outlive the script and hold a pipe open.
        with Path(folder, _OUTPUT).open("w+b") as out:
            status = run_command(command, folder, environment, out, timeout, stop=stop, stack=True)
            size = out.seek(0, os.SEEK_END)
            out.seek(max(0, size - _TAIL))
            output = out.read().decode(errors="replace")
    return Ended(status, output, time.monotonic() - started)


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
_ACCEPTS, _CRASH, _TIMEOUT = "accepts_invalid", "crash", "timeout"
_COMPARED = 60  # characters of a normalised message


@dataclass(frozen=True)
class Expected:
    """What a reproducer was made to show: a verdict, and the error that compiled (or, if it accepts, eager) raised."""

    verdict: str
    error: str = ""

    @classmethod
    def of(cls, report: ReportJson) -> Expected:
        """From the report on the reproducer."""
        detail = str(report.get("detail") or "")
        refusal = EagerRefusal.parse(detail)
        said = detail if refusal is None else refusal.error
        return cls(str(report.get("verdict")), said.partition("\n")[0])


def read(ended: Ended, expected: Expected) -> tuple[ReplayStatus, str]:
    """What a run shows of the bug for which the reproducer was made, and why in a few words."""
    if ended.status is None or ended.status < 0:
        signals = {-member.value: member.name for member in signal.Signals}
        how, why = _CRASH, f"ended by {signals.get(ended.status or 0, f'signal {-(ended.status or 0)}')}"
        if ended.status is None:
            how, why = _TIMEOUT, f"still running after {ended.seconds:.0f} s"
        if expected.verdict == how:
            return ReplayStatus.FAILING, why
        return (ReplayStatus.DIFFERENT if _COMPILED.search(ended.output) else ReplayStatus.ERRORED), why
    said = next((line for line in ended.output.splitlines() if line.startswith(BUG)), None)
    if ended.status == 1 and said is not None:
        return _shown(ended.output, expected, said)
    if ended.status == 0 and said is None:
        return _passed(ended.output, expected)
    if ended.status == _NO_DEVICE:
        return ReplayStatus.NOT_RUN, _last_line(ended.output) or "it needs a device that is not here"
    return _raised(ended.output, f"exit status {ended.status} without a verdict")


def _shown(output: str, expected: Expected, said: str) -> tuple[ReplayStatus, str]:
    """It says that the bug is there: of an error or a crash, whether it is the same."""
    both, ending = _BOTH.search(output), _ENDING.search(output)
    if both is not None and expected.verdict in ERRORS:
        compiled, why = both["compiled"], f"compiled raises {both['compiled']}"
        if _UNFIT.search(compiled):
            return ReplayStatus.ERRORED, why
        same = not expected.error or _same_error(compiled, expected.error)
        return ReplayStatus.FAILING if same else ReplayStatus.DIFFERENT, why
    if both is not None and expected.verdict == _ACCEPTS and _lacks(both["eager"], expected):
        return ReplayStatus.ERRORED, f"eager raises {both['eager']}"
    if ending is not None:
        return _ended(ending["status"], output, expected)
    return ReplayStatus.FAILING, said.removeprefix(BUG)


def _ended(status: str, output: str, expected: Expected) -> tuple[ReplayStatus, str]:
    """The compiled program ran in a process of its own, which did not end well."""
    why = "the compiled program does not end" if status == "none" else f"the compiled program ends with {status}"
    if expected.verdict not in (_CRASH, _TIMEOUT) or (status == "none") == (expected.verdict == _TIMEOUT):
        if status == "1" and "Traceback" in output:  # an exception is no crash
            return _raised(output, why)
        return ReplayStatus.FAILING, why
    return (ReplayStatus.ERRORED if _UNFIT.search(output) else ReplayStatus.DIFFERENT), why


def _passed(output: str, expected: Expected) -> tuple[ReplayStatus, str]:
    """It says that all is well: but it may have compared one failure with another."""
    both = _BOTH.search(output)
    eager, compiled = (both["eager"], both["compiled"]) if both is not None else (_NOTHING, _NOTHING)
    if eager != _NOTHING and (expected.verdict in ERRORS or _lacks(eager, expected)):
        return ReplayStatus.ERRORED, f"eager raises {eager}"
    if eager == _NOTHING and compiled != _NOTHING:
        status = ReplayStatus.ERRORED if _UNFIT.search(compiled) else ReplayStatus.DIFFERENT
        return status, f"eager runs and compiled raises {compiled}"
    return ReplayStatus.FIXED, (_last_line(output) or "it passes").removeprefix("OK: ")


def _lacks(eager: str, expected: Expected) -> bool:
    """Return whether eager raises because this torch lacks what the program calls, and not as it did then."""
    kind, recorded = eager.partition(":")[0], expected.error.partition(":")[0]
    return kind != recorded and (kind in _ABSENT or _UNFIT.search(eager) is not None)


def _raised(output: str, otherwise: str) -> tuple[ReplayStatus, str]:
    """It ended with an exception that it does not handle."""
    errors = [match[0] for match in _RAISED.finditer(output)]
    if not errors:
        return ReplayStatus.ERRORED, _last_line(output) or otherwise
    unfit = any(_UNFIT.search(error) for error in errors)
    compiled = _COMPILED.search(output) is not None and not unfit
    return (ReplayStatus.DIFFERENT if compiled else ReplayStatus.ERRORED), errors[-1]


def _same_error(said: str, recorded: str) -> bool:
    """Return whether two errors have one type, under whatever wrappers of the compiler, and one message."""
    if said.rstrip().endswith("raised:"):  # a wrapper, and the rest is on the next line
        return True
    kind, _, message = recorded.partition(":")
    wrapped = re.search(rf"\b{re.escape(kind.strip())}\b:?(.*)", said, re.S)
    if wrapped is None:
        return False
    # Without what changes from run to run: addresses, quoted names, numbers.
    texts = (re.sub(r"0x[0-9a-fA-F]+|'[^']*'|\"[^\"]*\"", "…", text) for text in (wrapped[1], message))
    now, then = (" ".join(re.sub(r"-?\d+(\.\d+)?", "N", text).split())[:_COMPARED] for text in texts)
    return now.startswith(then) or then.startswith(now)


def _last_line(output: str) -> str:
    return next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "")


# What is replayed: findings with their best reproducers, and which of them were asked for.

_SYMPTOMS = {
    "miscompile": "wrong values",
    "wrong_gradient": "wrong gradients",
    "nonfinite": "NaN or infinity",
    "metadata": "wrong metadata",
    "aliasing": "wrong aliasing or mutation",
    "precision_loss": "lost precision",
    "compile_error": "does not compile",
    "runtime_error": "raises at run time",
    "accepts_invalid": "accepts what eager refuses",
    "crash": "crashes",
    "timeout": "does not end",
    "nondeterministic": "changes from run to run",
}
_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class Subject:
    """A finding, and the script that shows it."""

    finding: Finding
    reproducer: Reproducer | None

    @property
    def report(self) -> ReportJson:
        """The report on the script, or else on the finding."""
        own = self.reproducer.report if self.reproducer is not None else None
        return own or self.finding.report

    @property
    def expected(self) -> Expected:
        """What the script was made to show."""
        return Expected.of(self.report)

    @property
    def severity(self) -> Severity | None:
        """How bad the bug is that the script shows."""
        return rate_severity(self.report)

    @property
    def what(self) -> str:
        """The bug in a few words: the operation in the user's words, or else the rewrite at fault, and the symptom."""
        shown = (self.reproducer.shown if self.reproducer is not None else None) or {}
        layout = self.severity in (Severity.LAYOUT, Severity.RAISING_LAYOUT)
        symptom = "other strides" if layout else _SYMPTOMS.get(self.expected.verdict, self.expected.verdict)
        if shown.get("expression"):
            return f"{shown['expression']}: {symptom}"
        culprit = self.finding.culprit or {}
        name = culprit.get("rewrite") or culprit.get("pass")
        return f"{name}: {symptom}" if name else symptom

    @property
    def not_replayable(self) -> str | None:
        """Why there is nothing to run; None if there is."""
        if self.reproducer is None:
            return "it has no reproducer yet"
        if BUG not in self.reproducer.source:
            return "its script is the user's own, which does not say whether the bug shows"
        return None


def subjects(store: Store, selection: Sequence[str] = ()) -> list[Subject]:
    """The selected findings, the worst first.

    ``selection`` are ids (F3), signatures, their beginnings or globs of them, and KEY=VALUE with the key severity,
    status, stage or umbrella. Those of one key are alternatives, and so are names; each key given must hold.
    """
    findings = store.findings()
    wanted: dict[str, set[int]] = defaultdict(set)
    for text in selection:
        key, equals, value = text.partition("=")
        if equals and key in _KEYS:
            word_of = _KEYS[key]
            known = _WORDS.get(key) or sorted({word for finding in findings if (word := word_of(finding))})
            if value not in known:
                listed = ", ".join(known) or "nothing, as the corpus has none"
                raise UsageError(f"--select {text}: write one of {listed}.")
            wanted[key] |= {finding.id for finding in findings if word_of(finding) == value}
            continue
        named = {finding.id for finding in findings if _is_named(finding, text)}
        if not named:
            raise UsageError(
                f"--select {text}: the corpus has no such finding; give an id, a signature or its beginning, a glob, "
                f"or {', '.join(f'{name}=…' for name in _KEYS)} (`{hints.format_command('corpus', 'list')}` shows the "
                "findings)."
            )
        wanted["name"] |= named
    chosen = [finding for finding in findings if all(finding.id in ids for ids in wanted.values())]
    replayed = [Subject(finding, store.best_reproducer(finding.id)) for finding in chosen]
    worst: dict[Severity | None, int] = {severity: severity.rank for severity in Severity}
    return sorted(replayed, key=lambda each: (worst.get(each.severity, len(worst)), each.finding.id))


def _is_named(finding: Finding, text: str) -> bool:
    if re.fullmatch(r"[fF]?\d+", text):
        return finding.public_id == f"F{text.lstrip('fF')}"
    if _GLOB.search(text):
        return fnmatch.fnmatchcase(finding.signature, text)
    return bool(text) and finding.signature.startswith(text)


_KEYS: dict[str, Callable[[Finding], str | None]] = {
    "severity": lambda finding: finding.severity or rate_severity(finding.report),
    "status": lambda finding: finding.status,
    "stage": lambda finding: (finding.culprit or {}).get("stage"),
    "umbrella": lambda finding: finding.umbrella,
}
# The keys whose words are fixed; the others' are those that the corpus has.
_WORDS: dict[str, Sequence[str]] = {"severity": list(Severity), "status": get_args(Status)}


# Replays of many findings on one torch: each several times, several at a time.

_KEPT = 4000  # characters of output that are stored


@dataclass(frozen=True)
class Settings:
    """Settings of a replay: how often scripts are run, for how long, how many at a time, and whether they see GPUs."""

    runs: int = 3
    timeout: float = 180.0
    jobs: int = 1
    hide_gpus: bool = False


@dataclass(frozen=True)
class Result:
    """Outcome of a finding's reproducer on one torch; ``why`` is in a few words."""

    subject: Subject
    replay: Replay
    why: str


def replay_on(torch: Torch, subjects: Sequence[Subject], settings: Settings) -> Generator[Result, None, None]:
    """Run the reproducers; each result comes as soon as it is believed.

    Kernels are kept for the later runs, in a folder of this call. Graphs are not: each run compiles anew.
    """
    stop, free = threading.Event(), SimpleQueue[Path]()
    executor = ThreadPoolExecutor(settings.jobs, thread_name_prefix="replay")
    with tempfile.TemporaryDirectory(prefix="fuzzcompile-torchinductor-", ignore_cleanup_errors=True) as root:
        try:
            asked = [executor.submit(_replay, torch, subject, settings, Path(root), free, stop) for subject in subjects]
            for future in as_completed(asked):
                yield future.result()
        finally:  # also where the caller goes no further, and on Ctrl-C
            stop.set()
            executor.shutdown(cancel_futures=True)


def _replay(
    torch: Torch, subject: Subject, settings: Settings, root: Path, free: SimpleQueue[Path], stop: threading.Event
) -> Result:
    reproducer = subject.reproducer
    if reproducer is None:
        raise ValueError(f"{subject.finding.public_id} has no reproducer")
    variables = {
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
        # Without a pool of compile workers, each of which would import torch.
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    if settings.hide_gpus:
        variables |= {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    runs: list[tuple[ReplayStatus, str, str]] = []
    seconds = 0.0
    while len(runs) < settings.runs and not any(status is ReplayStatus.NOT_RUN for status, *_ in runs):
        try:  # one script at a time has a folder of compiled kernels, so that a killed one spoils only its own
            kernels = free.get_nowait()
        except Empty:
            kernels = Path(tempfile.mkdtemp(prefix="torchinductor-", dir=root))
        variables["TORCHINDUCTOR_CACHE_DIR"] = str(kernels)
        try:
            ended = run_script(torch.python, reproducer.source, variables, timeout=settings.timeout, stop=stop)
            if ended.status is None or ended.status < 0:  # it may have left a truncated kernel
                shutil.rmtree(kernels, ignore_errors=True)
        finally:
            free.put(kernels)
        seconds += ended.seconds
        runs.append((*read(ended, subject.expected), ended.output))
    statuses = [status for status, *_ in runs]
    together = statuses[0] if len(set(statuses)) == 1 else ReplayStatus.FLAKY
    if ReplayStatus.NOT_RUN in statuses:
        together = ReplayStatus.NOT_RUN
    # The last run of that status; of a flaky reproducer the last that did not pass.
    decisive = [run for run in runs if run[0] is together] or [run for run in runs if run[0] is not ReplayStatus.FIXED]
    _, why, output = decisive[-1]
    replay = Replay(
        reproducer.sha256,
        torch.version,
        torch.git,
        str(together),
        list(map(str, statuses)),
        scrub(output)[-_KEPT:],
        round(seconds, 2),
    )
    return Result(subject, replay, scrub(why))
