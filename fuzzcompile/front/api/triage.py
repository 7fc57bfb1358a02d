"""``triage``: judge a call of a callable of the running program."""

from __future__ import annotations

import atexit
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from rich.console import Console
from rich.status import Status

from fuzzcompile.diagnosis.refusals import CannotJudge
from fuzzcompile.diagnosis.worker.file_triage import FileAnswer, triage_files
from fuzzcompile.diagnosis.worker.judge import CaseProgress, judge_case
from fuzzcompile.diagnosis.worker.local_pool import ATTRIBUTION_SHARE, LEAST_THREADS, open_pool
from fuzzcompile.diagnosis.worker.veto_check import check_vetoes
from fuzzcompile.front.api.report import Report
from fuzzcompile.front.known_bugs import Baseline
from fuzzcompile.model.conditions import Conditions, Contract, Limits, Question, choose_running_device
from fuzzcompile.model.errors import CaseError, EnvironmentUnfit, UsageError
from fuzzcompile.model.judge_task import JudgeTask
from fuzzcompile.programs.capture.invocation import Invocation, Unsendable, capture_invocation, restore_after, send
from fuzzcompile.programs.casefiles.case_file import SENT_SUFFIX
from fuzzcompile.run.case import Arguments, CompileSettings
from fuzzcompile.run.code_files import is_user_file
from fuzzcompile.run.device import resolve_device
from fuzzcompile.run.plants import check_plants
from fuzzcompile.run.pool.worker_pool import WorkerPool
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
        """
        files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        own = [file for file in files if isinstance(file, str) and is_user_file(file) and Path(file).exists()]
        modules = {file: Path(file).stat().st_mtime for file in own}
        key = (conditions, tuple(map(str, sys.path)))
        changed = any(self._modules.get(path, time) != time for path, time in modules.items())
        if self._pool is None or key != self._key or changed or self._process != os.getpid():
            self.close()
            self._pool = open_pool(conditions, 1, least_threads=LEAST_THREADS)
            self._key, self._process = key, os.getpid()
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


Backend = str | Callable[..., object]


class TriageOptions(TypedDict, total=False):
    """Settings to compile, run and judge a call; those left out come from the callable, or the call's surroundings."""

    backend: Backend | None  # arguments of ``torch.compile``
    mode: str | None
    options: Mapping[str, object] | None
    dynamic: bool | None
    fullgraph: bool | None
    grad: bool | None  # True compares gradients too, False runs without autograd
    device: str | None  # ``cpu``, ``cuda`` or ``cuda:N``; by default where the tensors are
    target: str | None  # a device that the compiler generates code for (:mod:`fuzzcompile.model.targets`)
    against: str  # what the compiled program is compared with; ``eager`` by default
    contract: Contract  # ``values``, or ``bitwise`` for the promises of equal bits too
    vetoes: tuple[str, ...]  # rewrites to refuse
    plants: tuple[Path, ...]  # files that a worker runs first, to plant a bug
    # seconds that the call may take in a worker. In place nothing enforces it, and only the proof of a culprit ends
    # early.
    timeout: float
    memory: float  # GiB that a worker may use
    in_place: bool  # judge in this process even where the call can be sent to a worker
    baseline: str | Path | None  # a file of known bugs; :attr:`Report.json` then has ``known``


def _apply_settings(asked: TriageOptions, invocation: Invocation) -> Invocation:
    names = ("backend", "mode", "options", "dynamic", "fullgraph")
    given: dict[str, Any] = {name: value for name, value in asked.items() if name in names and value is not None}
    settings = invocation.settings
    if given.keys() & {"backend", "mode", "options"}:  # a mode is options, and options are those of a backend
        settings = CompileSettings(dynamic=settings.dynamic, fullgraph=settings.fullgraph)
    changed, grad = replace(invocation, settings=replace(settings, **given)), asked.get("grad")
    if grad is None:
        return changed
    return replace(changed, ambient=replace(invocation.ambient, grad="enabled" if grad else "no_grad"), backward=grad)


def _make_conditions(asked: TriageOptions, invocation: Invocation) -> Conditions:
    plants, target = tuple(map(Path, asked.get("plants", ()))), asked.get("target")
    check_plants(plants)
    device = choose_running_device(asked.get("device") or _find_device(invocation, target), target)
    memory = int(asked["memory"] * 2**30) if "memory" in asked else Limits.memory
    limits = Limits(asked.get("timeout", Limits.seconds), memory)
    return Conditions(device, tuple(asked.get("vetoes", ())), plants, limits, target)


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

    settings: TriageOptions = field(default_factory=TriageOptions)

    def options(self, **changes: Unpack[TriageOptions]) -> Triage:
        """The same, with these settings (:class:`TriageOptions` describes each).

        Raises:
            UsageError: there is no such setting.
        """
        unknown = sorted(changes.keys() - TriageOptions.__annotations__.keys())
        if unknown:
            known = ", ".join(TriageOptions.__annotations__)
            raise UsageError(f"triage.options() has no {', '.join(unknown)}; it takes {known}.")
        return Triage({**self.settings, **changes})

    def __call__(self, model: object, /, *args: object, **kwargs: object) -> Report:
        """Judge ``model(*args, **kwargs)``: a bug or not, the culprit, a workaround.

        Raises:
            UsageError: ``model`` cannot be called, or a setting is wrong.
            EnvironmentUnfit: nothing can be said of the call, or the machine lacks what judging needs; the message says
                what to do.
        """
        return self.judge(capture_invocation(model, Arguments(args, kwargs)))

    def judge(self, invocation: Invocation) -> Report:
        """Judge a call that was captured before."""
        asked = self.settings
        call, path = _apply_settings(asked, invocation), asked.get("baseline")
        conditions = _make_conditions(asked, call)
        baseline = None if path is None else Baseline.read(Path(path))
        question = Question(asked.get("against", "eager"), contract=asked.get("contract", "values"), thorough=True)
        report = _CallTriage(call, question, conditions).judge(in_place=asked.get("in_place", False))
        if baseline is not None and report.is_bug:
            return Report({**report.json, "known": baseline.knows(report.json)})
        return report


triage = Triage()
"""Judge a call of a callable; see :class:`Triage`."""


@dataclass(frozen=True)
class _CallTriage:
    invocation: Invocation
    question: Question
    conditions: Conditions

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
        if report["verdict"] in ("invalid", "accepts_invalid"):
            with restore_after(self.invocation):
                run = run_eager(self.invocation.case(), resolve_device(self.conditions.device))
            if run.failure is None:  # the copy lacks what this process has, such as a patch or a registered operator
                return self._judge_in_place(f"eager raises in a worker and not here ({report['detail']})")
        return Report({**report, "where": {"process": "worker", "why": ""}})

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
            pool = session.pool(self.conditions)
            try:
                (answer,) = triage_files([path], self.conditions, self.question, pool=pool)
            except BaseException:  # Ctrl-C among others: the worker goes on with the call otherwise
                session.close()
                raise
            return answer

    def _judge_in_place(self, why: str) -> Report:
        conditions = self.conditions
        if conditions.target is not None or conditions.plants:
            what = "a target" if conditions.target is not None else "a plant"
            raise UsageError(f"{what.capitalize()} needs a worker, and this call runs in place only: {why}.")
        check_vetoes(conditions, [])
        device = resolve_device(conditions.device)
        limit = conditions.limits.seconds * ATTRIBUTION_SHARE
        task = JudgeTask(**vars(self.question), vetoes=conditions.vetoes, seconds=limit)
        with _show_status(self.invocation.name), restore_after(self.invocation):
            report = judge_case(self.invocation.case(), CaseProgress(task), device, time.monotonic() + limit)
        return Report({**report.to_json(), "where": {"process": "in place", "why": why}})


def _find_device(invocation: Invocation, target: str | None) -> str:
    """The device of the call's tensors; scalars and inputs on the CPU beside a GPU go along."""
    devices = {str(tensor.device) for tensor in invocation.tensors}
    others = sorted(devices - {"cpu", "meta"})
    if len(others) > 1:
        raise UsageError(f"The call's tensors are on {', '.join(others)}: judge a part that is on one device.")
    return others[0] if others and target is None else "cpu"


def _show_status(name: str) -> Status:
    """Name the call on a terminal; elsewhere, and in a notebook, nothing is shown."""
    return Console(stderr=True, force_jupyter=False).status(f"Judging {name} ...")


def _reword(error: str, name: str) -> str:
    """A message of the command line, for a caller from Python."""
    text = error.replace("with --module", "(a submodule) by itself")
    text = re.sub(rf"\S*/{re.escape(_make_file_name(name))}{re.escape(SENT_SUFFIX)}", name, text)
    return re.sub(r"--([a-z][a-z-]*)", lambda match: f"{_SPELLED.get(match[1], match[1])}=", text).rstrip(".")


_SPELLED = {"max-memory": "memory"}


def _make_file_name(name: str) -> str:
    return re.sub(r"\W", "_", name) or "call"
