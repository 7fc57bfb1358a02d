"""``triage``: judge a call of a callable of the running program."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict, Unpack

from rich.console import Console

from fuzzcompile.diagnosis.refusals import CannotJudge
from fuzzcompile.diagnosis.worker.file_triage import FileAnswer, triage_files
from fuzzcompile.diagnosis.worker.judge import CaseProgress, judge_case
from fuzzcompile.diagnosis.worker.local_pool import ATTRIBUTION_SHARE, LEAST_THREADS, open_pool
from fuzzcompile.diagnosis.worker.veto_check import check_vetoes
from fuzzcompile.front.api.report import Report
from fuzzcompile.front.known_bugs import Baseline
from fuzzcompile.model.conditions import Conditions, Contract, Limits, Question, choose_running_device
from fuzzcompile.model.contract import ReportJson, WhereJson
from fuzzcompile.model.errors import CaseError, EnvironmentUnfit, UsageError
from fuzzcompile.model.judge_task import JudgeTask
from fuzzcompile.programs.capture.call_file import Unsendable, send
from fuzzcompile.programs.capture.invocation import Invocation, capture_invocation, restore_after
from fuzzcompile.programs.casefiles.case_file import SENT_SUFFIX
from fuzzcompile.run.case import Arguments, CompileSettings
from fuzzcompile.run.device import resolve_device
from fuzzcompile.run.plants import check_plants
from fuzzcompile.run.pool.worker_pool import WorkerPool
from fuzzcompile.run.reachable_state import is_user_file
from fuzzcompile.run.runs import run_eager

# The worker that judges the calls of this process: started at the first one, kept for the rest.

_Key = tuple[Conditions, tuple[str, ...]]


class WorkerSession:
    """One pool of one worker, replaced when the conditions under which it was started have changed."""

    def __init__(self) -> None:
        self._pool: WorkerPool | None = None
        self._key: _Key | None = None
        self._process = os.getpid()
        self._modules: dict[str, float] = {}

    def pool(self, conditions: Conditions) -> WorkerPool:
        """The pool for calls under ``conditions``.

        A worker that has imported a module of the user's would not see a change of its file.

        Raises:
            EnvironmentUnfit: there is no such device.
        """
        key, modules = (conditions, tuple(map(str, sys.path))), dict(_list_user_modules())
        changed = any(self._modules.get(path, time) != time for path, time in modules.items())
        if self._pool is None or key != self._key or changed or self._process != os.getpid():
            self.close()
            self._pool, self._key, self._process = (
                open_pool(conditions, 1, least_threads=LEAST_THREADS),
                key,
                os.getpid(),
            )
        self._modules = modules
        return self._pool

    def close(self) -> None:
        """End the worker; the next call starts another. A fork of the process leaves its parent's worker alone."""
        if self._pool is not None and self._process == os.getpid():
            self._pool.kill_workers()
        self._pool = None


session = WorkerSession()
"""The session of this process."""
atexit.register(lambda: session.close())


def _list_user_modules() -> Iterator[tuple[str, float]]:
    """The files of the user's modules, with the time of their last change."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and is_user_file(file) and Path(file).exists():
            yield file, Path(file).stat().st_mtime


Backend = str | Callable[..., object]


class TriageOptions(TypedDict, total=False):
    """Keyword arguments of :meth:`Triage.options`; see :class:`Triage`."""

    backend: Backend
    mode: str
    options: Mapping[str, object]
    dynamic: bool
    fullgraph: bool
    grad: bool
    device: str
    target: str
    against: str
    contract: Contract
    vetoes: tuple[str, ...]
    plants: tuple[Path, ...]
    timeout: float
    memory: float
    in_place: bool
    baseline: str | Path


@dataclass(frozen=True)
class CallSettings:
    """Settings to compile, run and judge a call; None leaves one to the callable, or to the call's surroundings."""

    backend: Backend | None = None  # arguments of ``torch.compile``
    mode: str | None = None
    options: Mapping[str, object] | None = None
    dynamic: bool | None = None
    fullgraph: bool | None = None
    grad: bool | None = None  # True compares gradients too, False runs without autograd
    device: str | None = None  # ``cpu``, ``cuda`` or ``cuda:N``; by default where the tensors are
    target: str | None = None  # a device that the compiler generates code for (:mod:`fuzzcompile.model.targets`)
    against: str = "eager"  # what the compiled program is compared with
    contract: Contract = "values"  # ``values``, or ``bitwise`` for the promises of equal bits too
    vetoes: tuple[str, ...] = ()  # rewrites to refuse
    plants: tuple[Path, ...] = ()  # files that a worker runs first, to plant a bug
    # seconds that the call may take in a worker. In place nothing enforces it, and only the proof of a culprit ends
    # early.
    timeout: float = Limits.seconds
    memory: float = Limits.memory / 2**30  # GiB that a worker may use
    in_place: bool = False  # judge in this process even where the call can be sent to a worker
    baseline: str | Path | None = None  # a file of known bugs; :attr:`Report.json` then has ``known``

    @property
    def question(self) -> Question:
        """The question that triage answers about the call."""
        return Question(against=self.against, contract=self.contract, thorough=True)

    def make_conditions(self, invocation: Invocation) -> Conditions:
        """Return the conditions under which the call runs.

        Raises:
            UsageError: there is no such device or target, or the tensors are on several devices.
        """
        check_plants([Path(plant) for plant in self.plants])
        device = choose_running_device(self.device or _find_device(invocation, self.target), self.target)
        limits = Limits(self.timeout, int(self.memory * 2**30))
        return Conditions(device, tuple(self.vetoes), tuple(map(Path, self.plants)), limits, self.target)

    def apply_to(self, invocation: Invocation) -> Invocation:
        """Return the call with these settings in place of its own."""
        given = {name: getattr(self, name) for name in ("backend", "mode", "options", "dynamic", "fullgraph")}
        given = {name: value for name, value in given.items() if value is not None}
        settings = invocation.settings
        if given.keys() & {"backend", "mode", "options"}:  # a mode is options, and options are those of a backend
            settings = CompileSettings(dynamic=settings.dynamic, fullgraph=settings.fullgraph)
        changed = replace(invocation, settings=replace(settings, **given))
        if self.grad is None:
            return changed
        ambient = replace(invocation.ambient, grad="enabled" if self.grad else "no_grad")
        return replace(changed, ambient=ambient, backward=self.grad)


@dataclass(frozen=True)
class Triage:
    """``triage(model, *args, **kwargs)``: compile a callable, judge this call of it, and name what is at fault.

    The call is judged as ``torch.compile(model)(*args, **kwargs)`` would run now, under the grad mode, autocast, random
    state and configs in force. A compiled callable is judged under the arguments that ``torch.compile`` got. Gradients
    are compared too where autograd is on, and a module in training mode or an input requires them.

    A worker process judges a copy, with limits and safe from crashes. What cannot be copied (an open file, an operator
    registered here only) is judged in this process, which a crash of the compiler would end. ``Report.where`` says
    which. Either way the model, its gradients and the random state are left as they were.

    Settings have a method of their own, :meth:`options`, because every keyword of the call belongs to the model::

        report = triage(model, ids, attention_mask=mask)
        report = triage.options(dynamic=True, timeout=600)(model, ids)
    """

    settings: CallSettings = CallSettings()

    def options(self, **changes: Unpack[TriageOptions]) -> Triage:
        """The same, with these settings (:class:`CallSettings` describes each).

        Raises:
            UsageError: there is no such setting.
        """
        unknown = sorted(changes.keys() - TriageOptions.__annotations__.keys())
        if unknown:
            known = ", ".join(TriageOptions.__annotations__)
            raise UsageError(f"triage.options() has no {', '.join(unknown)}; it takes {known}.")
        return Triage(replace(self.settings, **changes))

    def __call__(self, model: object, /, *args: object, **kwargs: object) -> Report:
        """Judge ``model(*args, **kwargs)``.

        Returns:
            The report: a bug or not, the culprit, a workaround.

        Raises:
            UsageError: ``model`` cannot be called, or a setting is wrong.
            EnvironmentUnfit: nothing can be said of the call, or the machine lacks what judging needs; the message says
                what to do.
        """
        return self.judge(capture_invocation(model, Arguments(args, kwargs)))

    def judge(self, invocation: Invocation) -> Report:
        """Judge a call that was captured before."""
        asked = self.settings.apply_to(invocation)
        conditions = self.settings.make_conditions(asked)
        baseline = None if self.settings.baseline is None else Baseline.read(Path(self.settings.baseline))
        report = _CallTriage(asked, self.settings.question, conditions, session).judge(in_place=self.settings.in_place)
        if baseline is not None and report.is_bug:
            return Report({**report.json, "known": baseline.knows(report.json)})
        return report


triage = Triage()
"""Judge a call of a callable; see :class:`Triage`."""


@dataclass(frozen=True)
class _CallTriage:
    """One call on its way to a verdict."""

    invocation: Invocation
    question: Question
    conditions: Conditions
    session: WorkerSession

    def judge(self, *, in_place: bool) -> Report:
        """The report of a worker, or of this process where a worker cannot run the call as it runs here."""
        if in_place:
            return self._judge_in_place("asked for with in_place=True")
        try:
            with _show_status(self.invocation.name):
                answer = self._judge_copy()
        except Unsendable as error:
            return self._judge_in_place(f"the call cannot be sent to a worker ({error})")
        report, said = answer.report, _reword(answer.error or "", self.invocation.name)
        if report is None and answer.status == CaseError.exit_status:
            return self._judge_in_place(f"a worker cannot run the call ({said})")
        if report is None:
            raise CannotJudge(f"{said}.")
        if report["verdict"] in ("invalid", "accepts_invalid") and not self._raises_here():
            # The copy lacks what this process has, such as a patch or a registered operator.
            return self._judge_in_place(f"eager raises in a worker and not here ({report['detail']})")
        return _make_report(report, {"process": "worker", "why": ""})

    def _judge_copy(self) -> FileAnswer:
        with tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder:
            path = Path(folder, f"{_make_file_name(self.invocation.name)}{SENT_SUFFIX}")
            try:
                send(self.invocation, path)
            except OSError as error:
                reason = os.strerror(error.errno) if error.errno else str(error)
                raise EnvironmentUnfit(
                    f"Cannot write the call into {folder}: {reason}; set TMPDIR to a folder with room for the model."
                ) from error
            pool = self.session.pool(self.conditions)
            try:
                (answer,) = triage_files([path], self.conditions, self.question, pool=pool)
            except BaseException:  # Ctrl-C among others: the worker goes on with the call otherwise
                self.session.close()
                raise
            return answer

    def _raises_here(self) -> bool:
        """Return whether the call itself, and not just its copy, raises in eager mode."""
        with restore_after(self.invocation):
            return run_eager(self.invocation.case(), resolve_device(self.conditions.device)).failure is not None

    def _judge_in_place(self, why: str) -> Report:
        conditions = self.conditions
        if conditions.target is not None or conditions.plants:
            what = "a target" if conditions.target is not None else "a plant"
            raise UsageError(f"{what.capitalize()} needs a worker, and this call runs in place only: {why}.")
        check_vetoes(conditions, [])
        device = resolve_device(conditions.device)
        limit = conditions.limits.seconds * ATTRIBUTION_SHARE
        task = JudgeTask(**vars(self.question), path="", vetoes=conditions.vetoes, seconds=limit)
        with _show_status(self.invocation.name), restore_after(self.invocation):
            report = judge_case(self.invocation.case(), CaseProgress(task), device, time.monotonic() + limit)
        return _make_report(report.to_json(), {"process": "in place", "why": why})


def _make_report(report: ReportJson, where: WhereJson) -> Report:
    return Report({**report, "where": where})


def _find_device(invocation: Invocation, target: str | None) -> str:
    """The device of the call's tensors; scalars and inputs on the CPU beside a GPU go along."""
    devices = {str(tensor.device) for tensor in invocation.tensors}
    others = sorted(devices - {"cpu", "meta"})
    if len(others) > 1:
        raise UsageError(f"The call's tensors are on {', '.join(others)}: judge a part that is on one device.")
    return others[0] if others and target is None else "cpu"


@contextlib.contextmanager
def _show_status(name: str) -> Iterator[None]:
    """Name the step in progress on a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(f"Judging {name} ..."):
        yield


def _reword(error: str, name: str) -> str:
    """A message of the command line, for a caller from Python."""
    text = error.replace("with --module", "(a submodule) by itself")
    text = re.sub(rf"\S*/{re.escape(_make_file_name(name))}{re.escape(SENT_SUFFIX)}", name, text)
    return re.sub(r"--([a-z][a-z-]*)", lambda match: f"{_SPELLED.get(match[1], match[1])}=", text).rstrip(".")


_SPELLED = {"max-memory": "memory"}


def _make_file_name(name: str) -> str:
    return re.sub(r"\W", "_", name) or "call"
