"""What a pool hands to a worker that judges, and what comes back. Plain data: needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fuzzcompile.contract import ReportJson
from fuzzcompile.custom import Custom, Loaded
from fuzzcompile.execution.named import Named
from fuzzcompile.focusing.plan import FocusQuestion, Plan, Seen, Watch
from fuzzcompile.judging.counts import CoverageCount
from fuzzcompile.worker.conditions import Question

if TYPE_CHECKING:
    from fuzzcompile.generation.patterned import PatternProgram
    from fuzzcompile.opinfo import Cell, Operator, Written
    from fuzzcompile.variations import Survey


@dataclass(frozen=True)
class WorkerSetup:
    """What `prepare` needs.

    Attributes:
        plants: files to run.
        threads: torch's intra-op threads.
        target: the device that the compiler is told, by its name; None for the one that runs.
        custom: the user's own passes and backend.
    """

    plants: tuple[str, ...] = ()
    threads: int = 1
    target: str | None = None
    custom: Custom = field(default_factory=Custom)


@dataclass(frozen=True, kw_only=True)
class JudgeTask(Question):
    """One case to judge, and what is asked about it.

    Attributes:
        path: the case file; with ``source``, only its name.
        source: the case itself, for a worker that may run on another machine.
        vetoes: rewrites to refuse.
        known: (signature, kind of verdict) pairs that need no further proof.
        seconds: time after which attribution starts no further compile.
        memory: bytes of this process beyond which a case is refused before it runs.
        screen: judge without generated code, and in full only if that shows a bug.
        describe: also describe the machine, for a page.
        watch: what to look at for a campaign's focus.
    """

    path: str
    source: str | None = None
    vetoes: tuple[str, ...] = ()
    known: tuple[tuple[str, str], ...] = ()
    seconds: float | None = None
    memory: int | None = None
    screen: bool = False
    describe: bool = False
    watch: Watch = field(default_factory=Watch)


@dataclass(frozen=True)
class PatternTask:
    """Rules of the compiler, as (stage, name), to make programs for, and the seconds that each may take."""

    rules: tuple[tuple[str, str], ...]
    seconds: float = 12.0


@dataclass(frozen=True)
class Judged:
    """A report in its JSON form, what the compile covered, and the machine if the task asked for it.

    ``seen`` is what the judged compile showed of the task's `Watch`.
    """

    report: ReportJson
    coverage: tuple[CoverageCount, ...] = ()
    screened: bool = False
    machine: Mapping[str, object] | None = None
    seen: Seen = field(default_factory=Seen)


@dataclass(frozen=True)
class Surroundings:
    """Where a worker runs.

    Attributes:
        environment: what results depend on.
        device: the type of its device.
        lacks: settings of the generator that its torch does not have.
        numerics: the switches under which floating-point results are made.
        custom: the user's own passes and backend, as the worker loaded them.
    """

    environment: Mapping[str, object]
    device: str
    lacks: tuple[str, ...] = ()
    numerics: Mapping[str, object] = field(default_factory=dict)
    custom: tuple[Loaded, ...] = ()


JUDGE: Callable[[JudgeTask], Judged] = Named("fuzzcompile.worker.judge:judge_file")
"""Judge one case file on the worker's device."""

DESCRIBE: Callable[[str | None], Surroundings] = Named("fuzzcompile.worker.surroundings:surroundings")
"""What a worker tells of itself, given the target."""

LIST_OPERATORS: Callable[[tuple[str, ...]], tuple[Operator, ...]] = Named("fuzzcompile.opinfo.tables:operators")
"""The operators of torch's own tables: those named, or all."""

WRITE_CELLS: Callable[[Sequence[Cell]], list[Written]] = Named("fuzzcompile.opinfo.cases:write_cells")
"""The case files of cells of a sweep over these operators."""

SURVEY: Callable[[str], Survey] = Named("fuzzcompile.worker.surveying:survey_file")
"""What can be varied of a case file, found on the worker's device."""

PATTERNS: Callable[[PatternTask], tuple[PatternProgram, ...]] = Named("fuzzcompile.worker.patterning:programs_for")
"""Programs that make rules of the compiler fire, made on the worker's device."""

FOCUS: Callable[[FocusQuestion], Plan] = Named("fuzzcompile.worker.focusing:plan_of")
"""What a focus aims at in the installed torch, on the worker's device."""
