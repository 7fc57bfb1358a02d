"""``triage``: judge a call of a callable of the running program."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict, Unpack, cast

from rich.console import Console

from fuzzcompile.api.report import Report
from fuzzcompile.api.session import Session, session
from fuzzcompile.capture.invocation import Invocation, invocation_of, left_as_found
from fuzzcompile.capture.sending import Unsendable, send
from fuzzcompile.case import Arguments, CompileSettings
from fuzzcompile.casefiles import SENT_SUFFIX
from fuzzcompile.commands.triage import Answer, triage_files
from fuzzcompile.contract import ReportJson, WhereJson
from fuzzcompile.errors import CaseError, EnvironmentUnfit, UsageError
from fuzzcompile.execution.device import resolve
from fuzzcompile.execution.runs import run_eager
from fuzzcompile.judging.refusals import CannotJudge
from fuzzcompile.plants import check_plants
from fuzzcompile.reporting.baseline import Baseline
from fuzzcompile.worker.conditions import Conditions, Contract, Limits, Question, running_device
from fuzzcompile.worker.judge import judge_case
from fuzzcompile.worker.pool import ATTRIBUTION_SHARE
from fuzzcompile.worker.progress import Progress
from fuzzcompile.worker.tasks import JudgeTask
from fuzzcompile.worker.vetoes import check_vetoes

Backend = str | Callable[..., object]


class Options(TypedDict, total=False):
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
class Asked:
    """Settings to compile, run and judge a call; None leaves one to the callable, or to the call's surroundings.

    Attributes:
        backend, mode, options, dynamic, fullgraph: arguments of ``torch.compile``.
        grad: True compares gradients too, False runs without autograd.
        device: ``cpu``, ``cuda`` or ``cuda:N``; by default where the tensors are.
        target: a device that the compiler generates code for (:mod:`fuzzcompile.targets`).
        against: what the compiled program is compared with.
        contract: ``values``, or ``bitwise`` for the promises of equal bits too.
        vetoes: rewrites to refuse.
        plants: files that a worker runs first, to plant a bug.
        timeout: seconds that the call may take in a worker. In place nothing enforces it, and only the proof of a
            culprit ends early.
        memory: GiB that a worker may use.
        in_place: judge in this process even where the call can be sent to a worker.
        baseline: a file of known bugs; :attr:`Report.json` then has ``known``.
    """

    backend: Backend | None = None
    mode: str | None = None
    options: Mapping[str, object] | None = None
    dynamic: bool | None = None
    fullgraph: bool | None = None
    grad: bool | None = None
    device: str | None = None
    target: str | None = None
    against: str = "eager"
    contract: Contract = "values"
    vetoes: tuple[str, ...] = ()
    plants: tuple[Path, ...] = ()
    timeout: float = Limits.seconds
    memory: float = Limits.memory / 2**30
    in_place: bool = False
    baseline: str | Path | None = None

    @property
    def question(self) -> Question:
        """The question that triage answers about the call."""
        return Question(against=self.against, contract=self.contract, thorough=True)

    def conditions(self, invocation: Invocation) -> Conditions:
        """Return the conditions under which the call runs.

        Raises:
            UsageError: there is no such device or target, or the tensors are on several devices.
        """
        check_plants([Path(plant) for plant in self.plants])
        device = running_device(self.device or _device_of(invocation, self.target), self.target)
        limits = Limits(self.timeout, int(self.memory * 2**30))
        return Conditions(device, tuple(self.vetoes), tuple(map(Path, self.plants)), limits, self.target)

    def of(self, invocation: Invocation) -> Invocation:
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

    asked: Asked = Asked()

    def options(self, **changes: Unpack[Options]) -> Triage:
        """The same, with these settings (:class:`Asked` describes each).

        Raises:
            UsageError: there is no such setting.
        """
        unknown = sorted(changes.keys() - Options.__annotations__.keys())
        if unknown:
            known = ", ".join(Options.__annotations__)
            raise UsageError(f"triage.options() has no {', '.join(unknown)}; it takes {known}.")
        return Triage(replace(self.asked, **changes))

    def __call__(self, model: object, /, *args: object, **kwargs: object) -> Report:
        """Judge ``model(*args, **kwargs)``.

        Returns:
            The report: a bug or not, the culprit, a workaround.

        Raises:
            UsageError: ``model`` cannot be called, or a setting is wrong.
            EnvironmentUnfit: nothing can be said of the call, or the machine lacks what judging needs; the message says
                what to do.
        """
        return self.judge(invocation_of(model, Arguments(args, kwargs)))

    def judge(self, invocation: Invocation) -> Report:
        """Judge a call that was taken down before (:func:`~fuzzcompile.capture.invocation.invocation_of`)."""
        asked = self.asked.of(invocation)
        conditions = self.asked.conditions(asked)
        baseline = None if self.asked.baseline is None else Baseline.read(Path(self.asked.baseline))
        report = _Judging(asked, self.asked.question, conditions, session).report(in_place=self.asked.in_place)
        if baseline is not None and report.is_bug:
            return Report({**report.json, "known": baseline.knows(report.json)})
        return report


triage = Triage()
"""Judge a call of a callable; see :class:`Triage`."""


@dataclass(frozen=True)
class _Judging:
    """One call on its way to a verdict."""

    invocation: Invocation
    question: Question
    conditions: Conditions
    session: Session

    def report(self, *, in_place: bool) -> Report:
        """The report of a worker, or of this process where a worker cannot run the call as it runs here."""
        if in_place:
            return self._in_place("asked for with in_place=True")
        try:
            with _waiting(self.invocation.name):
                answer = self._sent()
        except Unsendable as error:
            return self._in_place(f"the call cannot be sent to a worker ({error})")
        report, said = answer.report, _plain(answer.error or "", self.invocation.name)
        if report is None and answer.status == CaseError.exit_status:
            return self._in_place(f"a worker cannot run the call ({said})")
        if report is None:
            raise CannotJudge(f"{said}.")
        if report["verdict"] in ("invalid", "accepts_invalid") and not self._raises_here():
            # The copy lacks what this process has, such as a patch or a registered operator.
            return self._in_place(f"eager raises in a worker and not here ({report['detail']})")
        return _placed(report, {"process": "worker", "why": ""})

    def _sent(self) -> Answer:
        with tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder:
            path = Path(folder, f"{_file_name(self.invocation.name)}{SENT_SUFFIX}")
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
        with left_as_found(self.invocation):
            return run_eager(self.invocation.case(), resolve(self.conditions.device)).failure is not None

    def _in_place(self, why: str) -> Report:
        conditions = self.conditions
        if conditions.target is not None or conditions.plants:
            what = "a target" if conditions.target is not None else "a plant"
            raise UsageError(f"{what.capitalize()} needs a worker, and this call runs in place only: {why}.")
        check_vetoes(conditions, [])
        device = resolve(conditions.device)
        limit = conditions.limits.seconds * ATTRIBUTION_SHARE
        task = JudgeTask(**vars(self.question), path="", vetoes=conditions.vetoes, seconds=limit)
        with _waiting(self.invocation.name), left_as_found(self.invocation):
            report = judge_case(self.invocation.case(), Progress(task), device, time.monotonic() + limit)
        return _placed(cast(ReportJson, report.to_json()), {"process": "in place", "why": why})


def _placed(report: ReportJson, where: WhereJson) -> Report:
    return Report({**report, "where": where})


def _device_of(invocation: Invocation, target: str | None) -> str:
    """The device of the call's tensors; scalars and inputs on the CPU beside a GPU go along."""
    devices = {str(tensor.device) for tensor in invocation.tensors}
    others = sorted(devices - {"cpu", "meta"})
    if len(others) > 1:
        raise UsageError(f"The call's tensors are on {', '.join(others)}: judge a part that is on one device.")
    return others[0] if others and target is None else "cpu"


@contextlib.contextmanager
def _waiting(name: str) -> Iterator[None]:
    """Name the step in progress on a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(f"Judging {name} ..."):
        yield


def _plain(error: str, name: str) -> str:
    """A message of the command line, for a caller from Python."""
    text = error.replace("with --module", "(a submodule) by itself")
    text = re.sub(rf"\S*/{re.escape(_file_name(name))}{re.escape(SENT_SUFFIX)}", name, text)
    return re.sub(r"--([a-z][a-z-]*)", lambda match: f"{_SPELLED.get(match[1], match[1])}=", text).rstrip(".")


_SPELLED = {"max-memory": "memory"}


def _file_name(name: str) -> str:
    return re.sub(r"\W", "_", name) or "call"
