"""What worker processes do: judge a case, shrink a finding. Plain data in, plain data out."""

from __future__ import annotations

import contextlib
import functools
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fuzzcompile.capture import preserved_process
from fuzzcompile.case import load_case
from fuzzcompile.execution.device import Numerics, seed_everything
from fuzzcompile.execution.footprint import refuse_oversized
from fuzzcompile.execution.worker import current_device, restore_streams
from fuzzcompile.generation import GeneratedCase, Profile
from fuzzcompile.inductor.hooks import initialise_patterns
from fuzzcompile.inductor.settings import compile_in_process, drop_broken_kernels, preserved_config
from fuzzcompile.loading import defines_make, load
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.plants import run_plants
from fuzzcompile.probing import Target, probe
from fuzzcompile.reduction.recipe import NotReproducedError, shrink_recipe
from fuzzcompile.reduction.reproducer import build_reproducer, confirm_reproducer, line_count
from fuzzcompile.report import CoverageCount, Report
from fuzzcompile.triage import triage

# Pattern culprits are shrunk without code generation; behind the graph passes there is no other way.
_SCREENABLE = {"pre_grad", "joint_graph", "post_grad", "dynamo", "functionalization", "decomposition"}


# Candidates of these would take the worker that shrinks them down with them: the case is kept as it is.
_LOST = (Verdict.CRASH, Verdict.TIMEOUT)
# By-catch of one reduction that is worth judging: most of it is one bug in many sizes.
_MAX_OTHERS = 4


@dataclass(frozen=True)
class WorkerSetup:
    """How a worker prepares itself before its first task."""

    plants: tuple[str, ...] = ()
    threads: int = 1


@dataclass(frozen=True)
class JudgeTask:
    """One case file to judge.

    ``marker`` is a path that comes to exist once eager has finished, and holds the report as soon as
    there is a verdict: what is left of the case if its worker is lost later. ``known`` are the (signature, kind
    of verdict) pairs that need no proof any more. ``seconds`` is how long the whole may take before
    attribution begins no further compile. ``against`` is what compiled is compared with, ``call`` the call of a
    script that is the case (1 is the first), ``module`` the path of the submodule that is judged instead of the whole.
    A case that needs more than ``memory`` bytes of this process is refused before it is run.
    ``thorough`` spends further compiles on evidence, for which a campaign has no time.
    """

    path: str
    vetoes: tuple[str, ...] = ()
    marker: str | None = None
    known: tuple[tuple[str, str], ...] = ()
    seconds: float | None = None
    against: str = "eager"
    call: int | None = None
    module: str | None = None
    memory: int | None = None
    thorough: bool = False


@dataclass(frozen=True)
class Judged:
    """A report in its JSON form, and what the compile covered."""

    report: dict[str, Any]
    coverage: tuple[CoverageCount, ...] = ()


@dataclass(frozen=True)
class ShrinkTask:
    """A finding to be made small.

    ``choices`` is the recipe of a generated case; without one the case is kept as it is and only turned
    into a reproducer. ``seconds`` bounds the search, not the confirmation after it.
    """

    source: str
    report: dict[str, Any]
    choices: bytes | None
    profile: Profile
    seconds: float
    tests: int = 60
    vetoes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shrunk:
    """A small case, its own report, and a reproducer built from it.

    ``others`` are sources that failed too, but differently: findings of their own, to be judged.
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


def prepare(setup: WorkerSetup) -> None:
    """Set this process up: pinned numerics, threads, Inductor's patterns, plants, in that order."""
    device = torch.device(current_device())
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.set_num_threads(max(1, setup.threads))
    Numerics().apply()
    compile_in_process()
    drop_broken_kernels()
    initialise_patterns(device)
    run_plants([Path(path) for path in setup.plants])
    seed_everything(0)


def judge_file(task: JudgeTask) -> Judged:
    """Judge one case file on this worker's device."""
    deadline = None if task.seconds is None else time.monotonic() + task.seconds
    device = torch.device(current_device())
    with isolated():
        case = load(Path(task.path), device, call=task.call, module=task.module)
        restore_streams()  # the compiler writes to them
        if task.memory is not None:
            refuse_oversized(case, device, task.memory)
        report = triage(
            case,
            device,
            against=task.against,
            vetoes=task.vetoes,
            known=task.known,
            deadline=deadline,
            thorough=task.thorough,
            on_eager=lambda: _mark(task.marker, ""),
            on_verdict=lambda found: _mark(task.marker, json.dumps(found.to_json())),
        )
    return Judged(report.to_json(), report.coverage)


def left_behind(marker: Path) -> tuple[bool, dict[str, Any] | None]:
    """Of a case whose worker was lost: whether eager had finished, and the report if there was a verdict."""
    try:
        text = marker.read_text(encoding="utf-8")
    except FileNotFoundError:
        return False, None
    return True, json.loads(text) if text else None


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """What a case sets for the whole process is set back after it: the next case must not see it."""
    threads, dtype, grad = torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()
    deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        with preserved_config(), preserved_process():
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        torch.set_default_device(None)
        torch.set_grad_enabled(grad)
        for device in ("cpu", "cuda"):
            torch.set_autocast_enabled(device, False)
        torch.autograd.set_detect_anomaly(False)
        torch.compiler.set_stance("default")
        torch.use_deterministic_algorithms(deterministic)
        Numerics().apply()


def shrink(task: ShrinkTask) -> Shrunk:
    """Shrink a finding under its locked signature, judge the result and build its reproducer."""
    start = time.monotonic()
    deadline = start + task.seconds
    if not defines_make(task.source):
        # A script runs alone already, with checks of its own.
        lines = line_count(task.source)
        kept = "a script is kept as it is"
        return Shrunk(None, task.source, task.report, task.source, False, kept, lines, lines, 0, 0.0, True)
    search = _Search(task)
    report, best, tests, finished = task.report, None, 0, True
    if task.choices is not None and task.report["verdict"] not in _LOST:
        best, tests, finished = search.run(deadline)
        if best is not None:
            judged = search.judge(best.source)
            if judged.to_json()["signature"] == task.report["signature"]:
                report = judged.to_json()
            else:
                best = None
    source = best.source if best is not None else task.source
    reproducer = build_reproducer(source, report)
    confirmation = confirm_reproducer(reproducer)
    return Shrunk(
        best,
        source,
        report,
        reproducer,
        confirmation.confirmed,
        confirmation.output,
        line_count(task.source),
        line_count(reproducer),
        tests,
        time.monotonic() - start,
        finished,
        tuple(search.others.values())[:_MAX_OTHERS],
    )


class _Search:
    """The locked signature as a predicate over generated cases."""

    def __init__(self, task: ShrinkTask) -> None:
        self.task = task
        self.target = Target.of(task.report)
        self.device = torch.device(current_device())
        self.others: dict[str, GeneratedCase] = {}

    def run(self, deadline: float) -> tuple[GeneratedCase | None, int, bool]:
        """Shrink; screened where the culprit is a graph rewrite, with code generation otherwise."""
        assert self.task.choices is not None
        screen = self.target.stage in _SCREENABLE
        for mode in (True, False) if screen else (False,):
            try:
                result = shrink_recipe(
                    self.task.choices,
                    self.task.profile,
                    functools.partial(self._interesting, screen=mode),
                    max_tests=self.task.tests,
                    deadline=deadline,
                )
            except NotReproducedError:
                continue
            return result.best, result.tests, result.finished
        return None, 0, True

    def judge(self, source: str) -> Report:
        """The full report on a source."""
        with tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder:
            path = Path(folder) / "repro.py"
            path.write_text(source, encoding="utf-8")
            return triage(load_case(path), self.device, vetoes=self.task.vetoes)

    def _interesting(self, candidate: GeneratedCase, *, screen: bool) -> bool:
        with tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder:
            path = Path(folder) / "repro.py"
            path.write_text(candidate.source, encoding="utf-8")
            with isolated():
                probed = probe(load_case(path), self.device, vetoes=self.task.vetoes, screen=screen)
        if probed.is_bug and not self.target.matches(probed):
            self.others[candidate.sha256] = candidate
        return self.target.matches(probed)


def _mark(path: str | None, text: str) -> None:
    """Write the marker whole or not at all: its writer may be killed at any time."""
    if path is not None:
        draft = Path(f"{path}.part")
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
