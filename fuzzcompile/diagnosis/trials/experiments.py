"""Compiles of a case, judged against its runs, value by value or by their distribution over many seeds."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch

from fuzzcompile.compiler.compile_changes import Backend, InductorSettings
from fuzzcompile.compiler.session import Compilation, check_settings, get_effective_setting, open_session
from fuzzcompile.compiler.target.target_process import current_target
from fuzzcompile.diagnosis.oracle import random_streams
from fuzzcompile.diagnosis.oracle.judgement import (
    Judgement,
    Observations,
    have_same_bits,
    judge,
    with_eager_strides,
    with_eager_values,
)
from fuzzcompile.diagnosis.trials.baselines import (
    BaselineRun,
    CompiledProgram,
    check_baseline,
    choose_random_stream,
    run_compiled,
)
from fuzzcompile.diagnosis.trials.case_runs import NOISE_RUNS, QUICK_NOISE_RUNS, CaseRun, CaseRuns, CompileCounts, Trial
from fuzzcompile.model.conditions import BASELINES
from fuzzcompile.model.contract import AOTI
from fuzzcompile.model.tolerances import Tolerances
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.run import runs
from fuzzcompile.run.case import Case
from fuzzcompile.run.case_program import build
from fuzzcompile.run.observation import Failure, Observation
from fuzzcompile.run.pool.worker import say
from fuzzcompile.run.runs import SavedTensors, time_calls

__all__ = ["BASELINES", "NOISE_RUNS", "CaseRun", "Experiments", "Trial"]


# Judging a compiled run against the runs of its case.


@dataclass(frozen=True)
class Judge:
    """The runs that compiled runs of one case are held against.

    Attributes:
        quick: do with one eager run and one perturbed run.
        tolerances: how many times the usual rounding the compiled run and its baseline may be apart.
    """

    runs: CaseRuns
    baseline: BaselineRun
    tolerances: Tolerances
    quick: bool = False

    @property
    def again(self) -> Observation:
        """The second eager run; the first one again in a quick look."""
        return self.runs.eager if self.quick else self.runs.again

    @property
    def noisy(self) -> tuple[Observation, ...]:
        """The perturbed eager runs that draw what eager draws."""
        return self.runs.select_noisy(QUICK_NOISE_RUNS if self.quick else NOISE_RUNS)

    def run_eager(self) -> None:
        """Make every run that needs no compiler: none may be made while a compile is watched."""
        if not (self.runs.eager.failure or self.again.failure):
            _ = (self.runs.reference, self.noisy)

    def make_anew(self) -> Judge:
        """A judge that makes every run again: something about eager mode was changed."""
        runs, baseline = CaseRuns(self.runs.case, self.runs.device), self.baseline
        return replace(self, runs=runs, baseline=baseline.of(runs))

    def judge(self, compiled: Observation) -> Judgement:
        """Judge a compiled run against the eager runs and the float64 reference.

        Values that are wrong against the reference with the program's own low-precision casts, and right against the
        reference without them, are merely computed more exactly than the program asks for.
        """
        eager = self.runs.eager
        if current_target() is not None:  # strides are the device's own, and eager ran on the CPU
            compiled = with_eager_strides(eager, compiled)
        if eager.failure or compiled.failure:
            return judge(Observations(eager, eager, eager, (), compiled))
        if self.runs.draws and not self.runs.reference_draws_alike:
            return replace(self._judge_against(self.baseline.observation, compiled), confidence="low")
        with_casts = self._judge_against(self.runs.reference, compiled)
        if not with_casts.suspicious or not self.runs.has_low_precision_casts:
            return with_casts
        without_casts = self._judge_against(self.runs.exact, compiled)
        return with_casts if without_casts.suspicious else replace(without_casts, casts_dropped=True)

    def _judge_against(self, reference: Observation, compiled: Observation) -> Judgement:
        eager, baseline = self.runs.eager, self.baseline.observation
        if baseline is eager:
            return judge(Observations(eager, self.again, reference, self.noisy, compiled, self._find_factor))
        # How far eager is from its substitute is noise like any other, as long as both draw the same numbers.
        noisy = (*self.noisy, eager, self.again) if self.baseline.draws_on_this_device else ()
        return judge(Observations(baseline, baseline, reference, noisy, compiled, self._find_factor))

    def _find_factor(self, dtype: torch.dtype) -> float:
        return self.tolerances.for_pair(self.baseline.pair, str(dtype)).factor


def judge_in_float64(
    case_runs: CaseRuns, baseline: BaselineRun, how: Compilation, counts: CompileCounts
) -> Judgement | None:
    """Compile the program in float64, as ``how`` says, and judge it there.

    Returns:
        None if the program cannot run in float64, or draws other random numbers there.
    """
    if case_runs.exact.failure:
        return None
    # Eliding the program's own casts would look like a difference: in float64 they round as ever.
    casts = {"emulate_precision_casts": True} if case_runs.has_low_precision_casts else {}
    how = replace(how.under(InductorSettings(casts)), record=False)
    compiled = run_compiled(case_runs, how, counts, double=True)
    expected = _run_baseline_in_float64(case_runs, baseline, counts)
    if compiled.observation.failure or expected.observation.failure:
        return None
    if any(compiled.ends.get(name) != expected.ends.get(name) for name in case_runs.draws):
        return None
    eager = expected.observation
    return judge(Observations(eager, eager, eager, case_runs.noisy_in_float64, compiled.observation))


def _run_baseline_in_float64(case_runs: CaseRuns, baseline: BaselineRun, counts: CompileCounts) -> CaseRun:
    """The float64 program run as the baseline is: compiled, or in eager mode."""
    if baseline.compilation is not None:
        return run_compiled(case_runs, baseline.compilation, counts, double=True)
    program = build(case_runs.case, case_runs.device, double=True)
    return CaseRun.finish(runs.observe(case_runs.case, program, program.model))


# Judging a compiled program by its distribution over many seeds, where its random numbers differ from eager's.

# No seed of the eager samples (trials/runs.py) is among these.
COMPILED_SEEDS = range(1001, random_streams.SEEDS + 1001)
COMPILED_SEEDS_AGAIN = range(3001, random_streams.SEEDS + 3001)


def needs_seeds(judge: Judge, judgement: Judgement, run: CaseRun, how: Compilation) -> bool:
    """Return whether values differ and the program neither drew eager's random numbers nor promised to."""
    if run.observation.failure or judge.runs.eager.failure:
        return False
    if not (judgement.verdict.is_bug or judgement.verdict is Verdict.UNSTABLE or judgement.suspicious):
        return False
    if not (how.follows_eager_numbers and judge.baseline.draws_on_this_device):
        return True
    return not (judge.runs.draws_alike(run) or judge.runs.promises_eager_numbers)


def judge_samples(
    judge: Judge,
    compiled: Observation,
    seeded: Iterable[Observation],
    seeded_again: Callable[[], Iterable[Observation]],
) -> tuple[Judgement, tuple[str, ...]]:
    """Judge values that vary with the seed by their distribution, and all others value by value.

    Args:
        judge: the runs that the compiled program is held against.
        compiled: the compiled run under the seed of the case.
        seeded: compiled runs under :data:`COMPILED_SEEDS`; no further one is made after a failure that settles it.
        seeded_again: makes compiled runs under :data:`COMPILED_SEEDS_AGAIN`, which have to confirm a difference.

    Returns:
        The judgement, and the names of the values judged by their distribution.
    """
    eager, samples = judge.runs.eager_samples, []
    for observation in seeded:
        if observation.failure and len(eager) == random_streams.SEEDS:
            return judge.judge(observation), ()
        if not observation.failure:
            samples.append(judge.runs.sample(observation))
    names = random_streams.find_varying(eager)
    if min(len(eager), len(samples)) < random_streams.FEWEST:
        return Judgement(Verdict.UNSTABLE, detail="random, and fails under most seeds", confidence="low"), names
    differences = random_streams.find_differences(eager, samples)
    if differences:
        differences = _confirm_differences(differences, judge, seeded_again())
    by_value = judge.judge(with_eager_values(judge.baseline.observation, compiled, names))
    return _combine(by_value, names, differences), names


def _confirm_differences(
    differences: list[random_streams.DistributionDifference], judge: Judge, seeded_again: Iterable[Observation]
) -> list[random_streams.DistributionDifference]:
    """The differences in values that other seeds show to differ as well."""
    again = [judge.runs.sample(observation) for observation in seeded_again if not observation.failure]
    names = {difference.name for difference in random_streams.find_differences(judge.runs.more_eager_samples, again)}
    return [difference for difference in differences if difference.name in names]


def _combine(
    by_value: Judgement, names: tuple[str, ...], differences: list[random_streams.DistributionDifference]
) -> Judgement:
    """The judgement on values compared one by one, with the evidence on those that vary with the seed."""
    comparisons = tuple(random_streams.apply_distribution(each, names, differences) for each in by_value.comparisons)
    if not differences:
        verdict = Verdict.ROUNDING if by_value.verdict is Verdict.EQUAL else by_value.verdict
        return replace(by_value, verdict=verdict, comparisons=comparisons, confidence="low")
    gradients = all(difference.kind == "gradient" for difference in differences) and not by_value.verdict.is_bug
    verdict = Verdict.WRONG_GRADIENT if gradients else Verdict.MISCOMPILE
    return Judgement(verdict, comparisons, f"{differences[0].name}: {differences[0]}", confidence="low")


class Experiments:
    """The runs of one case on one device (``runs``), and the compiles made of it, which are counted.

    Args:
        case: the case to judge.
        device: where it runs.
        how: the compile that is judged; random numbers are the compiler's own if the case asks for that itself.
        against: what compiled is compared with: ``eager``, ``float64`` (the reference itself), ``aot_eager``, ``cpu``
            (eager on the CPU), or another mode of ``torch.compile``.
        tolerances: how far the two may be apart; by default the table that comes with fuzzcompile.

    Raises:
        CaseError: the case asks for settings that the installed torch does not have.
        UsageError: ``against`` is none of these, or the mode that the case is compiled in.
    """

    def __init__(
        self,
        case: Case,
        device: torch.device,
        how: Compilation | None = None,
        *,
        against: str = "eager",
        tolerances: Tolerances | None = None,
    ) -> None:
        check_settings(case.settings)
        how = choose_random_stream(case, how or Compilation())
        check_baseline(case, against, how)
        runs_made, counts = CaseRuns(case, device), CompileCounts()
        baseline = BaselineRun(runs_made, against, how, counts)
        self._share(Judge(runs_made, baseline, tolerances=tolerances or Tolerances.load()), counts, how)

    def _share(self, judge: Judge, counts: CompileCounts, how: Compilation) -> None:
        self.how = how
        self._judge, self._counts = judge, counts
        self.runs, self._baseline = judge.runs, judge.baseline
        self.case, self.device, self.against = self.runs.case, self.runs.device, self._baseline.against

    def under(self, how: Compilation, *, quick: bool = False) -> Experiments:
        """Experiments that judge another compile of the case, with the same runs, baseline and counts.

        Args:
            how: the compile that is judged.
            quick: do with fewer eager runs.
        """
        experiments = Experiments.__new__(Experiments)
        experiments._share(replace(self._judge, quick=quick), self._counts, how)
        return experiments

    # -- counts -----------------------------------------------------------------------------------

    @property
    def compiles(self) -> int:
        """Number of compiles so far."""
        return self._counts.compiles

    @property
    def screens(self) -> int:
        """Number of compiles without code generation so far."""
        return self._counts.screens

    @property
    def runtime(self) -> float | None:
        """Seconds that a call takes as it was compiled for the verdict; None if that was not timed."""
        return self._counts.runtime

    # -- what compiles are compared with (runs without a compiler: see Runs) ----------------------

    @property
    def again(self) -> Observation:
        """A second eager run: the same bits, if eager is deterministic."""
        return self._judge.again

    @functools.cached_property
    def is_deterministic(self) -> bool:
        """Return whether eager gives the same bits twice, or raises."""
        return bool(self.runs.eager.failure) or have_same_bits(self.runs.eager, self.again)

    def run_eager(self) -> None:
        """Make every run that needs no compiler."""
        self._judge.run_eager()

    @property
    def baseline(self) -> Observation:
        """Observation that the compiled program is compared with.

        Raises:
            EnvironmentUnfit: the case runs in eager mode and fails as this baseline.
        """
        return self._baseline.observation

    @property
    def tolerances(self) -> Tolerances:
        """Tolerances between both sides."""
        return self._judge.tolerances

    @property
    def compares_modes(self) -> bool:
        """Return whether Inductor compiles both sides: a rewrite that is wrong in both makes no difference."""
        return self.against not in BASELINES or self.against == AOTI

    @property
    def baseline_judgement(self) -> Judgement:
        """The judgement on the baseline itself, against eager."""
        return replace(self._judge, baseline=BaselineRun(self.runs, "eager", self.how, self._counts)).judge(
            self.baseline
        )

    @property
    def pair(self) -> str:
        """Kind of pair that both sides form in the table of tolerances."""
        return self._baseline.pair

    # -- compiles ---------------------------------------------------------------------------------

    def trial(self, how: Compilation | None = None) -> Trial:
        """Compile the case as ``how`` says (as the experiments judge it, if None), run it and judge what it shows."""
        if how is None:
            say("compiling it")
        how = self._judge.runs.limit_to_interpreted(how or self.how)
        self._prepare()
        start = time.perf_counter()
        self._counts.add(how)
        with open_session(self.case.settings, how) as session:
            program = build(self.case, self.device)
            # What the runs under other seeds begin from.
            kept = SavedTensors(self.case, program, self.device) if self.runs.draws else None
            compiled = CompiledProgram(self.case, program, session.compile(program.model), session, kept)
            observation = compiled.observe()
            if (
                self.device.type == "cuda"
                and get_effective_setting(self.case.settings, how, "triton.cudagraphs") is True
            ):
                observation = observation.drop_reused_memory(self.runs.eager)
            observation = compiled.with_own_state(observation, self.runs.eager)
            run, seconds = CaseRun.finish(observation), time.perf_counter() - start
            judgement, sampled = (None, None) if kept is None else self._judge_drawing(compiled, run, how)
            others = kept is not None and self._draws_others(compiled, run, judgement, how)
            runtime = self._measure_runtime(how, compiled, observation)
        if self.runs.refuses_kernels(session.ledger):
            return self.trial(how)
        judgement = judgement or self.judge(observation)
        return Trial(how, observation, judgement, session.ledger, seconds, sampled, runtime, others)

    def judge(self, compiled: Observation) -> Judgement:
        """Judge a compiled run against the eager runs and the float64 reference."""
        return self._judge.judge(compiled)

    def judge_anew(self, compiled: Observation) -> Judgement:
        """Judge a compiled run against eager and float64 runs that are made again, as eager mode is now."""
        return self._judge.make_anew().judge(compiled)

    @functools.cached_property
    def in_float64(self) -> Judgement | None:
        """The judgement on the program compiled in float64, as ``how`` says; None if it cannot be compared there."""
        return judge_in_float64(self.runs, self._baseline, self.how, self._counts)

    @property
    def knows_float64(self) -> bool:
        """Return whether these experiments have compiled the program in float64 already."""
        return "in_float64" in vars(self)

    def compile_without_fullgraph(self, backend: str | None = None) -> tuple[Failure | None, tuple[str, ...]]:
        """The case compiled without its ``FULLGRAPH``: how that fails, and why its graph breaks, one line each."""
        how = replace(self.how.without(Backend), record=False)
        how = self.runs.limit_to_interpreted(how.under(Backend(backend)) if backend is not None else how)
        with open_session(replace(self.case.settings, fullgraph=False), how) as session:
            self._counts.add(how)
            program = build(self.case, self.device)
            observation = CompiledProgram(self.case, program, session.compile(program.model), session, None).observe()
        return observation.failure, session.ledger.graph_breaks

    def _prepare(self) -> None:
        """Make every run that judging needs: none may be made while a compile is watched."""
        self._judge.run_eager()
        _ = (self.baseline, self.runs.draws)
        if self.runs.draws and self.runs.has_low_precision_casts:
            _ = self.runs.exact

    def _judge_drawing(
        self, compiled: CompiledProgram, run: CaseRun, how: Compilation
    ) -> tuple[Judgement, tuple[str, ...] | None]:
        """Judge a run that draws random numbers, by its distribution over seeds if its values tell nothing."""
        judgement = self.judge(run.observation)
        if not needs_seeds(self._judge, judgement, run, how):
            return judgement, None
        return self._judge_by_distribution(compiled, run)

    def _draws_others(
        self, compiled: CompiledProgram, run: CaseRun, judgement: Judgement | None, how: Compilation
    ) -> bool:
        """Return whether a program that promises eager's random numbers is wrong in nothing but these.

        It leaves the random streams elsewhere than eager does, or its values are right in their distribution.
        """
        if not self.runs.promises_eager_numbers or not how.follows_eager_numbers or run.observation.failure:
            return False
        if not self.runs.draws_alike(run):
            return True
        if judgement is None or not judgement.verdict.is_bug or not how.record:
            return False
        verdict = self._judge_by_distribution(compiled, run)[0].verdict
        return not verdict.is_bug or verdict.kind != "values"

    def _judge_by_distribution(self, compiled: CompiledProgram, run: CaseRun) -> tuple[Judgement, tuple[str, ...]]:
        _ = self.runs.eager_samples
        compiled.session.stop_capturing()
        again = functools.partial(compiled.observe_seeds, COMPILED_SEEDS_AGAIN)
        return judge_samples(self._judge, run.observation, compiled.observe_seeds(COMPILED_SEEDS), again)

    def _measure_runtime(self, how: Compilation, compiled: CompiledProgram, observation: Observation) -> float | None:
        if not how.timed or observation.failure:
            return None
        runtime = time_calls(self.case, compiled.program, compiled.target)
        if runtime is not None and replace(how, timed=False, record=True) == replace(self.how, record=True):
            self._counts.runtime = runtime
        return runtime
