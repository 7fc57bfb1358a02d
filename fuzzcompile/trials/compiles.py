"""The compiles of a case, each made with the same runs behind it, and judged."""

from __future__ import annotations

import functools
import time
from dataclasses import replace

import torch

from fuzzcompile.case import Case
from fuzzcompile.compiler.session import Compilation, check_settings, compiling, effective_setting
from fuzzcompile.execution.building import build
from fuzzcompile.execution.observation import Failure, Observation
from fuzzcompile.execution.runs import time_calls
from fuzzcompile.execution.seeds import Kept
from fuzzcompile.execution.worker import say
from fuzzcompile.oracle.judgement import Judgement, same_bits
from fuzzcompile.sides import AOTI
from fuzzcompile.tolerances import Tolerances
from fuzzcompile.trials.against import BASELINES
from fuzzcompile.trials.baselines import Baseline, check_baseline
from fuzzcompile.trials.compiled import Compiled, as_asked
from fuzzcompile.trials.judged import Judge, judged_in_float64
from fuzzcompile.trials.runs import NOISE_RUNS, Runs
from fuzzcompile.trials.sampling import COMPILED_SEEDS, COMPILED_SEEDS_AGAIN, judge_samples, needs_seeds
from fuzzcompile.trials.trial import Counts, Run, Trial

__all__ = ["BASELINES", "NOISE_RUNS", "Experiments", "Run", "Trial"]


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
        how = as_asked(case, how or Compilation())
        check_baseline(case, against, how)
        runs_made, counts = Runs(case, device), Counts()
        baseline = Baseline(runs_made, against, how, counts)
        self._share(Judge(runs_made, baseline, tolerances=tolerances or Tolerances.load()), counts, how)

    def _share(self, judge: Judge, counts: Counts, how: Compilation) -> None:
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
    def deterministic(self) -> bool:
        """Return whether eager gives the same bits twice, or raises."""
        return bool(self.runs.eager.failure) or same_bits(self.runs.eager, self.again)

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
    def baseline_judged(self) -> Judgement:
        """The judgement on the baseline itself, against eager."""
        return replace(self._judge, baseline=Baseline(self.runs, "eager", self.how, self._counts)).judge(self.baseline)

    @property
    def pair(self) -> str:
        """Kind of pair that both sides form in the table of tolerances."""
        return self._baseline.pair

    # -- compiles ---------------------------------------------------------------------------------

    def trial(self, how: Compilation | None = None) -> Trial:
        """Compile the case as ``how`` says (as the experiments judge it, if None), run it and judge what it shows."""
        if how is None:
            say("compiling it")
        how = self._judge.runs.as_far_as_interpreted(how or self.how)
        self._prepare()
        start = time.perf_counter()
        self._counts.add(how)
        with compiling(self.case.settings, how) as session:
            program = build(self.case, self.device)
            # What the runs under other seeds begin from.
            kept = Kept(self.case, program, self.device) if self.runs.draws else None
            compiled = Compiled(self.case, program, session.compile(program.model), session, kept)
            observation = compiled.observe()
            if self.device.type == "cuda" and effective_setting(self.case.settings, how, "triton.cudagraphs") is True:
                observation = observation.reusing_memory(self.runs.eager)
            observation = compiled.with_own_state(observation, self.runs.eager)
            run, seconds = Run.ended(observation), time.perf_counter() - start
            judgement, sampled = (None, None) if kept is None else self._judged_drawing(compiled, run, how)
            others = kept is not None and self._draws_others(compiled, run, judgement, how)
            runtime = self._timed(how, compiled, observation)
        if self.runs.refuses_kernels(session.ledger):
            return self.trial(how)
        judgement = judgement or self.judge(observation)
        return Trial(how, observation, judgement, session.ledger, seconds, sampled, runtime, others)

    def judge(self, compiled: Observation) -> Judgement:
        """Judge a compiled run against the eager runs and the float64 reference."""
        return self._judge.judge(compiled)

    def judge_anew(self, compiled: Observation) -> Judgement:
        """Judge a compiled run against eager and float64 runs that are made again, as eager mode is now."""
        return self._judge.anew().judge(compiled)

    @functools.cached_property
    def in_float64(self) -> Judgement | None:
        """The judgement on the program compiled in float64, as ``how`` says; None if it cannot be compared there."""
        return judged_in_float64(self.runs, self._baseline, self.how, self._counts)

    @property
    def knows_float64(self) -> bool:
        """Return whether these experiments have compiled the program in float64 already."""
        return "in_float64" in vars(self)

    def broken(self, backend: str | None = None) -> tuple[Failure | None, tuple[str, ...]]:
        """The case compiled without its ``FULLGRAPH``: how that fails, and why its graph breaks, one line each."""
        how = self.runs.as_far_as_interpreted(replace(self.how, backend=backend, record=False))
        with compiling(replace(self.case.settings, fullgraph=False), how) as session:
            self._counts.add(how)
            program = build(self.case, self.device)
            observation = Compiled(self.case, program, session.compile(program.model), session, None).observe()
        return observation.failure, session.ledger.graph_breaks

    def _prepare(self) -> None:
        """Make every run that judging needs: none may be made while a compile is watched."""
        self._judge.run_eager()
        _ = (self.baseline, self.runs.draws)
        if self.runs.draws and self.runs.has_low_precision_casts:
            _ = self.runs.exact

    def _judged_drawing(
        self, compiled: Compiled, run: Run, how: Compilation
    ) -> tuple[Judgement, tuple[str, ...] | None]:
        """Judge a run that draws random numbers, by its distribution over seeds if its values tell nothing."""
        judgement = self.judge(run.observation)
        if not needs_seeds(self._judge, judgement, run, how):
            return judgement, None
        return self._by_distribution(compiled, run)

    def _draws_others(self, compiled: Compiled, run: Run, judgement: Judgement | None, how: Compilation) -> bool:
        """Return whether a program that promises eager's random numbers is wrong in nothing but these.

        It leaves the random streams elsewhere than eager does, or its values are right in their distribution.
        """
        if not self.runs.promised_numbers or not how.fallback_random or run.observation.failure:
            return False
        if not self.runs.draws_alike(run):
            return True
        if judgement is None or not judgement.verdict.is_bug or not how.record:
            return False
        verdict = self._by_distribution(compiled, run)[0].verdict
        return not verdict.is_bug or verdict.kind != "values"

    def _by_distribution(self, compiled: Compiled, run: Run) -> tuple[Judgement, tuple[str, ...]]:
        _ = self.runs.eager_samples
        compiled.session.stop_capturing()
        again = functools.partial(compiled.observe_seeds, COMPILED_SEEDS_AGAIN)
        return judge_samples(self._judge, run.observation, compiled.observe_seeds(COMPILED_SEEDS), again)

    def _timed(self, how: Compilation, compiled: Compiled, observation: Observation) -> float | None:
        if not how.timed or observation.failure:
            return None
        runtime = time_calls(self.case, compiled.program, compiled.target)
        if runtime is not None and replace(how, timed=False, record=True) == replace(self.how, record=True):
            self._counts.runtime = runtime
        return runtime
