"""Judging a compiled run against the runs of its case."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from fuzzcompile.compiler.session import Compilation
from fuzzcompile.compiler.target.process import assumed
from fuzzcompile.execution import runs
from fuzzcompile.execution.building import build
from fuzzcompile.execution.observation import Observation
from fuzzcompile.oracle.judgement import Judgement, Observations, judge
from fuzzcompile.oracle.substitution import laid_out_as
from fuzzcompile.tolerances import Tolerances
from fuzzcompile.trials.baselines import Baseline
from fuzzcompile.trials.compiled import compiled_run
from fuzzcompile.trials.runs import NOISE_RUNS, QUICK_NOISE_RUNS, Runs
from fuzzcompile.trials.trial import Counts, Run


@dataclass(frozen=True)
class Judge:
    """The runs that compiled runs of one case are held against.

    Attributes:
        quick: do with one eager run and one perturbed run.
        tolerances: how many times the usual rounding the compiled run and its baseline may be apart.
    """

    runs: Runs
    baseline: Baseline
    tolerances: Tolerances
    quick: bool = False

    @property
    def again(self) -> Observation:
        """The second eager run; the first one again in a quick look."""
        return self.runs.eager if self.quick else self.runs.again

    @property
    def noisy(self) -> tuple[Observation, ...]:
        """The perturbed eager runs that draw what eager draws."""
        return self.runs.noisy(QUICK_NOISE_RUNS if self.quick else NOISE_RUNS)

    def run_eager(self) -> None:
        """Make every run that needs no compiler: none may be made while a compile is watched."""
        if not (self.runs.eager.failure or self.again.failure):
            _ = (self.runs.reference, self.noisy)

    def anew(self) -> Judge:
        """A judge that makes every run again: something about eager mode was changed."""
        runs, baseline = Runs(self.runs.case, self.runs.device), self.baseline
        return replace(self, runs=runs, baseline=baseline.of(runs))

    def judge(self, compiled: Observation) -> Judgement:
        """Judge a compiled run against the eager runs and the float64 reference.

        Values that are wrong against the reference with the program's own low-precision casts, and right against the
        reference without them, are merely computed more exactly than the program asks for.
        """
        eager = self.runs.eager
        if assumed() is not None:  # strides are the device's own, and eager ran on the CPU
            compiled = laid_out_as(eager, compiled)
        if eager.failure or compiled.failure:
            return judge(Observations(eager, eager, eager, (), compiled))
        if self.runs.draws and not self.runs.reference_draws_alike:
            return replace(self._against(self.baseline.observation, compiled), confidence="low")
        with_casts = self._against(self.runs.reference, compiled)
        if not with_casts.suspicious or not self.runs.has_low_precision_casts:
            return with_casts
        without_casts = self._against(self.runs.exact, compiled)
        return with_casts if without_casts.suspicious else replace(without_casts, casts_dropped=True)

    def _against(self, reference: Observation, compiled: Observation) -> Judgement:
        eager, baseline = self.runs.eager, self.baseline.observation
        if baseline is eager:
            return judge(Observations(eager, self.again, reference, self.noisy, compiled, self._factor))
        # How far eager is from its substitute is noise like any other, as long as both draw the same numbers.
        noisy = (*self.noisy, eager, self.again) if self.baseline.draws_on_this_device else ()
        return judge(Observations(baseline, baseline, reference, noisy, compiled, self._factor))

    def _factor(self, dtype: torch.dtype) -> float:
        return self.tolerances.for_pair(self.baseline.pair, str(dtype)).factor


def judged_in_float64(case_runs: Runs, baseline: Baseline, how: Compilation, counts: Counts) -> Judgement | None:
    """Compile the program in float64, as ``how`` says, and judge it there.

    Returns:
        None if the program cannot run in float64, or draws other random numbers there.
    """
    if case_runs.exact.failure:
        return None
    # Eliding the program's own casts would look like a difference: in float64 they round as ever.
    casts = {"emulate_precision_casts": True} if case_runs.has_low_precision_casts else {}
    how = replace(how, record=False, config={**(how.config or {}), **casts})
    compiled = compiled_run(case_runs, how, counts, double=True)
    expected = _expected_in_float64(case_runs, baseline, counts)
    if compiled.observation.failure or expected.observation.failure:
        return None
    if any(compiled.ends.get(name) != expected.ends.get(name) for name in case_runs.draws):
        return None
    eager = expected.observation
    return judge(Observations(eager, eager, eager, case_runs.noisy_in_float64, compiled.observation))


def _expected_in_float64(case_runs: Runs, baseline: Baseline, counts: Counts) -> Run:
    """The float64 program run as the baseline is: compiled, or in eager mode."""
    if baseline.compiled_as is not None:
        return compiled_run(case_runs, baseline.compiled_as, counts, double=True)
    program = build(case_runs.case, case_runs.device, double=True)
    return Run.ended(runs.observe(case_runs.case, program, program.model))
