"""The process beside the script: it makes the runs of one sampled step, judges them, and attributes what is wrong.

It is a fork of the script's process at the step's first call, and each run is a fork of the fork, which goes on in the
script's code: nothing has to be saved or built again, and a flag that flipped inside the script stays flipped.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import math
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fuzzcompile.analyses.watch.rank_lines import RankLines, accept, answer_first, connect, find_refusal, listen
from fuzzcompile.analyses.watch.side_processes import Mode, contain, describe_signal, die_with_parent
from fuzzcompile.analyses.watch.step_graphs import layer_at
from fuzzcompile.analyses.watch.step_records import (
    STEPS,
    STOP,
    TRAJECTORY,
    StepReport,
    WatchSettings,
    append,
    calls_collectives,
    lines,
    write_json,
    wrong_by_value,
)
from fuzzcompile.analyses.watch.step_values import StepValues
from fuzzcompile.compiler.collectives import find_size, rejoin_groups
from fuzzcompile.compiler.torch_config import compile_in_process
from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.oracle.judgement import Judgement, Observations, judge
from fuzzcompile.model.errors import describe_error, format_message
from fuzzcompile.model.evidence import ObservableName
from fuzzcompile.model.verdicts import AGREEING, Comparison, Verdict
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run.observation import Observation
from fuzzcompile.run.ranks import Leader, RankLost, lead_ranks
from fuzzcompile.run.ranks import follow as follow_order

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
    ranks = _find_ranks(groups, [c for c in off if c.finding != "far" or not c.within_scaled_tolerance])
    if not detail and off and verdict not in (Verdict.EQUAL, Verdict.ROUNDING):
        first, more = off[0], f" and {len(off) - 1} more" if len(off) > 1 else ""
        more += f" (rank {', '.join(map(str, ranks))})" if ranks else ""
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
        ranks=ranks if verdict.is_bug else (),
    )


def _find_ranks(names: Iterable[str], wrong: Sequence[Comparison]) -> tuple[int, ...]:
    """The ranks of values that are wrong; empty where one process runs the script."""
    if all(ObservableName.parse(name).rank is None for name in names):
        return ()
    return tuple(sorted({ObservableName.parse(comparison.name).rank or 0 for comparison in wrong}))


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
    if compiled.partial:
        yield f"{compiled.partial} partial results, of which each rank has an addend"
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
        torch.set_num_threads(1)  # a fork has none of its parent's, and would wait for them
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


@dataclass(frozen=True)
class CapturedCases:
    """The case files that a rank has written of the graphs of a step, and what no case file can hold."""

    cases: tuple[Path, ...]
    left_out: tuple[str, ...]


def prepare_compiler(settings: WatchSettings, step: int, *, together: bool) -> None:
    """Make this fork one that compiles cases as the script compiles its program, on all ranks where ``together``."""
    torch.set_num_threads(1)  # a fork has none of its parent's threads
    compile_in_process()
    torch.compiler.set_stance("default")
    torch.compiler.reset()
    if find_size() == 1 or together:
        rejoin_groups(settings.meeting("triage", step), settings.seconds)


class StepSupervisor:
    """Judges one sampled step, in a fork of the script; what is wrong is said on its standard error with ``announce``.

    ``lock`` is the file that this process locks as long as it lives; in ``work`` the runs leave their values.
    """

    def __init__(self, settings: WatchSettings, step: int, *, announce: bool) -> None:
        self.settings, self.folder, self.step, self.announce = settings, settings.folder, step, announce
        self.work, self.lock = settings.work / f"step_{step}", settings.work / f"{step:09d}.lock"
        self.work.mkdir(parents=True, exist_ok=True)
        self.script = os.getpid()
        self.others = RankLines([])

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
        if self.settings.rank:
            answer_first(self.settings, self.step, self)
        else:
            self._report(heard)
        for path in self.work.glob("*.pt"):
            path.unlink()

    def _report(self, heard: int | None) -> None:
        try:
            report = self._judged_with_others()
            report = StepReport(self.step, None, detail=report) if isinstance(report, str) else report
        except RankLost as error:
            report = StepReport(self.step, None, detail=format_message(error))
        except Exception as error:  # ours, of any kind: the step is reported as not judged
            report = StepReport(self.step, None, detail=f"internal error ({describe_error(error, 280)})")
        append(self.folder / STEPS, asdict(report))
        self.others.dismiss()
        if report.unexplained and heard is not None:
            said = f"rounding does not explain step {self.step} ({report.verdict}; {report.detail}); see {self.folder}"
            os.write(heard, f"fuzzcompile watch: {said}\n".encode())

    def _judged_with_others(self) -> StepReport | str:
        if self.settings.size == 1:
            return self._judged()
        with listen(self.settings, f"line{self.step}") as listener:
            refusal = functools.partial(find_refusal, self.settings, self.step)
            self.others = RankLines(accept(listener, self.settings, refusal))
        return self._judged()

    def _everywhere(self, name: str, *args: object) -> list[Any]:
        """What a method of this class answers here and beside the other ranks, in their order."""
        self.others.ask(name, *args)
        return [getattr(self, name)(*args), *self.others.collect()]

    def _judged(self) -> StepReport | str:
        """The report, or why there is no verdict."""
        eager, why = self._values(Mode("eager"))
        if eager is None:
            return f"the eager run {why}"
        if eager.failure is not None:
            return f"in eager mode the step raises {': '.join(eager.failure)}"
        reference, _ = self._values(Mode("float64"))
        noisy = self._noisy(_NOISE)
        compiled = self._everywhere("wait_for_script")
        if None in compiled:
            return "the script ended before the step did" + self._name_rank(compiled.index(None))
        runs = StepRuns(StepValues.merged([StepValues.load(path) for path in compiled]), eager, reference, noisy)
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
        self._prepare_meeting("graphs")
        written: list[CapturedCases] = self._everywhere("capture")
        cases, unseen = written[0].cases, (*report.unseen, *written[0].left_out)
        together = any(map(calls_collectives, cases))
        if together and len({len(each.cases) for each in written}) > 1:
            unseen, together = (
                (*unseen, "collectives of the step's graphs, of which not all ranks have the same"),
                False,
            )
            cases = ()
        self._prepare_meeting("triage")
        answer = self._triaged_together(cases) if together else self.triage_cases(cases) if cases else None
        if not together and (answer is None or not wrong_by_value(answer)):
            self.others.ask("triage_captured")
            for each, said in zip(written[1:], self.others.collect(), strict=True):
                if said is not None and (answer is None or wrong_by_value(said)):
                    cases, answer = each.cases, said
        culprit, layer = {} if answer is None else answer.get("culprit"), None
        site = re.match(r"(.+\.py):(\d+)", str(culprit.get("site"))) if isinstance(culprit, dict) else None
        for case in cases:
            if site is not None and case.name == site[1]:
                layer = layer_at(case, int(site[2]))
        return replace(report, cases=tuple(map(str, cases)), report=answer, layer=layer, unseen=unseen)

    def capture(self) -> CapturedCases:
        """The graphs of the step on this rank, as case files."""
        _, why = self.run(Mode("graphs"))
        written = self.path("graphs").with_suffix(".json")
        said = json.loads(written.read_text(encoding="utf-8")) if written.exists() else {"cases": [], "left_out": []}
        if why and not said["cases"]:
            said["left_out"].append(f"the graphs of the step could not be captured: the run {why}")
        self.captured = CapturedCases(tuple(map(Path, said["cases"])), tuple(said["left_out"]))
        return self.captured

    def triage_captured(self) -> dict[str, object] | None:
        """What triage says of this rank's own cases."""
        return self.triage_cases(self.captured.cases)

    def triage_cases(
        self, cases: Sequence[Path], lead: Callable[[], contextlib.AbstractContextManager[None]] | None = None
    ) -> dict[str, object] | None:
        """The report on the first case with wrong values, or else on the first one.

        It is made in a fork, where the compiler is as it was in that step. Attribution of a case begins no further
        compile after the settings' seconds, but for a share that is left to the judgement. With ``lead``, each case is
        triaged in a block of it, by all ranks.
        """
        answer, seconds = self.work / "triage.json", self.settings.seconds

        def triage_each() -> None:
            prepare_compiler(self.settings, self.step, together=lead is not None)
            for path in cases:
                try:
                    case, deadline = load_case(path), time.monotonic() + 0.6 * seconds
                    with lead() if lead is not None else contextlib.nullcontext():
                        said = triage(case, torch.device("cpu"), deadline=deadline).to_json()
                except Exception:  # a case that cannot be judged must not cost the others
                    continue
                wrong = wrong_by_value(said)
                if wrong or not answer.exists():
                    write_json(answer, said)
                if wrong:
                    return

        _ended(_fork(triage_each), time.monotonic() + seconds * len(cases))
        said: dict[str, object] | None = json.loads(answer.read_text(encoding="utf-8")) if answer.exists() else None
        return said

    def _triaged_together(self, cases: Sequence[Path]) -> dict[str, object] | None:
        """The same of cases that call collectives: all ranks run what this one's triage runs, each its own case."""
        with listen(self.settings, f"triage{self.step}") as listener:

            @contextlib.contextmanager
            def lead() -> Iterator[None]:
                with lead_ranks(Leader(accept(listener, self.settings), lambda _: None)):
                    yield

            self.others.ask("follow_triage")
            answer = self.triage_cases(cases, lead)
        self.others.collect()
        return answer

    def follow_triage(self) -> None:
        """Run this rank's cases as the first rank's triage says."""

        def follow_each() -> None:
            prepare_compiler(self.settings, self.step, together=True)
            for path in self.captured.cases:
                case = load_case(path)
                line = connect(self.settings, f"triage{self.step}", once=True)
                if line is None:
                    return
                follow_order(line, case, torch.device("cpu"))

        _ended(_fork(follow_each), time.monotonic() + self.settings.seconds * len(self.captured.cases))

    def _noisy(self, seeds: Sequence[int]) -> list[StepValues]:
        runs = [self._values(Mode("noise", seed))[0] for seed in seeds]
        return [values for values in runs if values is not None and values.failure is None]

    def _values(self, mode: Mode) -> tuple[StepValues | None, str]:
        """What all ranks saw in a run; None, and why, if one of them did not come to the end of it."""
        self._prepare_meeting(mode.name)
        ran: list[tuple[Path | None, str]] = self._everywhere("run", mode)
        lost = next((rank for rank, (path, _) in enumerate(ran) if path is None), None)
        if lost is not None:
            return None, f"{ran[lost][1]}{self._name_rank(lost)}"
        return StepValues.merged([StepValues.load(path) for path, _ in ran if path is not None]), ""

    def run(self, mode: Mode) -> tuple[Path | None, str]:
        """The file of this rank's values in a run; None, and why, if it did not come to its end."""
        path = self.path(mode.name)
        path.unlink(missing_ok=True)
        why = _ended(_fork(mode), time.monotonic() + self.settings.seconds)
        return (path, "") if path.exists() else (None, why or "ended before the step did")

    def wait_for_script(self) -> Path | None:
        """The file of the values of this rank's own process, once that has ended the step; None if it never does."""
        path = self.path("compiled")
        while not path.exists() and os.getppid() == self.script:
            time.sleep(_POLL)
        return path if path.exists() else None

    def _prepare_meeting(self, what: str) -> None:
        self.settings.meeting(what, self.step).unlink(missing_ok=True)

    def _name_rank(self, rank: int) -> str:
        return f" (rank {rank})" if self.settings.size > 1 else ""
