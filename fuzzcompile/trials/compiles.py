"""The runs that a verdict and an attribution rest on, each made once."""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from fuzzcompile.case import Case
from fuzzcompile.compiler.ledger import Ledger
from fuzzcompile.compiler.session import Compilation, check_settings, compiling, modes
from fuzzcompile.errors import EnvironmentUnfit, UsageError
from fuzzcompile.execution import runs
from fuzzcompile.execution.building import Program, build
from fuzzcompile.execution.observation import Failure, Observation
from fuzzcompile.execution.seeds import Kept, moved, observe_seeds, streams_at_start, streams_now
from fuzzcompile.oracle import streams
from fuzzcompile.oracle.judgement import Judgement, Observations, judge
from fuzzcompile.oracle.verdicts import Verdict

NOISE_RUNS = 3
_NO_CODE = ("eager", "aot_eager", "aot_eager_decomp_partition")  # backends that generate no code
# Of a quick look: what is suspicious then is looked at again.
_QUICK_NOISE_RUNS = 1
# What compiled can be compared with, beside the modes of torch.compile.
BASELINES = ("eager", "float64", "aot_eager", "cpu")
_EAGER_SEEDS = range(1, streams.SEEDS + 1)
_COMPILED_SEEDS = range(1001, streams.SEEDS + 1001)
# A difference of distributions is believed when other seeds show it too.
_EAGER_AGAIN, _COMPILED_AGAIN = (range(first, streams.SEEDS + first) for first in (2001, 3001))


@dataclass(frozen=True)
class Run:
    """One run, and where it left the random streams."""

    observation: Observation
    ends: Mapping[str, str]


@dataclass(frozen=True)
class Trial:
    """One compile of the case: how it was done, what it showed, and what the judge says of it.

    ``sampled`` are the values that were judged by their distribution over many seeds, because the random numbers
    behind them could not be aligned with eager's (None: nothing was judged in that way). ``runtime`` is how many
    seconds the compiled program takes, where that was asked for.
    """

    how: Compilation
    observation: Observation
    judgement: Judgement
    ledger: Ledger
    seconds: float
    sampled: tuple[str, ...] | None = None
    runtime: float | None = None


@dataclass
class _Tally:
    compiles: int = 0
    screens: int = 0
    runtime: float | None = None


class Experiments:
    """Runs one case on one device in every way that its verdict needs, and counts the compiles.

    Eager, reference and perturbed runs are made on first use and kept. ``against`` is what compiled is compared
    with: ``eager``, ``float64`` (the reference itself), ``aot_eager``, ``cpu`` (eager there), or another mode of
    ``torch.compile``.

    Raises:
        CaseError: the case asks for settings that the installed torch does not have.
        UsageError: ``against`` is none of these, or the mode that the case is compiled in.
    """

    def __init__(
        self, case: Case, device: torch.device, how: Compilation | None = None, *, against: str = "eager"
    ) -> None:
        check_settings(case.settings)
        _check_baseline(case, against)
        self.against = against
        self.case = case
        self.device = device
        self.how = _as_asked(case, how or Compilation())
        self.quick = False
        self._tally = _Tally()

    def under(self, how: Compilation, *, quick: bool = False) -> Experiments:
        """The same experiments with another compile as the one that is judged; runs and counts are shared.

        A ``quick`` look does with fewer eager runs, where they were not made yet.
        """
        other = copy.copy(self)
        other.how, other.quick = how, quick
        vars(other).pop("in_float64", None)  # it is compiled as ``how`` says
        return other

    @property
    def compiles(self) -> int:
        """How many compiles were made."""
        return self._tally.compiles

    @property
    def screens(self) -> int:
        """How many compiles without code generation were made."""
        return self._tally.screens

    @property
    def runtime(self) -> float | None:
        """Seconds that the program takes as it was compiled for judging; None if that was not timed."""
        return self._tally.runtime

    # -- runs without a compiler ------------------------------------------------------------------

    @property
    def eager(self) -> Observation:
        """The eager run."""
        return self._eager.observation

    @functools.cached_property
    def again(self) -> Observation:
        """A second eager run: the same bits, if eager is deterministic."""
        return self.eager if self.quick else runs.run_eager(self.case, self.device)

    @property
    def reference(self) -> Observation:
        """The float64 run with the user's own low-precision casts kept."""
        return self._reference[0].observation

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
        """Eager runs perturbed by one ulp per operator, which draw what eager draws."""
        count = _QUICK_NOISE_RUNS if self.quick else NOISE_RUNS
        perturbed = [self._perturbed(seed) for seed in range(1, count + 1)]
        return tuple(run.observation for run in perturbed if self._draws_alike(run))

    def run_eager(self) -> None:
        """Make every run that needs no compiler."""
        runs_made = (self.eager, self.again)
        if not any(run.failure for run in runs_made):
            _ = (self.reference, self.noisy)

    @functools.cached_property
    def backward_failure(self) -> Failure | None:
        """What eager raises in the backward that the case leaves out; None where nothing, or where nobody can tell."""
        if self.case.backward or self.case.grad != "enabled" or self.case.state is not None:
            return None
        return runs.run_eager(replace(self.case, backward=True), self.device).failure

    # -- what compiled is compared with -----------------------------------------------------------

    @functools.cached_property
    def baseline(self) -> Observation:
        """What compiled is compared with.

        Raises:
            EnvironmentUnfit: the case runs in eager mode, and cannot be run in that other way.
        """
        if self.against == "eager" or self.eager.failure or (self.against == "cpu" and self.device.type == "cpu"):
            return self.eager
        if self.against == "float64":
            other = self.reference
            if not other.failure and not self.reference_draws_alike:
                raise EnvironmentUnfit(
                    f"{self.case.name} cannot be compared with float64: it draws other random numbers there."
                )
        elif self.against == "cpu":
            other = runs.run_eager(self.case, torch.device("cpu"))
        else:
            other = self._compiled_baseline()
        if other.failure:
            raise EnvironmentUnfit(f"{self.case.name} cannot be compared with {self.against}: {other.failure}.")
        return streams.in_the_form_of(self.eager, other) if self.against in ("float64", "cpu") else other

    def _compiled_baseline(self) -> Observation:
        with compiling(self.case.settings, self._baseline_how) as session:
            self._tally.compiles += 1
            program = build(self.case, self.device)
            return runs.observe(
                self.case, program, session.compile(program.model), describe_failure=session.describe_failure
            )

    @property
    def _baseline_how(self) -> Compilation:
        """How the baseline is compiled, where it is."""
        if self.against == "aot_eager":
            return Compilation(backend="aot_eager", record=False)
        return replace(self.how, backend="inductor", mode=self.against, record=False, screen=False)

    @property
    def compares_modes(self) -> bool:
        """Whether both sides are compiled by Inductor: a rewrite that is wrong in both tells nothing of the pair."""
        return self.against not in BASELINES

    # -- random numbers ---------------------------------------------------------------------------

    @functools.cached_property
    def draws(self) -> tuple[str, ...]:
        """The random streams that the eager run draws from."""
        if self.eager.failure:
            return ()
        return moved(streams_at_start(self.case), self._eager.ends)

    @functools.cached_property
    def reference_draws_alike(self) -> bool:
        """Whether the float64 run drew what eager drew: fused operators that draw may do so in their own dtype."""
        return self._draws_alike(self._reference[0])

    @functools.cached_property
    def eager_samples(self) -> list[streams.Run]:
        """The eager run under many seeds."""
        return self._eager_under(_EAGER_SEEDS)

    def _eager_under(self, seeds: range) -> list[streams.Run]:
        program = build(self.case, self.device)
        kept = Kept(self.case, program, self.device)
        observed = observe_seeds(self.case, program, program.model, kept, seeds)
        return [streams.sampled(one) for one in observed if not one.failure]

    @functools.cached_property
    def depends_on_seeds(self) -> bool:
        """Whether what eager shows changes with the seed: a program that seeds itself draws the same in every run."""
        return bool(self.draws) and bool(streams.varying(self.eager_samples))

    def _run(self, make: Callable[[], Observation]) -> Run:
        return Run(make(), streams_now())

    def _draws_alike(self, run: Run) -> bool:
        return not any(self._eager.ends.get(name) != run.ends.get(name) for name in self.draws)

    # -- compiles ---------------------------------------------------------------------------------

    def trial(self, how: Compilation | None = None) -> Trial:
        """Compile the case as ``how`` says, run it and judge what it shows."""
        how = how or self.how
        self.run_eager()
        _ = (self.baseline, self.draws)
        start = time.perf_counter()
        if how.screen or how.backend in _NO_CODE:
            self._tally.screens += 1
        else:
            self._tally.compiles += 1
        if self.draws and self.has_low_precision_casts:
            _ = self.exact  # no run of ours may be made inside the watched block
        judgement, sampled = None, None
        with compiling(self.case.settings, how) as session:
            program = build(self.case, self.device)
            kept = Kept(self.case, program, self.device) if self.draws else None
            target = session.compile(program.model)
            observation = runs.observe(self.case, program, target, describe_failure=session.describe_failure)
            run, seconds = Run(observation, streams_now()), time.perf_counter() - start
            if kept is not None:
                judgement = self.judge(observation)
                if self._needs_seeds(judgement, run, how):
                    _ = self.eager_samples
                    session.stop_capturing()
                    again = observe_seeds(
                        self.case, program, target, kept, _COMPILED_SEEDS, describe_failure=session.describe_failure
                    )
                    judgement, sampled = self._judge_samples(
                        observation, again, lambda: observe_seeds(self.case, program, target, kept, _COMPILED_AGAIN)
                    )
            runtime = self._timed(how, program, target, observation)
        judged = judgement or self.judge(observation)
        return Trial(how, observation, judged, session.ledger, seconds, sampled, runtime)

    def _timed(self, how: Compilation, program: Program, target: Callable[..., Any], seen: Observation) -> float | None:
        runtime = runs.time_calls(self.case, program, target) if how.timed and not seen.failure else None
        if runtime is not None and replace(how, timed=False, record=True) == replace(self.how, record=True):
            self._tally.runtime = runtime
        return runtime

    def judge(self, compiled: Observation) -> Judgement:
        """Judge a compiled run against the eager runs and the float64 reference.

        Values that are wrong against the reference with the user's low-precision casts, and right against
        the one without, are only values computed more exactly than the user wrote.
        """
        if self.eager.failure or compiled.failure:
            return judge(Observations(self.eager, self.eager, self.eager, (), compiled))
        if self.draws and not self.reference_draws_alike:
            return replace(self._judged(compiled, self.baseline), confidence="low")
        kept = self._judged(compiled, self.reference)
        if not kept.suspicious or not self.has_low_precision_casts:
            return kept
        dropped = self._judged(compiled, self.exact)
        return kept if dropped.suspicious else replace(dropped, casts_dropped=True)

    def _judged(self, compiled: Observation, reference: Observation) -> Judgement:
        if self.baseline is self.eager:
            return judge(Observations(self.eager, self.again, reference, self.noisy, compiled))
        # How far eager is from what takes its place is noise like any other, as long as it draws the same.
        noisy = (*self.noisy, self.eager, self.again) if self._draws_from_here else ()
        return judge(Observations(self.baseline, self.baseline, reference, noisy, compiled))

    @property
    def _draws_from_here(self) -> bool:
        """Whether the baseline draws the numbers that eager draws on this device."""
        return not (self.draws and self.against == "cpu" and self.device.type != "cpu")

    @functools.cached_property
    def in_float64(self) -> Judgement | None:
        """The program compiled in float64 and judged there; None if it cannot run in float64."""
        if self.exact.failure:
            return None
        ours = self._double(replace(self.how, record=False, config={**(self.how.config or {}), **self._keeping_casts}))
        other = self._double(self._baseline_how if self.against not in BASELINES[:2] + BASELINES[3:] else None)
        if ours.observation.failure or other.observation.failure:
            return None
        if any(ours.ends.get(name) != other.ends.get(name) for name in self.draws):
            return None
        # Casts that the program writes leave the rounding of their dtype in a float64 run too.
        noisy = [runs.run_eager(self.case, self.device, noise_seed=n + 1, double=True) for n in range(NOISE_RUNS)]
        return judge(Observations(other.observation, other.observation, other.observation, noisy, ours.observation))

    @property
    def _keeping_casts(self) -> dict[str, bool]:
        """Casts that the program writes are no rounding of float64: eliding them would look like a difference."""
        return {"emulate_precision_casts": True} if self.has_low_precision_casts else {}

    @property
    def knows_float64(self) -> bool:
        """Whether the program was compiled in float64 already."""
        return "in_float64" in self.__dict__

    def _double(self, how: Compilation | None) -> Run:
        """The program in float64, compiled as ``how`` says or (None) in eager mode."""
        if how is None:
            program = build(self.case, self.device, double=True)
            return self._run(lambda: runs.observe(self.case, program, program.model))
        with compiling(self.case.settings, how) as session:
            self._tally.compiles += 1
            program = build(self.case, self.device, double=True)
            target = session.compile(program.model)
            return self._run(
                lambda: runs.observe(self.case, program, target, describe_failure=session.describe_failure)
            )

    # -- random numbers that cannot be aligned ----------------------------------------------------

    def _needs_seeds(self, judgement: Judgement, run: Run, how: Compilation) -> bool:
        """Whether values differ, and nothing says that they come from the same random numbers."""
        if run.observation.failure or self.eager.failure:
            return False
        if not (judgement.verdict.is_bug or judgement.verdict is Verdict.UNSTABLE or judgement.suspicious):
            return False
        return not (how.fallback_random and self._draws_from_here and self._draws_alike(run))

    def _judge_samples(
        self, compiled: Observation, again: Iterable[Observation], more: Callable[[], Iterable[Observation]]
    ) -> tuple[Judgement, tuple[str, ...] | None]:
        """Judge values that depend on random numbers by their distribution, and all else as ever.

        ``more`` gives the compiled runs under other seeds, which have to show the same.
        """
        eager = self.eager_samples
        observed = []
        for one in again:
            if one.failure and len(eager) == streams.SEEDS:
                return self.judge(one), ()
            if not one.failure:
                observed.append(streams.sampled(one))
        names = streams.varying(eager)
        if min(len(eager), len(observed)) < streams.FEWEST:
            return Judgement(Verdict.UNSTABLE, detail="random, and fails under most seeds", confidence="low"), names
        found = streams.differences(eager, observed)
        if found:
            others = [streams.sampled(one) for one in more() if not one.failure]
            still = {one.name for one in streams.differences(self._eager_under(_EAGER_AGAIN), others)}
            found = [one for one in found if one.name in still]
        told = self.judge(streams.with_values_of(self.baseline, compiled, names))
        comparisons = [streams.told(one, names, found) for one in told.comparisons]
        if not found:
            verdict = Verdict.ROUNDING if told.verdict is Verdict.EQUAL else told.verdict
            return replace(told, verdict=verdict, comparisons=tuple(comparisons), confidence="low"), names
        gradients = all(one.kind == "gradient" for one in found) and not told.verdict.is_bug
        verdict = Verdict.WRONG_GRADIENT if gradients else Verdict.MISCOMPILE
        return Judgement(verdict, tuple(comparisons), f"{found[0].name}: {found[0]}", confidence="low"), names

    # -- private ----------------------------------------------------------------------------------

    def _perturbed(self, seed: int) -> Run:
        return self._run(lambda: runs.run_eager(self.case, self.device, noise_seed=seed))

    @functools.cached_property
    def _eager(self) -> Run:
        return self._run(lambda: runs.run_eager(self.case, self.device))

    @functools.cached_property
    def _reference(self) -> tuple[Run, bool]:
        observation, casts = runs.run_float64(self.case, self.device, keep_casts=True)
        return Run(observation, streams_now()), casts


def check_against(against: str) -> None:
    """Refuse a name that is nothing to compare with.

    Raises:
        UsageError: naming what there is.
    """
    known = (*BASELINES, *modes())
    if against not in known:
        raise UsageError(f"Nothing can be compared with {against!r}; use one of {', '.join(known)}.")


def _as_asked(case: Case, how: Compilation) -> Compilation:
    """Random numbers are the compiler's own where the case says so itself; else eager's, so that values compare."""
    asked = {**case.settings.inductor, **case.settings.options}.get("fallback_random")
    return how if asked is None else replace(how, fallback_random=bool(asked))


def _check_baseline(case: Case, against: str) -> None:
    check_against(against)
    if (
        against not in BASELINES
        and case.settings.backend == "inductor"
        and against == (case.settings.mode or "default")
    ):
        raise UsageError(f"{case.name} is compiled in mode {against!r} itself; name another one to compare with.")
