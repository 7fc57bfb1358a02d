"""Trajectories and chaos: the distance of the compiled one from eager, and of eager from itself after one ulp."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean, median

import msgspec

from fuzzcompile.model.verdicts import Verdict

STEPS = "steps.jsonl"
TRAJECTORY = "trajectory.jsonl"
JOB = "job.json"
STOP = "stop"
WORK = ".work"  # folder of values that processes hand to each other; removed at the end


@dataclass(frozen=True)
class StepReport:
    """One sampled step.

    Errors are relative: largest distance from the float64 run, in units of the value's own RMS, the largest of each
    group (``outputs``, ``loss``, ``gradients``, ``gradient_norm``, ``buffers``, ``parameters``). All runs start from
    the compiled trajectory's own state, so that each error was made in this step.

    The verdict is ``suspicious`` if values look wrong and nothing confirms it.
    """

    step: int  # number of the step, counted from 1
    verdict: str | None  # the judge's; None if the step could not be judged
    unexplained: bool = False  # rounding does not explain the step
    detail: str = ""  # one sentence: what is wrong, or why there is no verdict
    made: dict[str, float] = field(default_factory=dict)  # error of the compiled step, by group
    eager: dict[str, float] = field(default_factory=dict)  # error of the eager step
    floor: dict[str, float] = field(default_factory=dict)  # largest distance of a perturbed step from the eager one
    worst: dict[str, object] | None = None  # the value that decides, with its finding and its errors
    loss: dict[str, float] = field(default_factory=dict)  # the loss in the compiled, eager and float64 step
    unseen: tuple[str, ...] = ()  # what was not looked at, and why
    cases: tuple[str, ...] = ()  # case files written for this step
    report: dict[str, object] | None = None  # what triage says of the step, if it was asked (``triage --json``)
    layer: str | None = None  # the module to which the culprit's site belongs
    seconds: float = 0.0  # wall time of the runs beside the script
    ranks: tuple[int, ...] = ()  # where several processes run the script: those whose values rounding does not explain


@dataclass
class JobState:
    """Counters of the script's process."""

    callables: list[str] = field(default_factory=list)
    calls: int = 0  # outermost ones
    steps: int = 0
    sampled: list[int] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)  # how many samples, by reason; ``lost`` alike
    lost: dict[str, int] = field(default_factory=dict)
    processes: list[int] = field(default_factory=list)  # those beside the script, each the leader of a session
    ended: bool = False
    error: str | None = None  # our own failure, after which nothing was watched any more


def append(path: Path, entry: object) -> None:
    """Append one JSON line, in one write: several processes append to the same file."""
    with path.open("ab", buffering=0) as file:
        file.write((json.dumps(entry) + "\n").encode())


def lines(path: Path) -> Iterator[dict[str, object]]:
    """The JSON lines of a file; a line that is still being written is left out."""
    if not path.exists():
        return
    for text in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if text.endswith("\n"):
            yield json.loads(text)


def write_json(path: Path, value: object) -> None:
    """Write a JSON file, whole or not at all."""
    draft = path.with_name(f".{path.name}.part")
    draft.write_text(json.dumps(value, allow_nan=False), encoding="utf-8")
    draft.replace(path)


def read_job(path: Path) -> JobState:
    """Read the counters of a process of the script."""
    try:
        return JobState(**json.loads(path.read_text(encoding="utf-8")))
    except OSError:  # it has not written anything yet
        return JobState()


def wrong_by_value(report: Mapping[str, object]) -> bool:
    """Return whether triage found what can make a step wrong: wrong values, not a wrong stride or an error."""
    return bool(report.get("is_bug")) and Verdict(str(report["verdict"])).kind == "values"


def calls_collectives(case: Path) -> bool:
    """Return whether a case file runs in several processes alone."""
    return "c10d" in case.read_text(encoding="utf-8")


# What a watch was asked for. Needs no torch: the script's process reads it before the script imports torch.

DEFAULT_EVERY = 100  # steps from one sample to the next


@dataclass(frozen=True)
class WatchSettings:
    """Settings of a watch."""

    folder: Path  # where results are written; it exists
    every: int = DEFAULT_EVERY  # sample the steps ``every``, ``2 * every``, …
    steps: int | None = None  # end the script after that many steps; None for as many as it makes
    # End the script at the first step that rounding does not explain: it waits for the verdict of each sampled step.
    stop_at_first: bool = False
    plants: tuple[Path, ...] = ()  # files to run once the script has imported torch
    own_random: bool = False  # leave the compiler its own random stream: steps that draw are then not judged
    trajectory: int = 64  # steps for which eager trajectories beside the script are followed
    seconds: float = 300.0  # time limit of each run beside the script, and of attributing one step
    state_bytes: int = 2**30  # largest state of a written case; values beyond it are replaced by random ones
    # The place of the script's process among those that run it; the first judges what all of them saw.
    rank: int = 0
    size: int = 1

    def at(self, rank: int) -> WatchSettings:
        """The same watch in another process of the script."""
        return replace(self, rank=rank)

    @property
    def work(self) -> Path:
        """The folder of what this rank's processes hand to each other."""
        return self.folder / WORK / f"rank{self.rank}" if self.rank else self.folder / WORK

    @property
    def job(self) -> Path:
        """The file of this rank's counters."""
        return (self.work if self.rank else self.folder) / JOB

    def refused(self, step: int) -> Path:
        """The file by which this rank says that it could not take a sample of a step, and why."""
        return self.work / f"{step}.refused"

    def meeting(self, what: str, step: int) -> Path:
        """The file over which the ranks' runs of one kind in a step form their group."""
        return self.folder / WORK / f"{step}_{what}.group"


# Losses that differ by less, relative to their size, have not parted visibly.
VISIBLE = 1e-4
# The compiled trajectory is moved by rounding in every operator of every step, the other once: by how much farther it
# may be from eager and still part for the same reason.
_ALLOWED = 30.0
_LEAST = 1e-9  # a relative difference of losses below float32's own rounding says nothing
_FEWEST = 6  # steps that a rate of growth needs


@dataclass
class Trajectories:
    """Differences between the losses of three trajectories from one state, relative to the loss of eager."""

    first: int  # the step from whose state all of them start; ``last`` is the last that all of them reached
    last: int
    compiled: float  # largest difference of compiled and eager over the last quarter of the steps
    perturbed: float  # the same of eager and eager from a state moved by one ulp
    compiled_growth: float | None  # the factor by which the difference grows per step; None over too few steps
    perturbed_growth: float | None
    ended: str = ""  # why a trajectory was not followed further

    def __post_init__(self) -> None:
        self.parted = self.compiled >= VISIBLE  # from eager, visibly
        # The perturbed one parts as well: the compiler is not needed to explain it.
        self.chaotic = self.parted and self.compiled <= _ALLOWED * self.perturbed

    @property
    def said(self) -> str:
        """The finding in a sentence."""
        rates = (self.compiled_growth, self.perturbed_growth)
        compiled, perturbed = ("" if rate is None else f" (times {rate:.2f} per step)" for rate in rates)
        numbers = (
            f"from the state of step {self.first} to step {self.last}, the loss of the compiled trajectory parts from "
            f"that of eager by {self.compiled:.1e} of its size{compiled}, that of eager from a state moved by one ulp "
            f"by {self.perturbed:.1e}{perturbed}."
        )
        if self.chaotic:
            return f"Chaos alone: {numbers} No compiler is needed for that."
        if self.parted:
            return f"More than chaos: {numbers} Sample more steps (a smaller --every) to find where that is made."
        return f"No visible divergence: {numbers}"

    def to_json(self) -> dict[str, object]:
        """As a JSON object; an infinite distance is None."""
        infinite = {name: None for name in ("compiled", "perturbed") if math.isinf(getattr(self, name))}
        said = {"chaotic": self.chaotic, "parted": self.parted, "said": self.said, "ended": self.ended}
        return {**asdict(self), **infinite, **said}


def losses(folder: Path) -> tuple[dict[str, dict[int, float]], str]:
    """The loss by step of each trajectory in a watch's folder, the mean of all ranks, and why one ended early."""
    seen: dict[str, dict[int, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
    ended = ""
    for entry in lines(folder / TRAJECTORY):
        if "loss" in entry:
            held = int(str(entry.get("rank", 0))), float(str(entry["loss"]))
            seen[str(entry["run"])][int(str(entry["step"]))].append(held)
        else:
            ended = ended or str(entry["ended"])  # what follows is that of ranks that lost this one
    ranks = {rank for steps in seen.values() for values in steps.values() for rank, _ in values}
    means: dict[str, dict[int, float]] = {}
    for run, steps in seen.items():
        whole = {step: values for step, values in steps.items() if {rank for rank, _ in values} == ranks}
        means[run] = {step: fmean(loss for _, loss in values) for step, values in whole.items()}
    return means, ended


def compared(losses: Mapping[str, Mapping[int, float]], ended: str = "") -> Trajectories | None:
    """Compare the losses; None if the trajectories have too few steps in common."""
    runs = [losses.get(run, {}) for run in ("compiled", "eager", "perturbed")]
    steps = sorted(set.intersection(*(set(run) for run in runs)))
    if len(steps) < 2:
        return None

    def relative(value: float, eager: float) -> float:
        if not (math.isfinite(value) and math.isfinite(eager)):
            return 0.0 if math.isfinite(value) == math.isfinite(eager) else math.inf
        return abs(value - eager) / max(abs(eager), 1e-30)

    compiled, perturbed = ([relative(run[step], runs[1][step]) for step in steps] for run in (runs[0], runs[2]))
    late = max(1, len(steps) // 4)
    apart, moved = max(compiled[-late:]), max(perturbed[-late:])
    return Trajectories(steps[0], steps[-1], apart, moved, _growth(steps, compiled), _growth(steps, perturbed), ended)


def _growth(steps: Sequence[int], apart: Sequence[float]) -> float | None:
    """The factor per step: the median slope between pairs of steps (Theil 1950), in logarithms, up to saturation."""
    usable = [(step, math.log(gap)) for step, gap in zip(steps, apart, strict=True) if _LEAST < gap < 0.1]
    if len(usable) < _FEWEST:
        return None
    half = len(usable) // 2
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in zip(usable[:half], usable[-half:], strict=True)]
    return math.exp(median(slopes))


@dataclass
class Summary:
    """The result of a watch."""

    script: str  # the script, as it was named
    folder: Path  # where its files are
    job: JobState  # what the script's process counted
    steps: tuple[StepReport, ...]  # the sampled steps in their order
    trajectories: Trajectories | None = None  # None if the script trains nothing, or for too few steps
    script_status: int | None = None  # the script's own; None if it was ended by this program, or did not end
    nproc: int = 1  # processes that the script runs in
    script_rank: int | None = None  # the rank of that status, where the script runs in several processes and one failed
    interrupted: bool = False  # the user ended it
    report: Mapping[str, object] | None = None  # what triage says of the first unexplained step
    case: Path | None = None  # the case file that it is about
    alone: bool | None = None  # whether a fresh process finds the same bug in the case file; None if it was not tried

    def __post_init__(self) -> None:
        self.unexplained = [step for step in self.steps if step.unexplained]
        self.judged = [step for step in self.steps if step.verdict is not None]

    @property
    def exit_status(self) -> int:
        """1 for an unexplained step, 3 if the script failed by itself or no step could be judged, else 0."""
        if self.unexplained:
            return 1
        return 3 if self.script_status or self.job.error is not None or not self.judged else 0

    def to_json(self) -> dict[str, object]:
        """As a JSON object, without the steps, which have lines of their own."""
        return {
            "summary": True,
            "script": self.script,
            "folder": str(self.folder),
            **{key: value for key, value in asdict(self.job).items() if key not in ("processes", "ended")},
            "judged": len(self.judged),
            "unjudged": dict(Counter(step.detail for step in self.steps if step.verdict is None)),
            "unexplained": [step.step for step in self.unexplained],
            "trajectories": None if self.trajectories is None else self.trajectories.to_json(),
            "script_status": self.script_status,
            "nproc": self.nproc,
            "script_rank": self.script_rank,
            "interrupted": self.interrupted,
            "case": None if self.case is None else str(self.case),
            "alone": self.alone,
            "report": self.report,
            "exit_status": self.exit_status,
        }


def steps_in(folder: Path) -> list[StepReport]:
    """The sampled steps of a watch so far, in the order of the steps."""
    return sorted(msgspec.convert(list(lines(folder / STEPS)), list[StepReport]), key=lambda report: report.step)


def summarise(script: str, folder: Path, *, script_status: int | None, interrupted: bool) -> Summary:
    """Summarise the files of a watch."""
    job, steps, trajectories, report, case = (
        read_job(folder / JOB),
        steps_in(folder),
        compared(*losses(folder)),
        None,
        None,
    )
    for step in steps:
        if step.unexplained and step.report is not None:
            report = step.report
            case = next((Path(path) for path in step.cases if Path(path).stem == report.get("case")), None)
            break
    found = Summary(script, folder, job, tuple(steps), trajectories, script_status)
    return replace(found, interrupted=interrupted, report=report, case=case)
