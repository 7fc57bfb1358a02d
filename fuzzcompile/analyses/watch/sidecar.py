"""The process beside the script: it makes the runs of one sampled step, judges them, and attributes what is wrong.

It is a fork of the script's process at the step's first call, and each run is a fork of the fork, which goes on in the
script's code: nothing has to be saved or built again, and a flag that flipped inside the script stays flipped.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from fuzzcompile.analyses.watch.side_processes import Mode, contain, describe_signal, die_with_parent
from fuzzcompile.analyses.watch.step_graphs import layer_at
from fuzzcompile.analyses.watch.step_records import (
    STEPS,
    STOP,
    TRAJECTORY,
    WORK,
    StepReport,
    WatchSettings,
    append,
    lines,
    write_json,
    wrong_by_value,
)
from fuzzcompile.analyses.watch.step_values import StepValues
from fuzzcompile.compiler.torch_config import compile_in_process
from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.oracle.judgement import Judgement, Observations, judge
from fuzzcompile.model.errors import describe_error
from fuzzcompile.model.verdicts import AGREEING, Comparison, Verdict
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run.observation import Observation

# The judgement of a step: its compiled values against those of the runs beside it.

OWN_RANDOM = (
    "the compiled step draws other random numbers than eager: its values are not compared; compile with "
    "torch._inductor.config.fallback_random"
)


# An error that is that many times as large as those of eager and of the perturbed runs is wrong as it stands. Below,
# values that the judge takes for wrong are suspicious: the state of a diverging program can amplify rounding in ways
# that a few perturbed runs do not show, and triage of the step's graphs decides.
GROSS_RATIO = 20.0


@dataclass(frozen=True)
class StepRuns:
    """The values of one step: as the script computed them, and of each run beside it that was made and ended well."""

    compiled: StepValues
    eager: StepValues
    reference: StepValues | None = None
    noisy: Sequence[StepValues] = ()  # perturbed
    exact: StepValues | None = None  # in float64 without the program's own low-precision casts
    again: StepValues | None = None  # a second eager run


def judged(runs: StepRuns) -> Judgement:
    """The judge's answer on a step."""
    first = _against(runs, runs.reference)
    if runs.exact is None or not first.suspicious:
        return first
    # Right only without the program's own low-precision casts: computed more exactly than it asks for.
    without = _against(runs, runs.exact)
    return first if without.suspicious or without.verdict.is_bug else without


def _against(runs: StepRuns, reference: StepValues | None) -> Judgement:
    names = set(runs.compiled.values) & set(runs.eager.values)

    def seen(run: StepValues | None) -> Observation:
        """The values of a run that can be compared with eager's, or else those of eager."""
        usable = run is not None and run.failure is None and runs.eager.draws_alike(run)
        return (run if run is not None and usable else runs.eager).observation(names)

    again = seen(None) if runs.again is None else runs.again.observation(names)
    noisy = [run.observation(names) for run in runs.noisy if run.failure is None and runs.eager.draws_alike(run)]
    return judge(Observations(seen(None), again, seen(reference), noisy, runs.compiled.observation(names)))


def reported(step: int, runs: StepRuns, judgement: Judgement) -> StepReport:
    """The report on a judged step."""
    groups = {name: group for name, (group, _) in runs.compiled.values.items()}
    comparisons = [comparison for comparison in judgement.comparisons if comparison.name in groups]
    worst, verdict, detail = judgement.worst, judgement.verdict, judgement.detail
    off = [c for c in comparisons if c.finding not in ("same", "close")]
    if not detail and off and verdict not in (Verdict.EQUAL, Verdict.ROUNDING):
        first, more = off[0], f" and {len(off) - 1} more" if len(off) > 1 else ""
        eager = f"where eager is off by {_relative(first, first.max_abs_error_eager):.1e}"
        detail = f"{first.name}{more}: off by {first.relative_error:.1e} of its size, {eager}"
    # Parameters that are wrong because their gradients are do not make it a ``miscompile``.
    wrong = {groups[c.name] for c in comparisons if c.finding in ("far", "integer") and not c.within_scaled_tolerance}
    if verdict is Verdict.MISCOMPILE and "gradients" in wrong and wrong <= {"gradients", "gradient_norm", "parameters"}:
        verdict = Verdict.WRONG_GRADIENT
    ran = {"compiled": runs.compiled, "eager": runs.eager, "float64": runs.reference}
    losses = {run: values.values["loss"][1] for run, values in ran.items() if values and "loss" in values.values}
    numbers = {run: float(loss) for run, loss in losses.items() if hasattr(loss, "item")}  # type: ignore[arg-type]
    return StepReport(
        step,
        str(verdict),
        unexplained=judgement.verdict.is_bug and any(map(_is_gross, comparisons)),
        detail=detail,
        made=_largest(comparisons, groups, "max_abs_error_compiled"),
        eager=_largest(comparisons, groups, "max_abs_error_eager"),
        floor=_largest(comparisons, groups, "noise_floor"),
        worst=None if worst is None or worst.finding == "same" else _shown(worst),
        loss={run: loss for run, loss in numbers.items() if math.isfinite(loss)},
        unseen=tuple(_unseen(runs)),
        seconds=sum(run.seconds for run in (runs.eager, runs.reference, *runs.noisy) if run is not None),
    )


def _is_gross(comparison: Comparison) -> bool:
    if comparison.finding != "far":
        return comparison.finding not in AGREEING
    usual = max(comparison.max_abs_error_eager, comparison.noise_floor)
    return not comparison.within_scaled_tolerance and comparison.max_abs_error_compiled > GROSS_RATIO * usual


def confirms(report: Mapping[str, object]) -> bool:
    """Whether triage confirms what is merely suspicious: a proved culprit, without which the values are right."""
    culprit = report.get("culprit")
    return wrong_by_value(report) and isinstance(culprit, Mapping) and culprit.get("necessary") is True


def _shown(comparison: Comparison) -> dict[str, object]:
    keys = ("max_abs_error_compiled", "max_abs_error_eager", "noise_floor", "scale")
    numbers = {key: getattr(comparison, key) for key in keys}
    finite = {key: value if math.isfinite(value) else None for key, value in numbers.items()}
    return {"name": comparison.name, "finding": comparison.finding, **finite, "detail": comparison.detail}


def _largest(comparisons: Sequence[Comparison], groups: Mapping[str, str], field: str) -> dict[str, float]:
    largest: dict[str, float] = {}
    for comparison in comparisons:
        error = _relative(comparison, getattr(comparison, field))
        group = groups[comparison.name]
        if math.isfinite(error):
            largest[group] = max(largest.get(group, 0.0), error)
    return largest


def _relative(comparison: Comparison, error: float) -> float:
    return error / comparison.scale if comparison.scale > 0 else error


def _unseen(runs: StepRuns) -> Iterator[str]:
    compiled, eager, reference = runs.compiled, runs.eager, runs.reference
    if reference is None or reference.failure is not None:
        why = "did not end" if reference is None or reference.failure is None else reference.failure[1]
        yield f"no float64 run ({why}): eager stands in for it"
    elif not eager.draws_alike(reference):
        yield "the float64 run draws other random numbers: eager stands in for it"
    if not runs.noisy:
        yield "no perturbed run ended well: the noise floor is not known"
    if eager.ended:
        yield f"what follows in the step, where {eager.ended}"
    missing = set(compiled.values) ^ set(eager.values)
    if missing and not eager.ended and not compiled.ended:
        yield f"{len(missing)} values that only one of the runs has, such as {min(missing)}"
    if compiled.left_out:
        yield f"{compiled.left_out} values beyond what is kept of a step"
    if compiled.sampled:
        yield f"of {compiled.sampled} large tensors some rows only"


_NOISE, _MORE_NOISE = (1, 2, 3), (4, 5, 6, 7, 8)
# Steps that are merely suspicious and attributed nevertheless: a graph may show what the step's values do not.
_MOST_SUSPICIONS = 3
_POLL = 0.01
_SUSPICIOUS = "suspicious"


class _IsRun(BaseException):
    """Unwinds a fork that is to be a run, in the mode of its argument, from wherever it was made."""


def follow(settings: WatchSettings, keep: int) -> Mode:
    """Follow an eager trajectory, and one whose state is moved by one ulp, in forks of the script; returns in those."""

    def both(_: int | None) -> None:
        deadline = time.monotonic() + settings.seconds
        pids = {run: _fork(Mode("followed", seed)) for seed, run in enumerate(("eager", "perturbed"))}
        for run, pid in pids.items():
            if why := _ended(pid, deadline):
                append(settings.folder / TRAJECTORY, {"run": run, "ended": f"a run beside the script {why}"})

    return _run_contained(both, keep, announce=False)


def _run_contained(body: Callable[[int | None], None], keep: int, *, announce: bool) -> Mode:
    """Run ``body`` in this fork and end it; returns in the forks that are runs.

    With ``announce``, ``body`` gets the script's standard error: what reads that waits for all that hold it open.
    """
    try:
        heard = os.dup(2) if announce else None
        contain({keep} if heard is None else {keep, heard})
        body(heard)
    except _IsRun as run:
        mode: Mode = run.args[0]
        return mode
    except BaseException:  # whatever it is: this process must never go on in the script's code
        os._exit(1)
    os._exit(0)


def _fork(run: Mode | Callable[[], None]) -> int:
    """Fork a process that calls a function and ends, or that unwinds to the script's code; returns its id here."""
    pid = os.fork()
    if pid == 0:
        die_with_parent()
        if isinstance(run, Mode):
            raise _IsRun(run)
        run()
        os._exit(0)
    return pid


def _ended(pid: int, deadline: float) -> str:
    """Wait for a process: how it failed, or nothing. It is killed at the deadline."""
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return f"was {how}" if (how := describe_signal(status)) else ""
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "did not end in time"
        time.sleep(_POLL)


class StepSupervisor:
    """Judges one sampled step, in a fork of the script; what is wrong is said on its standard error with ``announce``.

    ``lock`` is the file that this process locks as long as it lives; in ``work`` the runs leave their values.
    """

    def __init__(self, settings: WatchSettings, step: int, *, announce: bool) -> None:
        self.settings, self.folder, self.step, self.announce = settings, settings.folder, step, announce
        self.work, self.lock = self.folder / WORK / f"step_{step}", self.folder / WORK / f"{step:09d}.lock"
        self.work.mkdir(parents=True, exist_ok=True)
        self.script = os.getpid()

    def path(self, run: str) -> Path:
        """The file of a run's values."""
        return self.work / f"{run}.pt"

    def supervise(self, keep: int) -> Mode:
        """Judge the step; returns only in the forks that are its runs. ``keep`` is the descriptor of the lock."""
        return _run_contained(self._run, keep, announce=self.announce)

    def _run(self, heard: int | None) -> None:
        for path in sorted(self.lock.parent.glob("[0-9]*.lock")):  # of earlier steps
            if path.name < self.lock.name:
                with path.open() as lock:
                    fcntl.flock(lock, fcntl.LOCK_SH)
        if self.settings.stop_at_first and (self.folder / STOP).exists():
            return
        try:
            report = self._judged()
            report = StepReport(self.step, None, detail=report) if isinstance(report, str) else report
        except Exception as error:  # ours, of any kind: the step is reported as not judged
            report = StepReport(self.step, None, detail=f"internal error ({describe_error(error, 280)})")
        append(self.folder / STEPS, asdict(report))
        for path in self.work.glob("*.pt"):
            path.unlink()
        if report.unexplained and heard is not None:
            said = f"rounding does not explain step {self.step} ({report.verdict}; {report.detail}); see {self.folder}"
            os.write(heard, f"fuzzcompile watch: {said}\n".encode())

    def _judged(self) -> StepReport | str:
        """The report, or why there is no verdict."""
        eager, why = self._values(Mode("eager"))
        if eager is None:
            return f"the eager run {why}"
        if eager.failure is not None:
            return f"in eager mode the step raises {': '.join(eager.failure)}"
        reference, _ = self._values(Mode("float64"))
        noisy = self._noisy(_NOISE)
        path = self.path("compiled")  # of the script itself, once it has ended the step
        while not path.exists() and os.getppid() == self.script:
            time.sleep(_POLL)
        if not path.exists():
            return "the script ended before the step did"
        runs = StepRuns(StepValues.load(path), eager, reference, noisy)
        if runs.compiled.failure is None and not eager.draws_alike(runs.compiled):
            return OWN_RANDOM
        judgement = judged(runs)
        if not judgement.suspicious and not judgement.verdict.is_bug:
            return reported(self.step, runs, judgement)
        return self._looked_at_again(runs)

    def _looked_at_again(self, runs: StepRuns) -> StepReport:
        again, _ = self._values(Mode("eager"))
        exact = self._values(Mode("exact"))[0] if runs.reference is not None and runs.reference.casts else None
        noisy = [*runs.noisy, *self._noisy(_MORE_NOISE)]
        runs = replace(runs, again=again, exact=exact, noisy=noisy)
        judgement = judged(runs)
        report = reported(self.step, runs, judgement)
        earlier = list(lines(self.folder / STEPS))
        if report.unexplained:
            (self.folder / STOP).touch()
            # If an earlier step was attributed to a culprit, later ones show the same.
            return report if any(e["report"] and e["unexplained"] for e in earlier) else self._attributed(report)
        # A parameter after the step is what the optimizer's rounding made of gradients that were looked at.
        small = any(not c.name.endswith(" after the step") for c in judgement.suspicious)
        if small and sum(bool(e["report"] and not e["unexplained"]) for e in earlier) < _MOST_SUSPICIONS:
            return self._confirmed(report)
        return replace(report, verdict=_SUSPICIOUS) if judgement.verdict.is_bug else report

    def _confirmed(self, report: StepReport) -> StepReport:
        """A step whose values are suspicious, and no more: wrong if triage of its graphs finds a bug."""
        attributed = self._attributed(report)
        answer = attributed.report
        if answer is not None and confirms(answer):
            (self.folder / STOP).touch()
            return replace(attributed, verdict=str(answer["verdict"]), unexplained=True)
        shutil.rmtree(self.folder / f"step_{self.step}", ignore_errors=True)
        said = "could not judge them" if answer is None else f"says {answer['verdict']}"
        if answer is not None and wrong_by_value(answer):
            said += ", with no culprit proved"
        detail = f"{report.detail}; triage of the step's graphs {said}".lstrip("; ")
        verdict = _SUSPICIOUS if answer is None or wrong_by_value(answer) else str(answer["verdict"])
        return replace(attributed, verdict=verdict, cases=(), detail=detail)

    def _attributed(self, report: StepReport) -> StepReport:
        _, why = self._values(Mode("graphs"))
        written = self.path("graphs").with_suffix(".json")
        said = json.loads(written.read_text(encoding="utf-8")) if written.exists() else {"cases": [], "left_out": []}
        cases, unseen = [Path(case) for case in said["cases"]], (*report.unseen, *said["left_out"])
        if why and not cases:
            unseen = (*unseen, f"the graphs of the step could not be captured: the run {why}")
        answer = self._triaged(cases) if cases else None
        culprit, layer = {} if answer is None else answer.get("culprit"), None
        site = re.match(r"(.+\.py):(\d+)", str(culprit.get("site"))) if isinstance(culprit, dict) else None
        for case in cases:
            if site is not None and case.name == site[1]:
                layer = layer_at(case, int(site[2]))
        return replace(report, cases=tuple(map(str, cases)), report=answer, layer=layer, unseen=unseen)

    def _triaged(self, cases: Sequence[Path]) -> dict[str, object] | None:
        """The report on the first case with wrong values, or else on the first one.

        It is made in a fork, where the compiler is as it was in that step. Attribution of a case begins no further
        compile after the settings' seconds, but for a share that is left to the judgement.
        """
        answer, seconds = self.work / "triage.json", self.settings.seconds

        def triage_cases() -> None:
            torch.set_num_threads(1)  # a fork has none of its parent's threads
            compile_in_process()
            torch.compiler.set_stance("default")
            torch.compiler.reset()
            for path in cases:
                try:
                    case, deadline = load_case(path), time.monotonic() + 0.6 * seconds
                    said = triage(case, torch.device("cpu"), deadline=deadline).to_json()
                except Exception:  # a case that cannot be judged must not cost the others
                    continue
                wrong = wrong_by_value(said)
                if wrong or not answer.exists():
                    write_json(answer, said)
                if wrong:
                    return

        _ended(_fork(triage_cases), time.monotonic() + seconds * len(cases))
        said: dict[str, object] | None = json.loads(answer.read_text(encoding="utf-8")) if answer.exists() else None
        return said

    def _noisy(self, seeds: Sequence[int]) -> list[StepValues]:
        runs = [self._values(Mode("noise", seed))[0] for seed in seeds]
        return [values for values in runs if values is not None and values.failure is None]

    def _values(self, mode: Mode) -> tuple[StepValues | None, str]:
        path = self.path(mode.name)
        path.unlink(missing_ok=True)
        why = _ended(_fork(mode), time.monotonic() + self.settings.seconds)
        return (StepValues.load(path), "") if path.exists() else (None, why or "ended before the step did")
