"""Baselines that the compiled program is compared with, and one run of a compiled program."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from fuzzcompile.compiler.compile_changes import Backend, CompileMode, CompilePath, InductorSettings
from fuzzcompile.compiler.session import Compilation, CompileSession, find_path, list_modes, open_session
from fuzzcompile.compiler.watch.ledger import Unseen
from fuzzcompile.diagnosis.oracle.judgement import reshape_like_eager
from fuzzcompile.diagnosis.trials.case_runs import CaseRun, CaseRuns, CompileCounts
from fuzzcompile.model.conditions import BASELINES, check_against
from fuzzcompile.model.contract import AOTI, COMPILE, EXPORT
from fuzzcompile.model.errors import EnvironmentUnfit, UsageError
from fuzzcompile.model.stages import RUNTIME
from fuzzcompile.run import runs
from fuzzcompile.run import runs as seeds
from fuzzcompile.run.case import Case
from fuzzcompile.run.case_program import CaseProgram, build
from fuzzcompile.run.observation import Observation

# A program while it is compiled: run under its own seed, or under many.

_COPIED_STATE = Unseen(
    "memory", "an AOTInductor package has copies of it", (RUNTIME,), "outputs that share the memory of parameters"
)


@dataclass(frozen=True)
class CompiledProgram:
    """A compiled program, callable while its session lasts; ``kept`` is the state that seeded runs begin from."""

    case: Case
    program: CaseProgram
    target: Callable[..., object]
    session: CompileSession
    kept: seeds.SavedTensors | None

    def observe(self) -> Observation:
        """Run it under the case's own seed."""
        return runs.observe(self.case, self.program, self.target, describe_failure=self.session.describe_failure)

    def with_own_state(self, observation: Observation, eager: Observation) -> Observation:
        """The run of a package, without the memory that its outputs cannot share with the model; others as they are."""
        if find_path(self.session.settings, self.session.how) != AOTI:
            return observation
        adjusted = observation.copy_aliases(eager, self.program.collect_tensors())
        if adjusted != observation:
            self.session.ledger.unseen.note(_COPIED_STATE)
        return adjusted

    def observe_seeds(self, numbers: Sequence[int]) -> Iterator[Observation]:
        """Run it once under each of the seeds ``numbers``, from the state that was kept."""
        assert self.kept is not None
        describe = self.session.describe_failure
        return seeds.observe_seeds(self.case, self.program, self.target, self.kept, numbers, describe_failure=describe)


def run_compiled(of: CaseRuns, how: Compilation, counts: CompileCounts, *, double: bool = False) -> CaseRun:
    """Compile the case as ``how`` says, count the compile, and run it once, in float64 if ``double``."""
    with open_session(of.case.settings, of.limit_to_interpreted(how)) as session:
        counts.compiles += 1
        program = build(of.case, of.device, double=double)
        compiled = CompiledProgram(of.case, program, session.compile(program.model), session, None)
        observation = compiled.observe()
        run = CaseRun.finish(observation if double else compiled.with_own_state(observation, of.eager))
    return run_compiled(of, how, counts, double=double) if of.refuses_kernels(session.ledger) else run


def choose_random_stream(case: Case, how: Compilation) -> Compilation:
    """``how`` with the case's own choice of random stream, if it makes one; else eager's, so that values compare."""
    asked = {**case.settings.inductor, **case.settings.options}.get("fallback_random")
    return how if asked is None else how.under(InductorSettings({"fallback_random": bool(asked)}))


class BaselineRun:
    """The run that compiled is compared with, made on first use.

    Args:
        runs: the runs of the case.
        against: one of :data:`BASELINES` or a mode of ``torch.compile``, as :func:`check_baseline` admits it.
        how: how the case is compiled for the verdict; a baseline in another mode differs in nothing else.
        counts: where a compile of the baseline is counted.
    """

    def __init__(self, runs: CaseRuns, against: str, how: Compilation, counts: CompileCounts) -> None:
        self.against = against
        self._runs, self._how, self._counts = runs, how, counts

    def of(self, runs: CaseRuns) -> BaselineRun:
        """The same baseline of other runs of the case."""
        return BaselineRun(runs, self.against, self._how, self._counts)

    @functools.cached_property
    def observation(self) -> Observation:
        """Observation of the baseline; that of the eager run itself if eager raises.

        Raises:
            EnvironmentUnfit: the case runs in eager mode and fails as this baseline.
        """
        eager = self._runs.eager
        if eager.failure or not self._is_run_of_its_own:
            return eager
        observation = self._observe()
        name = self._runs.case.name
        if observation.failure:
            raise EnvironmentUnfit(f"{name} cannot be compared with {self.against}: {observation.failure}.")
        if self.against == "float64" and not self._runs.reference_draws_alike:
            raise EnvironmentUnfit(f"{name} cannot be compared with float64: it draws other random numbers there.")
        return reshape_like_eager(eager, observation) if self.against in ("float64", "cpu") else observation

    @property
    def compilation(self) -> Compilation | None:
        """Compilation of the baseline; None for a baseline that runs in eager mode."""
        if self.against == "aot_eager":
            return Compilation((Backend("aot_eager"),), record=False)
        if self.against in (EXPORT, AOTI):
            how = self._how.without(Backend).under(CompilePath(self.against))
            return replace(how, record=False, screen=False)
        if self.against in BASELINES:
            return None
        how = self._how.under(Backend("inductor"), CompilePath(COMPILE), CompileMode(self.against))
        return replace(how, record=False, screen=False)

    @property
    def pair(self) -> str:
        """Kind of pair that this baseline and Inductor form in the table of tolerances."""
        if self.against == "cpu" and self._runs.device.type != "cpu":
            return "across_devices"
        return {"aot_eager": "across_backends", "float64": "across_dtypes"}.get(self.against, "same_backend")

    @property
    def draws_on_this_device(self) -> bool:
        """Return whether the baseline draws its random numbers on the device of the case, as eager does."""
        return not (self._runs.draws and self.against == "cpu" and self._runs.device.type != "cpu")

    @property
    def _is_run_of_its_own(self) -> bool:
        return self.against != "eager" and not (self.against == "cpu" and self._runs.device.type == "cpu")

    def _observe(self) -> Observation:
        if self.against == "float64":
            return self._runs.reference
        if self.against == "cpu":
            return runs.run_eager(self._runs.case, torch.device("cpu"))
        assert self.compilation is not None
        return run_compiled(self._runs, self.compilation, self._counts).observation


def check_baseline(case: Case, against: str, how: Compilation) -> None:
    """Refuse a baseline that this case, compiled so, cannot have.

    Raises:
        UsageError: ``against`` is unknown, or is how the case itself is compiled; AOTInductor computes no gradients.
    """
    check_against(against, list_modes())
    if against == AOTI and case.backward:
        raise UsageError(f"AOTInductor computes no gradients, and {case.name} needs some; compare it with {EXPORT!r}.")
    own = find_path(case.settings, how)
    if own in (EXPORT, AOTI) and against == own:
        raise UsageError(f"{case.name} is run by {against!r} itself; name another way to compare with.")
    is_inductor = case.settings.backend == "inductor" and own == COMPILE
    if against not in BASELINES and is_inductor and against == (case.settings.mode or "default"):
        raise UsageError(f"{case.name} is compiled in mode {against!r} itself; name another mode to compare with.")
