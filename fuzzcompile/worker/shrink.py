"""What worker processes do to make a finding small: capture its graphs, look at candidates, judge what is left."""

from __future__ import annotations

import contextlib
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fuzzcompile.capture.loading import defines_make, load
from fuzzcompile.case import Case
from fuzzcompile.compiler.graphs import CapturedGraph, capture_functional, capture_graphs
from fuzzcompile.errors import FuzzcompileError
from fuzzcompile.execution.worker import current_device
from fuzzcompile.generation import GeneratedCase, Profile
from fuzzcompile.judging.probe import Keep, Target, probe
from fuzzcompile.judging.triage import triage
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.reduction.jobs import Capture, Job, Outcome
from fuzzcompile.reduction.minimiser import minimise
from fuzzcompile.reduction.program import Program
from fuzzcompile.reduction.reproducer import line_count
from fuzzcompile.reduction.schedule import without_gradients
from fuzzcompile.reduction.search import Budget, Probed
from fuzzcompile.reduction.tracing import Untranslatable, program_of
from fuzzcompile.reduction.writing import Written
from fuzzcompile.worker.isolation import isolated

# Candidates of these would take the worker that shrinks them down with them.
_LOST = (Verdict.CRASH, Verdict.TIMEOUT)
_MOST_GRAPHS = 6
_MAX_OTHERS = 4
# Words of sources whose graphs may be compiled for any size.
_RESIZED = re.compile(r"\b(DYNAMIC|CALLS|dynamic|mark_dynamic)\b")


@dataclass(frozen=True)
class ProbeTask:
    """A candidate to look at; ``target`` is what it is compared with."""

    candidate: Written
    target: Target
    screen: bool
    thorough: bool = False
    vetoes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ShrinkTask:
    """A finding to be made small.

    ``choices`` is the recipe of a generated case. ``seconds`` bounds the search, not the confirmation after it,
    ``tests`` its compiles and screens.
    """

    source: str
    report: dict[str, Any]
    choices: bytes | None
    profile: Profile
    seconds: float
    tests: int = 100
    vetoes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shrunk:
    """A small case, its own report, and a reproducer built from it.

    ``others`` are cases that failed too, but differently: findings of their own, to be judged; ``other_sources`` are
    the texts of all that did, drawn or not. ``how`` says what
    made it small: "recipe", "graph", "text", or "as found".
    """

    case: GeneratedCase | None
    source: str
    report: dict[str, Any]
    reproducer: str
    confirmed: bool
    confirmation: str
    lines_before: int
    lines_after: int
    tests: int
    seconds: float
    finished: bool
    others: tuple[GeneratedCase, ...] = field(default_factory=tuple)
    how: str = "as found"
    neighbour: str | None = None
    changed: bool = True
    note: str = ""
    operators_before: int | None = None
    operators: int | None = None
    other_sources: tuple[str, ...] = ()
    interrupted: bool = False

    @classmethod
    def of(cls, outcome: Outcome, source: str) -> Shrunk:
        """What a reduction of ``source`` came to."""
        return cls(
            outcome.case,
            outcome.source,
            dict(outcome.report),
            outcome.reproducer,
            outcome.confirmed,
            outcome.confirmation,
            line_count(source),
            line_count(outcome.reproducer),
            outcome.tally.tests,
            outcome.seconds,
            outcome.finished,
            outcome.others[:_MAX_OTHERS],
            outcome.how,
            outcome.neighbour,
            outcome.changed,
            outcome.note,
            outcome.operators_before,
            outcome.operators,
            tuple(outcome.tally.others.values()),
            outcome.interrupted,
        )


def shrink(task: ShrinkTask) -> Shrunk:
    """Make a finding small in this process, under its locked signature."""
    tools = LocalTools(Target.of(task.report), task.vetoes)
    budget = Budget(task.tests, time.monotonic() + task.seconds)
    if task.report["verdict"] in _LOST:
        budget = Budget(0)
    job = job_of(task.source, task.report, task.choices, task.profile)
    outcome = minimise(job, tools, budget)
    return Shrunk.of(outcome, task.source)


def job_of(
    source: str, report: Mapping[str, Any], choices: bytes | None, profile: Profile, keeps: Keep = "culprit"
) -> Job:
    """What is to be done to a source with that report."""
    return Job(
        source,
        report,
        choices=choices,
        profile=profile,
        is_case=defines_make(source),
        screens=Target.of(report).screens,
        resizes=_RESIZED.search(source) is not None,
        keeps=keeps,
    )


@dataclass
class LocalTools:
    """Candidates are compiled in this process: a crash would take it down."""

    target: Target
    vetoes: tuple[str, ...] = ()
    thorough: bool = False

    def probe(self, candidate: Written, *, screen: bool) -> Probed:
        """A quick look at a candidate."""
        return probe_candidate(ProbeTask(candidate, self.target, screen, self.thorough, self.vetoes))

    def programs(self, source: str, capture: Capture) -> Sequence[Program]:
        """The captured graphs of a source."""
        return capture_programs(source, capture)

    def judge(self, source: str) -> Mapping[str, Any]:
        """The full report on a source."""
        return judge_source(source, self.vetoes)

    def become_thorough(self) -> None:
        """From now on, look as triage does."""
        self.thorough = True


def probe_candidate(task: ProbeTask) -> Probed:
    """Look at a candidate in this process; one that cannot be run at all is no match."""
    device = torch.device(current_device())
    with written_out(task.candidate) as path, isolated():
        try:
            seen = probe(
                load(path, device),
                device,
                vetoes=task.vetoes,
                screen=task.screen,
                thorough=task.thorough,
                target=task.target,
            )
        except MemoryError:
            raise
        except Exception as error:  # a text from which statements were taken may fail anywhere
            return Probed(False, False, type(error).__name__, 0, 0)
    return Probed(task.target.matches(seen), seen.is_bug, str(seen.verdict), seen.compiles, seen.screens)


def judge_source(source: str, vetoes: tuple[str, ...] = ()) -> dict[str, Any]:
    """The full report on a source."""
    device = torch.device(current_device())
    with written_out(Written(source, {})) as path, isolated():
        return triage(load(path, device), device, vetoes=vetoes).to_json()


def capture_programs(source: str, capture: Capture = "static") -> list[Program]:
    """The graphs of a case as programs, the largest first; those that cannot be written down are left out."""
    device = torch.device(current_device())
    with written_out(Written(source, {})) as path, isolated():
        try:
            case = load(path, device)
            if capture == "aten":
                captured = capture_functional(case, device)
            else:
                captured = capture_graphs(case, device, dynamic=capture == "dynamic")
        except FuzzcompileError:
            return []
        if capture == "dynamic":  # as sizes are that changed between two calls
            case = replace(case, settings=replace(case.settings, dynamic=True))
        programs = [program for graph in captured if (program := _program(graph, case)) is not None]
    return sorted(programs, key=lambda program: -len(program.statements))[:_MOST_GRAPHS]


def _program(graph: CapturedGraph, case: Case) -> Program | None:
    try:
        program = program_of(graph.module, graph.inputs, graph.parameters, _settings(case, graph))
    except Untranslatable:
        return None
    if not program.output_refs():
        return None
    freezes = bool(dict(case.settings.options).get("freezing")) or bool(case.settings.inductor.get("freezing"))
    program = replace(program, as_module=freezes and any(one.parameter for one in program.inputs))
    return program if graph.grad else without_gradients(program)


def _settings(case: Case, graph: CapturedGraph) -> dict[str, Any]:
    """The module-level names of a case file that ask for what the case asks for."""
    settings = case.settings
    asked: dict[str, Any] = {}
    if case.backward:
        asked["BACKWARD"] = True
    elif graph.grad or case.grad == "inference_mode":
        asked["GRAD"] = "enabled" if graph.grad else case.grad
    config = {name: dict(entries) for name, entries in settings.config_patches.items()}
    asked |= {"OPTIONS": dict(settings.options)} if settings.options else {}
    asked |= {"CONFIG": config} if config else {}
    asked |= {"MODE": settings.mode} if settings.mode else {}
    asked |= {"DYNAMIC": settings.dynamic} if settings.dynamic is not None else {}
    return asked | ({"FULLGRAPH": True} if settings.fullgraph else {})


@contextlib.contextmanager
def written_out(candidate: Written) -> Iterator[Path]:
    """The candidate as a file, with its recorded values beside it."""
    with tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder:
        path = Path(folder) / "repro.py"
        path.write_text(candidate.source, encoding="utf-8")
        if candidate.values:
            torch.save(dict(candidate.values), path.with_name("values.pt"))
        yield path
