"""The runs that a verdict and an attribution rest on, each made once."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass, replace

import torch

from fuzzcompile.case import Case
from fuzzcompile.execution import runs
from fuzzcompile.execution.building import build
from fuzzcompile.execution.observation import Observation
from fuzzcompile.inductor.ledger import Ledger
from fuzzcompile.inductor.session import Compilation, check_settings, compiling
from fuzzcompile.oracle.judgement import Judgement, Observations, judge

NOISE_RUNS = 3


@dataclass(frozen=True)
class Trial:
    """One compile of the case: how it was done, what it showed, and what the judge says of it."""

    how: Compilation
    observation: Observation
    judgement: Judgement
    ledger: Ledger
    seconds: float


class Experiments:
    """Runs one case on one device in every way that its verdict needs, and counts the compiles.

    Eager, reference and perturbed runs are made on first use and kept.

    Raises:
        CaseError: the case asks for settings that the installed torch does not have.
    """

    def __init__(
        self, case: Case, device: torch.device, how: Compilation | None = None, *, against: str = "eager"
    ) -> None:
        check_settings(case.settings)
        self.against = against
        self.case = case
        self.device = device
        self.how = how or Compilation()
        self.compiles = 0
        self.screens = 0

    @functools.cached_property
    def eager(self) -> Observation:
        """The eager run."""
        return runs.run_eager(self.case, self.device)

    @functools.cached_property
    def again(self) -> Observation:
        """A second eager run: the same bits, if eager is deterministic."""
        return runs.run_eager(self.case, self.device)

    @functools.cached_property
    def reference(self) -> Observation:
        """The float64 run with the user's own low-precision casts kept."""
        return self._reference[0]

    @property
    def has_low_precision_casts(self) -> bool:
        """Whether the program casts floating values to bfloat16 or float16 itself."""
        return self._reference[1]

    @functools.cached_property
    def exact(self) -> Observation:
        """The float64 run with the user's low-precision casts dropped."""
        return runs.run_float64(self.case, self.device, keep_casts=False)[0]

    @functools.cached_property
    def noisy(self) -> tuple[Observation, ...]:
        """Eager runs perturbed by one ulp per operator."""
        return tuple(runs.run_eager(self.case, self.device, noise_seed=seed) for seed in range(1, NOISE_RUNS + 1))

    def run_eager(self) -> None:
        """Make every run that needs no compiler."""
        runs_made = (self.eager, self.again)
        if not any(run.failure for run in runs_made):
            _ = (self.reference, self.noisy)

    def trial(self, how: Compilation | None = None) -> Trial:
        """Compile the case as ``how`` says, run it and judge what it shows."""
        how = how or self.how
        observation, ledger, seconds = self._compiled(how)
        return Trial(how, observation, self.judge(observation), ledger, seconds)

    def judge(self, compiled: Observation) -> Judgement:
        """Judge a compiled run against the eager runs and the float64 reference.

        Values that are wrong against the reference with the user's low-precision casts, and right against
        the one without, are only values computed more exactly than the user wrote.
        """
        if self.eager.failure or compiled.failure:
            return judge(Observations(self.eager, self.eager, self.eager, (), compiled))
        kept = self._judged(compiled, self.reference)
        if not kept.suspicious or not self.has_low_precision_casts:
            return kept
        dropped = self._judged(compiled, self.exact)
        return kept if dropped.suspicious else replace(dropped, casts_dropped=True)

    def _judged(self, compiled: Observation, reference: Observation) -> Judgement:
        return judge(Observations(self.eager, self.again, reference, self.noisy, compiled))

    def in_float64(self) -> Judgement | None:
        """Compile the program in float64 and judge it there; None if it cannot run in float64."""
        if self.exact.failure:
            return None
        with compiling(self.case.settings, replace(self.how, record=False)) as session:
            self.compiles += 1
            program = build(self.case, self.device, double=True)
            compiled = runs.observe(
                self.case, program, session.compile(program.model), describe_failure=session.describe_failure
            )
        program = build(self.case, self.device, double=True)
        eager = runs.observe(self.case, program, program.model)
        if compiled.failure or eager.failure:
            return None
        return judge(Observations(eager, eager, eager, (), compiled))

    @functools.cached_property
    def _reference(self) -> tuple[Observation, bool]:
        return runs.run_float64(self.case, self.device, keep_casts=True)

    def _compiled(self, how: Compilation) -> tuple[Observation, Ledger, float]:
        if how.screen:
            self.screens += 1
        else:
            self.compiles += 1
        start = time.perf_counter()
        with compiling(self.case.settings, how) as session:
            program = build(self.case, self.device)
            observation = runs.observe(
                self.case, program, session.compile(program.model), describe_failure=session.describe_failure
            )
        return observation, session.ledger, time.perf_counter() - start
