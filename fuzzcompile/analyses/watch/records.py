"""The files in which a watch keeps its results, and what stands in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

STEPS = "steps.jsonl"
TRAJECTORY = "trajectory.jsonl"
JOB = "job.json"
STOP = "stop"
WORK = ".work"
"""Folder of values that processes hand to each other; removed at the end."""


@dataclass(frozen=True)
class StepReport:
    """One sampled step.

    Errors are relative: largest distance from the float64 run, in units of the value's own RMS, the largest of each
    group (``outputs``, ``loss``, ``gradients``, ``gradient_norm``, ``buffers``, ``parameters``). All runs start from
    the compiled trajectory's own state, so that each error was made in this step.

    Attributes:
        step: number of the step, counted from 1.
        verdict: the judge's verdict; None if the step could not be judged, ``suspicious`` if its values look wrong and
            nothing confirms it.
        unexplained: rounding does not explain the step.
        detail: one sentence: what is wrong, or why there is no verdict.
        made: error of the compiled step, by group.
        eager: error of the eager step, by group.
        floor: largest distance of a perturbed eager step from the eager step, by group.
        worst: the value that decides, with its finding and its errors.
        loss: the loss in the compiled, eager and float64 step.
        unseen: what was not looked at, and why.
        cases: case files written for this step.
        report: what triage says of the step, if it was asked (``triage --json``).
        layer: the module to which the culprit's site belongs.
        seconds: wall time of the runs beside the script.
    """

    step: int
    verdict: str | None
    unexplained: bool = False
    detail: str = ""
    made: dict[str, float] = field(default_factory=dict)
    eager: dict[str, float] = field(default_factory=dict)
    floor: dict[str, float] = field(default_factory=dict)
    worst: dict[str, object] | None = None
    loss: dict[str, float] = field(default_factory=dict)
    unseen: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    report: dict[str, object] | None = None
    layer: str | None = None
    seconds: float = 0.0

    def to_json(self) -> dict[str, object]:
        """The report as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, object]) -> StepReport:
        """The report that :meth:`to_json` made."""
        known = {name: fields[name] for name in cls.__dataclass_fields__ if name in fields}
        return cls(**{**known, "unseen": tuple(known.get("unseen", ())), "cases": tuple(known.get("cases", ()))})  # type: ignore[arg-type]


@dataclass
class JobState:
    """What the script's process counts.

    Attributes:
        callables: the compiled callables that it made.
        calls: outermost calls of compiled callables.
        steps: steps begun.
        sampled: steps of which a sample was taken.
        skipped: samples that were not taken, by reason.
        lost: samples whose process ended without a result, by reason.
        processes: the processes beside the script, each the leader of a session.
        ended: the script has ended.
        error: our own failure, after which nothing was watched any more.
    """

    callables: list[str] = field(default_factory=list)
    calls: int = 0
    steps: int = 0
    sampled: list[int] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    processes: list[int] = field(default_factory=list)
    ended: bool = False
    error: str | None = None


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


def write_job(folder: Path, state: JobState) -> None:
    """Write what the script's process counted, whole or not at all."""
    draft = folder / f".{JOB}.part"
    draft.write_text(json.dumps(asdict(state)), encoding="utf-8")
    draft.replace(folder / JOB)


def read_job(folder: Path) -> JobState:
    """What the script's process has counted so far."""
    try:
        return JobState(**json.loads((folder / JOB).read_text(encoding="utf-8")))
    except OSError:  # it has not written anything yet
        return JobState()


def append_loss(folder: Path, run: str, step: int, loss: float) -> None:
    """Keep the loss of one step of a trajectory (``compiled``, ``eager`` or ``perturbed``)."""
    append(folder / TRAJECTORY, {"run": run, "step": step, "loss": loss})


def append_end(folder: Path, run: str, reason: str) -> None:
    """Keep why a trajectory ended before its time."""
    append(folder / TRAJECTORY, {"run": run, "ended": reason})
