"""Compiles of a case, judged against its runs, value by value or by their distribution over many seeds."""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Self

import torch

from fuzzcompile.compiler.compile_changes import (
    KEPT_CASTS,
    TRACE_ONLY,
    Backend,
    CompileMode,
    CompilePath,
    GraphsFromDisk,
    InductorSettings,
    WatchedInstructions,
)
from fuzzcompile.compiler.graph_text import Collective, compare_collectives, list_collectives
from fuzzcompile.compiler.session import (
    Compilation,
    CompileSession,
    check_settings,
    find_path,
    get_effective_setting,
    list_modes,
    open_session,
)
from fuzzcompile.compiler.target.target_process import current_target
from fuzzcompile.compiler.watch.ledger import Ledger
from fuzzcompile.compiler.watch.unseen import Unseen
from fuzzcompile.diagnosis.oracle import random_streams
from fuzzcompile.diagnosis.oracle.judgement import (
    Judgement,
    Observations,
    have_same_bits,
    judge,
    reshape_like_eager,
    with_eager_strides,
    with_eager_values,
)
from fuzzcompile.diagnosis.trials.case_runs import NOISE_RUNS, CaseRuns, CompileCounts, Trial
from fuzzcompile.diagnosis.trials.stored_graphs import StoredGraphs
from fuzzcompile.model.conditions import BASELINES, check_against
from fuzzcompile.model.contract import AOTI, CACHED, COMPILE, EAGER, EXPORT, EXPORTED
from fuzzcompile.model.errors import EnvironmentUnfit, UsageError
from fuzzcompile.model.stages import RUNTIME
from fuzzcompile.model.tolerances import Tolerances
from fuzzcompile.model.verdicts import AGREEING, HARMLESS, Verdict
from fuzzcompile.run import runs
from fuzzcompile.run.call_state import preserve_modes
from fuzzcompile.run.case import Case
from fuzzcompile.run.case_program import CaseProgram, build
from fuzzcompile.run.observation import Failure, Observation
from fuzzcompile.run.pool.worker import say
from fuzzcompile.run.ranks import ask_ranks, explain_loss, is_led, merge_ranks, on_all_ranks

_COPIED_STATE = Unseen(
    "memory", "an AOTInductor package has copies of it", (RUNTIME,), "outputs that share the memory of parameters"
)
# A screen makes do with fewer runs: what looks suspicious in it is compiled and judged again in full.
_QUICK_NOISE_RUNS = 1
# No seed of the eager samples (case_runs.py) is among these.
_COMPILED_SEEDS = range(1001, random_streams.SEEDS + 1001)
_COMPILED_SEEDS_AGAIN = range(3001, random_streams.SEEDS + 3001)


@dataclass(frozen=True)
class CompiledProgram:
    """A compiled program, callable while its session lasts; ``kept`` is the state that seeded runs begin from."""

    case: Case
    program: CaseProgram
    target: Callable[..., object]
    session: CompileSession
    kept: runs.SavedTensors | None

    @classmethod
    def compile(cls, of: CaseRuns, session: CompileSession, *, double: bool = False, keeps: bool = False) -> Self:
        """Compile the program of a case in a session; ``keeps`` its state for :meth:`observe_seeds`."""
        program = build(of.case, of.device, double=double)
        kept = runs.SavedTensors(of.case, program, of.device) if keeps else None
        with program.enter_precision():  # a package is compiled here, and not when it is called
            target = session.compile(program.model)
        return cls(of.case, program, target, session, kept)

    def observe(self) -> Observation:
        """Run it under the case's own seed."""
        return runs.observe(self.case, self.program, self.target, describe_failure=self.session.describe_failure)

    def adjust_package(self, observation: Observation, eager: Observation) -> Observation:
        """The run of a package, without what it cannot have of the model: gradients, and its memory; others as is."""
        if find_path(self.session.settings, self.session.how) != AOTI:
            return observation
        adjusted = observation.copy_aliases(eager, self.program.collect_tensors())
        if adjusted != observation:
            self.session.ledger.unseen.note(_COPIED_STATE)
        return adjusted.adjust(eager, lambda value, own: replace(value, requires_grad=own.requires_grad))

    def observe_seeds(self, numbers: Sequence[int]) -> Iterator[Observation]:
        """Run it once under each of the seeds ``numbers``, from the state that was kept."""
        assert self.kept is not None
        return self.kept.observe_seeds(self.target, numbers, self.session.describe_failure)


def run_compiled(of: CaseRuns, how: Compilation, counts: CompileCounts, *, double: bool = False) -> Observation:
    """Compile the case as ``how`` says, count the compile, and run it once, in float64 if ``double``."""
    how, eager = of.limit_to_interpreted(how), of.eager
    with _run_on_all_ranks(of.case, how, double=double), open_session(of.case.settings, how) as session:
        counts.compiles += 1
        compiled = CompiledProgram.compile(of, session, double=double)
        run = compiled.adjust_package(compiled.observe(), eager)
    run = merge_ranks(run)
    return run_compiled(of, how, counts, double=double) if of.refuses_kernels(session.ledger) else run


_called: list[Collective] = []  # by the graphs of the last compile in this process, one of several


def run_on_rank(case: Case, device: torch.device, how: Compilation, *, double: bool = False) -> Observation:
    """Compile and run the case as the first of several processes does at the same time."""
    with open_session(case.settings, how) as session:
        try:
            return CompiledProgram.compile(CaseRuns(case, device), session, double=double).observe()
        finally:
            _called[:] = list_collectives(session.ledger)


def list_called_on_rank(case: Case, device: torch.device) -> list[Collective]:
    """The collectives in the graphs of the last compile in this process."""
    return _called


def _compare_ranks(case: Case, ledger: Ledger) -> str | None:
    """Where the graphs of other ranks call other collectives than the first's, in a sentence; None if nowhere."""
    others = ask_ranks(f"{__name__}:{list_called_on_rank.__name__}", case)
    own = list_collectives(ledger) if others else []
    parted = (compare_collectives(own, called, rank) for rank, called in enumerate(others, 1))
    return next(filter(None, parted), None)


def _run_on_all_ranks(case: Case, how: Compilation, *, double: bool = False) -> AbstractContextManager[None]:
    """Have the other processes compile and run the case as the block does, which alone looks on."""
    return on_all_ranks(f"{__name__}:{run_on_rank.__name__}", case, how.without(WatchedInstructions), double=double)


class Experiments:
    """The runs of one case on one device (``runs``), and the compiles made of it, which are counted (``counts``).

    ``how`` is the compile that is judged; its random numbers are the compiler's own if the case asks for that itself.
    ``against`` is one of :data:`BASELINES` or another mode of ``torch.compile``, and ``tolerances`` says how far both
    may be apart.

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
        self.case, self.device, self.against = case, device, against
        self.how = _choose_random_stream(case, how or Compilation())
        _check_baseline(case, against, self.how)
        self.tolerances = tolerances or Tolerances.load()
        self.quick, self.noise_runs = False, NOISE_RUNS
        self.runs, self.counts = CaseRuns(case, device), CompileCounts()
        if find_path(case.settings, self.how) == CACHED:
            self._stored = StoredGraphs(case, device)  # kept: the folder goes with it
            self.how = self.how.under(GraphsFromDisk(folder=self._stored.folder))
        self._first_how = self.how  # what a baseline in another mode differs from

    def under(self, how: Compilation, *, quick: bool = False) -> Self:
        """Experiments that judge another compile of the case, with the same runs, baseline and counts.

        ``quick`` makes do with one eager run and one perturbed run.
        """
        return self._change(how=how, quick=quick)

    def on_part(self, case: Case) -> Experiments:
        """Experiments on a part of the case, whose compiles are counted with those of the whole."""
        part = Experiments(case, self.device, self._first_how, against=self.against, tolerances=self.tolerances)
        part.counts = self.counts
        return part

    def _change(self, **changes: object) -> Self:
        changed = copy.copy(self)
        for cached in ("is_deterministic", "in_float64"):
            vars(changed).pop(cached, None)
        vars(changed).update(changes)
        return changed

    @property
    def again(self) -> Observation:
        """A second eager run: the same bits, if eager is deterministic; the first one again in a quick look."""
        return self.runs.eager if self.quick else self.runs.again

    @property
    def noisy(self) -> tuple[Observation, ...]:
        """Eager runs in which every operator moves by an ulp."""
        return self.runs.select_noisy(_QUICK_NOISE_RUNS if self.quick else self.noise_runs)

    @functools.cached_property
    def is_deterministic(self) -> bool:
        """Return whether eager gives the same bits twice, or raises."""
        return bool(self.runs.eager.failure) or have_same_bits(self.runs.eager, self.again)

    def run_eager(self) -> None:
        """Make every run that needs no compiler: none may be made while a compile is watched."""
        if not (self.runs.eager.failure or self.again.failure):
            _ = (self.runs.reference, self.noisy)

    @property
    def baseline(self) -> Observation:
        """Observation that the compiled program is compared with; that of the eager run itself if eager raises.

        Raises:
            EnvironmentUnfit: the case runs in eager mode and fails as this baseline.
        """
        made = self.runs.baselines
        if self.against not in made:
            made[self.against] = self.runs.eager if self.runs.eager.failure else self._run_baseline()
        return made[self.against]

    def _run_baseline(self) -> Observation:
        made_runs, name = self.runs, self.case.name
        if self._baseline_how is not None:
            observation = run_compiled(made_runs, self._baseline_how, self.counts)
        elif self.against == "float64":
            observation = made_runs.reference
        elif self._is_elsewhere:
            observation = runs.run_eager(self.case, torch.device("cpu"))
        else:
            return made_runs.eager
        if observation.failure:
            raise EnvironmentUnfit(f"{name} cannot be compared with {self.against}: {observation.failure}.")
        if self.against == "float64" and not made_runs.reference_draws_alike:
            raise EnvironmentUnfit(f"{name} cannot be compared with float64: it draws other random numbers there.")
        return observation if self._baseline_how is not None else reshape_like_eager(made_runs.eager, observation)

    @property
    def _baseline_how(self) -> Compilation | None:
        """How the baseline is compiled; None for one that is not."""
        if self.against == "aot_eager":
            return Compilation((TRACE_ONLY,), record=False)
        if self.against in EXPORTED:
            how = self._first_how.without(Backend).under(CompilePath(self.against))
        elif self.against in BASELINES:
            return None
        else:
            how = self._first_how.under(Backend("inductor"), CompilePath(COMPILE), CompileMode(self.against))
        return replace(how, record=False, screen=False)

    @property
    def _is_elsewhere(self) -> bool:
        """Return whether the baseline runs on another device than the case, where it draws other random numbers."""
        return self.against == "cpu" and self.device.type != "cpu"

    @property
    def compares_modes(self) -> bool:
        """Return whether Inductor compiles both sides: a rewrite that is wrong in both makes no difference."""
        return self.against not in BASELINES or self.against == AOTI

    @property
    def baseline_judgement(self) -> Judgement:
        """The judgement on the baseline itself, against eager."""
        return self._change(against="eager").judge(self.baseline)

    @property
    def pair(self) -> str:
        """Kind of pair that both sides form in the table of tolerances."""
        if self._is_elsewhere:
            return "across_devices"
        return {"aot_eager": "across_backends", "float64": "across_dtypes"}.get(self.against, "same_backend")

    @preserve_modes()
    def trial(self, how: Compilation | None = None) -> Trial:
        """Compile the case as ``how`` says (as the experiments judge it, if None), run it and judge what it shows."""
        if how is None:
            say("compiling it")
        how = self.runs.limit_to_interpreted(how or self.how)
        self._prepare()
        start = time.perf_counter()
        self.counts.add(how)
        elsewhere = _run_on_all_ranks(self.case, how)  # functions are sent as they are without the session
        with open_session(self.case.settings, how) as session:
            with elsewhere:
                samples = bool(self.runs.draws) and not is_led()  # seeded runs are made by one process
                compiled = CompiledProgram.compile(self.runs, session, keeps=samples)
                observation = compiled.observe()
            observation = merge_ranks(observation)
            if (parted := _compare_ranks(self.case, session.ledger) if how.record else None) is not None:
                explain_loss(parted)
            graphs = get_effective_setting(self.case.settings, how, "triton.cudagraphs") is True
            if self.device.type == "cuda" and graphs:
                observation = observation.drop_reused_memory(self.runs.eager)
            observation = compiled.adjust_package(observation, self.runs.eager)
            seconds = time.perf_counter() - start
            judgement, sampled, others = self._judge_drawing(compiled, observation, how)
            runtime = self._measure_runtime(how, compiled, observation)
        if self.runs.refuses_kernels(session.ledger):
            return self.trial(how)
        judgement = judgement or self.judge(observation)
        return Trial(how, observation, judgement, session.ledger, seconds, sampled, runtime, others, parted)

    def judge(self, compiled: Observation) -> Judgement:
        """Judge a compiled run against the eager runs and the float64 reference.

        Values that are wrong against the reference with the program's own low-precision casts, and right against the
        reference without them, are merely computed more exactly than the program asks for.
        """
        eager = self.runs.eager
        if current_target() is not None:  # strides are the device's own, and eager ran on the CPU
            compiled = with_eager_strides(eager, compiled)
        if eager.failure or compiled.failure:
            return self._judge_failures(compiled)
        if self.runs.draws and not self.runs.reference_draws_alike:
            judged = replace(self._judge_against(self.baseline, compiled), confidence="low")
            return self._allow_rounding(judged, compiled) or judged
        with_casts = self._judge_against(self.runs.reference, compiled)
        if not with_casts.suspicious or not self.runs.has_low_precision_casts:
            return with_casts
        without_casts = self._judge_against(self.runs.exact, compiled)
        return with_casts if without_casts.suspicious else replace(without_casts, casts_dropped=True)

    def judge_noise(self) -> Iterator[Judgement]:
        """Judge each perturbed eager run as if it had been compiled, beside the others."""
        for run in self.noisy:
            others = tuple(other for other in self.noisy if other is not run)
            yield judge(Observations(self.runs.eager, self.again, self.runs.reference, others, run, self._find_factor))

    def overflows_by_casts(self, compiled: Observation, judged: Judgement) -> bool:
        """Return whether the program's own low-precision casts may make numbers infinite in eager mode alone.

        Eager has no digits then beside a reference without them, and a compiled run that left them out is no bug there.
        """
        if not self.runs.has_low_precision_casts or judged.verdict not in (Verdict.UNSTABLE, Verdict.NONFINITE):
            return False
        return judged.verdict is Verdict.UNSTABLE or not self._judge_against(self.runs.exact, compiled).verdict.is_bug

    def _judge_failures(self, compiled: Observation) -> Judgement:
        """Judge a run where eager mode or compiled code raises.

        What autograd refuses because a saved tensor was written to is no bug if compiled code has saved it elsewhere.
        """
        eager = self.runs.eager
        judged = judge(Observations(eager, eager, eager, (), compiled))
        saved = self.runs.eager_with_saved if judged.verdict is Verdict.ACCEPTS_INVALID else None
        if saved is None:
            return judged
        values = judge(Observations(saved, saved, saved, (), compiled))
        wrong = tuple(c for c in values.comparisons if c.finding not in AGREEING)
        if values.verdict.is_bug and wrong:
            return replace(judged, comparisons=wrong)
        detail = f"eager raises {eager.failure}; compiled computes what eager does from what was there before the write"
        return Judgement(Verdict.INVALID, detail=detail)

    def _allow_rounding(self, judged: Judgement, compiled: Observation) -> Judgement | None:
        """The judgement whose suspicious values have float64's for a reference, as no random numbers are in them.

        None if that allows nothing: the float64 run draws others, which says nothing of what does not depend on them.
        """
        apart = {comparison.name for comparison in judged.suspicious}
        made = self.runs
        if not apart or made.reference.failure or self.baseline is not made.eager or not apart <= made.unmoved:
            return None

        def judge_part(inside: bool, reference: Observation, noisy: Sequence[Observation]) -> Judgement:
            def select(run: Observation) -> Observation:
                return replace(run, values=tuple(value for value in run.values if (value.name in apart) == inside))

            eager, again, exact, shown = map(select, (made.eager, self.again, reference, compiled))
            return judge(Observations(eager, again, exact, [*map(select, noisy)], shown, self._find_factor))

        fixed = judge_part(True, made.reference, made.select_noisy(NOISE_RUNS, alike=False))
        if fixed.verdict not in HARMLESS or fixed.suspicious:
            return None
        rest = judge_part(False, made.eager, self.noisy)
        verdict = fixed.verdict if rest.verdict is Verdict.EQUAL else rest.verdict
        return replace(rest, verdict=verdict, comparisons=(*rest.comparisons, *fixed.comparisons), confidence="low")

    def _judge_against(self, reference: Observation, compiled: Observation) -> Judgement:
        eager, baseline = self.runs.eager, self.baseline
        if baseline is eager:
            return judge(Observations(eager, self.again, reference, self.noisy, compiled, self._find_factor))
        # How far eager is from its substitute is noise like any other, as long as both draw the same numbers.
        noisy = () if self.runs.draws and self._is_elsewhere else (*self.noisy, eager, self.again)
        return judge(Observations(baseline, baseline, reference, noisy, compiled, self._find_factor))

    def _find_factor(self, dtype: torch.dtype) -> float:
        return self.tolerances.for_pair(self.pair, str(dtype)).factor

    def with_noise_runs(self, count: int) -> Self:
        """Experiments that judge by so many perturbed eager runs."""
        return self._change(noise_runs=count)

    def judge_anew(self, compiled: Observation) -> Judgement:
        """Judge a compiled run against eager and float64 runs that are made again, as eager mode is now."""
        return self._change(runs=CaseRuns(self.case, self.device)).judge(compiled)

    @functools.cached_property
    def in_float64(self) -> Judgement | None:
        """The judgement on the program compiled in float64, as ``how`` says.

        None if it cannot run in float64, or draws other random numbers there.
        """
        if self.runs.exact.failure:
            return None
        # Eliding the program's own casts would look like a difference: in float64 they round as ever.
        how = self.how.under(KEPT_CASTS) if self.runs.has_low_precision_casts else self.how
        how = replace(how, record=False)
        compiled = run_compiled(self.runs, how, self.counts, double=True)
        if self._baseline_how is not None:
            expected = run_compiled(self.runs, self._baseline_how, self.counts, double=True)
        else:
            expected = runs.run_eager(self.case, self.device, double=True)
        if compiled.failure or expected.failure:
            return None
        if any(compiled.ends.get(name) != expected.ends.get(name) for name in self.runs.draws):
            return None
        return judge(Observations(expected, expected, expected, self.runs.noisy_in_float64, compiled))

    @property
    def knows_float64(self) -> bool:
        """Return whether these experiments have compiled the program in float64 already."""
        return "in_float64" in vars(self)

    def compile_without_fullgraph(self, backend: str | None = None) -> tuple[Failure | None, tuple[str, ...]]:
        """The case compiled without its ``FULLGRAPH``: how that fails, and why its graph breaks, one line each."""
        how = replace(self.how.without(Backend), record=False)
        how = self.runs.limit_to_interpreted(how.under(Backend(backend)) if backend is not None else how)
        case = replace(self.case, settings=replace(self.case.settings, fullgraph=False))
        with _run_on_all_ranks(case, how), open_session(case.settings, how) as session:
            self.counts.add(how)
            observation = CompiledProgram.compile(self.runs, session).observe()
        return merge_ranks(observation).failure, session.ledger.graph_breaks

    def _prepare(self) -> None:
        """Make every run that judging needs: none may be made while a compile is watched."""
        self.run_eager()
        _ = (self.baseline, self.runs.draws)
        if self.runs.draws and self.runs.has_low_precision_casts:
            _ = self.runs.exact

    def _measure_runtime(self, how: Compilation, compiled: CompiledProgram, observation: Observation) -> float | None:
        if not how.timed or observation.failure:
            return None
        runtime = runs.time_calls(self.case, compiled.program, compiled.target)
        if runtime is not None and replace(how, timed=False, record=True) == replace(self.how, record=True):
            self.counts.runtime = runtime
        return runtime

    # -- programs that draw random numbers --------------------------------------------------------

    def _judge_drawing(
        self, compiled: CompiledProgram, run: Observation, how: Compilation
    ) -> tuple[Judgement | None, tuple[str, ...] | None, bool]:
        """The judgement on a program that draws, what it was sampled for, and whether it draws others than promised.

        It is sampled if values differ and it neither drew eager's random numbers nor promised to. It draws others if
        it promised, left the streams elsewhere than eager does, or has values that are right in their distribution.
        """
        if compiled.kept is None:
            return None, None, False
        judgement, sampled = self.judge(run), None
        failed, alike = run.failure or self.runs.eager.failure, self.runs.draws_alike(run)
        differs = judgement.verdict.is_bug or judgement.verdict is Verdict.UNSTABLE or judgement.suspicious
        bound = how.follows_eager_numbers and (alike or self.runs.promises_eager_numbers)
        if not failed and differs and (self._is_elsewhere or not bound):
            judgement, sampled = self._judge_by_distribution(compiled, run)
        if not self.runs.promises_eager_numbers or not how.follows_eager_numbers or run.failure:
            return judgement, sampled, False
        others = not alike
        if alike and judgement.verdict.is_bug and how.record:
            verdict = self._judge_by_distribution(compiled, run)[0].verdict
            others = not verdict.is_bug or verdict.kind != "values"
        return judgement, sampled, others

    def _judge_by_distribution(self, compiled: CompiledProgram, run: Observation) -> tuple[Judgement, tuple[str, ...]]:
        """Judge values that vary with the seed by their distribution, and all others value by value.

        Returns:
            The judgement, and the names of the values judged by their distribution.
        """
        eager, samples = self.runs.eager_samples, []
        compiled.session.stop_capturing()
        for observation in compiled.observe_seeds(_COMPILED_SEEDS):
            if observation.failure and len(eager) == random_streams.SEEDS:
                return self.judge(observation), ()  # no further run is made after a failure that settles it
            if not observation.failure:
                samples.append(self.runs.sample(observation))
        names = random_streams.find_varying(eager, [self.runs.sample(run), *samples])
        if min(len(eager), len(samples)) < random_streams.FEWEST:
            return Judgement(Verdict.UNSTABLE, detail="random, and fails under most seeds", confidence="low"), names
        differences = random_streams.find_differences(eager, samples)
        if differences:
            seeded = compiled.observe_seeds(_COMPILED_SEEDS_AGAIN)  # other seeds have to show a difference as well
            again = [self.runs.sample(observation) for observation in seeded if not observation.failure]
            shown = {each.name for each in random_streams.find_differences(self.runs.more_eager_samples, again)}
            differences = [difference for difference in differences if difference.name in shown]
        by_value = self.judge(with_eager_values(self.baseline, run, names))
        return _combine(by_value, names, differences), names


def _combine(
    by_value: Judgement, names: tuple[str, ...], differences: list[random_streams.DistributionDifference]
) -> Judgement:
    comparisons = tuple(random_streams.apply_distribution(each, names, differences) for each in by_value.comparisons)
    if not differences:
        if by_value.verdict.is_bug:  # which no random number decides
            return replace(by_value, comparisons=comparisons)
        verdict = Verdict.ROUNDING if by_value.verdict is Verdict.EQUAL else by_value.verdict
        return replace(by_value, verdict=verdict, comparisons=comparisons, confidence="low")
    gradients = all(difference.kind == "gradient" for difference in differences) and not by_value.verdict.is_bug
    verdict = Verdict.WRONG_GRADIENT if gradients else Verdict.MISCOMPILE
    return Judgement(verdict, comparisons, f"{differences[0].name}: {differences[0]}", confidence="low")


def _choose_random_stream(case: Case, how: Compilation) -> Compilation:
    """``how`` with the case's own choice of random stream, if it makes one; else eager's, so that values compare."""
    asked = case.settings.own_config.get("fallback_random")
    return how if asked is None else how.under(InductorSettings({"fallback_random": bool(asked)}))


def _check_baseline(case: Case, against: str, how: Compilation) -> None:
    check_against(against, list_modes())
    if against == AOTI and case.backward:
        raise UsageError(f"AOTInductor computes no gradients, and {case.name} needs some; compare it with {EXPORT!r}.")
    own = find_path(case.settings, how)
    if own in EXPORTED and against == own:
        raise UsageError(f"{case.name} is run by {against!r} itself; name another way to compare with.")
    if own == EAGER and against != "eager":
        raise UsageError(f"{case.name} runs in eager mode alone (PATH): leave out --against {against}.")
    is_inductor = case.settings.backend == "inductor" and own == COMPILE
    if against not in BASELINES and is_inductor and against == (case.settings.mode or "default"):
        raise UsageError(f"{case.name} is compiled in mode {against!r} itself; name another mode to compare with.")
