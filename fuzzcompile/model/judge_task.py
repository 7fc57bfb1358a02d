"""Tasks for a worker that judges, and their results. Plain data: needs no torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fuzzcompile.model.conditions import Question
from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.custom import LoadedCustom
from fuzzcompile.model.focus_plan import FocusObservation, FocusWatch
from fuzzcompile.model.verdicts import Comparison, CoverageCount


@dataclass(frozen=True)
class NamedFunction:
    """The function ``module:name``, imported where and when it is called."""

    name: str

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Call the function."""
        module, _, name = self.name.partition(":")
        return getattr(importlib.import_module(module), name)(*args, **kwargs)


@dataclass(frozen=True, kw_only=True)
class JudgeTask(Question):
    """One case to judge, and what is asked about it."""

    path: str = ""  # the case file; with ``source``, only its name
    source: str | None = None  # the case itself, for a worker that may run on another machine
    vetoes: tuple[str, ...] = ()  # rewrites to refuse
    known: tuple[tuple[str, str], ...] = ()  # (signature, kind of verdict) pairs that need no further proof
    seconds: float | None = None  # time after which attribution starts no further compile
    memory: int | None = None  # bytes of this process beyond which a case is refused before it runs
    screen: bool = False  # judge without generated code, and in full only if that shows a bug
    describe: bool = False  # also describe the machine, for a page
    watch: FocusWatch = field(default_factory=FocusWatch)  # what to look at for a campaign's focus


@dataclass(frozen=True)
class JudgeResult:
    """A report as JSON, what the compile covered, the machine if asked for, and what a `FocusWatch` saw."""

    report: ReportJson
    coverage: tuple[CoverageCount, ...] = ()
    screened: bool = False
    machine: Mapping[str, object] | None = None
    seen: FocusObservation = field(default_factory=FocusObservation)


@dataclass(frozen=True)
class LossTrial:
    """One compile of a case that takes its process down, in a worker of its own: what was changed, and the outcome.

    ``labels`` are the rewrites that could be refused, with the fields of a label of the compiler's; ``operators`` those
    of ATen's that could compute a node in place of a lowering, and ``code_operators`` those of generated loops.
    """

    change: str
    verdict: str
    comparisons: tuple[Comparison, ...] = ()
    failure: tuple[str, str] | None = None  # type and message of an error that the program raised
    labels: tuple[tuple[str, str | None, str, str | None, int | None], ...] = ()
    operators: tuple[str, ...] = ()
    code_operators: tuple[str, ...] = ()


@dataclass(frozen=True)
class LossTask:
    """The search for the part of the compiler that takes the process of a case down, as far as it has come.

    A worker makes the first trial that ``trials`` lacks; once ``is_over``, it makes none and says what they prove.
    """

    judged: JudgeTask
    report: ReportJson  # on the loss, as it is without this search
    trials: tuple[LossTrial, ...] = ()
    is_over: bool = False


@dataclass(frozen=True)
class WorkerDescription:
    """Surroundings of a worker."""

    environment: Mapping[str, object]  # what results depend on
    device: str  # the type of its device
    lacks: tuple[str, ...] = ()  # settings of the generator that its torch does not have
    # the switches under which floating-point results are made
    numerics: Mapping[str, object] = field(default_factory=dict)
    custom: tuple[LoadedCustom, ...] = ()  # the user's own passes and backend, as the worker loaded them


JUDGE: Callable[[JudgeTask], JudgeResult] = NamedFunction("fuzzcompile.diagnosis.worker.judge:judge_file")
"""Judge one case file on the worker's device."""

TRY_LOSS: Callable[[LossTask], LossTrial | ReportJson] = NamedFunction(
    "fuzzcompile.diagnosis.worker.loss_trials:try_next"
)
"""The next trial of a case that takes its process down; once no trial is left to make, the report with the culprit."""

DESCRIBE: Callable[[str | None], WorkerDescription] = NamedFunction(
    "fuzzcompile.fuzz.worker_description:describe_worker"
)
"""The description of a worker, given the target."""
