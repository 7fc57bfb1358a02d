"""What a watch found, over all sampled steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fuzzcompile.analyses.watch.records import STEPS, JobState, StepReport, lines, read_job
from fuzzcompile.analyses.watch.trajectory import Trajectories, compared, losses


@dataclass(frozen=True)
class Summary:
    """The result of a watch.

    Attributes:
        script: the script, as it was named.
        folder: where its files are.
        job: what the script's process counted.
        steps: the sampled steps in their order.
        trajectories: how trajectories part; None if the script trains nothing, or for too few steps.
        script_status: the script's own exit status; None if it was ended by this program, or did not end.
        interrupted: the user ended it.
        report: what triage says of the first unexplained step.
        case: the case file that ``report`` is about.
        alone: whether a fresh process finds the same bug in the case file; None if it was not tried.
    """

    script: str
    folder: Path
    job: JobState
    steps: tuple[StepReport, ...]
    trajectories: Trajectories | None = None
    script_status: int | None = None
    interrupted: bool = False
    report: Mapping[str, object] | None = None
    case: Path | None = None
    alone: bool | None = None

    @property
    def unexplained(self) -> list[StepReport]:
        """Steps that rounding does not explain."""
        return [step for step in self.steps if step.unexplained]

    @property
    def judged(self) -> list[StepReport]:
        """Steps with a verdict."""
        return [step for step in self.steps if step.verdict is not None]

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
            "interrupted": self.interrupted,
            "case": None if self.case is None else str(self.case),
            "alone": self.alone,
            "report": self.report,
            "exit_status": self.exit_status,
        }


def steps_in(folder: Path) -> list[StepReport]:
    """The sampled steps of a watch so far, in the order of the steps."""
    return sorted((StepReport.from_json(entry) for entry in lines(folder / STEPS)), key=lambda report: report.step)


def summarised(script: str, folder: Path, steps: Sequence[StepReport] | None = None) -> Summary:
    """What the files of a watch show."""
    found = tuple(steps_in(folder) if steps is None else steps)
    first = next((step for step in found if step.unexplained and step.report is not None), None)
    report = None if first is None else first.report
    case = None
    if first is not None and report is not None:
        named = [Path(path) for path in first.cases if Path(path).stem == report.get("case")]
        case = named[0] if named else None
    return Summary(script, folder, read_job(folder), found, compared(*losses(folder)), report=report, case=case)
