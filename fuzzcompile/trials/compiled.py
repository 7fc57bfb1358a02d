"""A program while it is compiled: run under its own seed, or under many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from fuzzcompile.case import Case
from fuzzcompile.compiler.session import Compilation, Session, compiling, path_of
from fuzzcompile.compiler.unseen import Unseen
from fuzzcompile.execution import runs, seeds
from fuzzcompile.execution.building import Program, build
from fuzzcompile.execution.observation import Observation
from fuzzcompile.sides import AOTI
from fuzzcompile.stage_names import RUNTIME
from fuzzcompile.trials.runs import Runs
from fuzzcompile.trials.trial import Counts, Run

_COPIED_STATE = Unseen(
    "memory", "an AOTInductor package has copies of it", (RUNTIME,), "outputs that share the memory of parameters"
)


@dataclass(frozen=True)
class Compiled:
    """A compiled program, callable while its session lasts; ``kept`` is the state that seeded runs begin from."""

    case: Case
    program: Program
    target: Callable[..., object]
    session: Session
    kept: seeds.Kept | None

    def observe(self) -> Observation:
        """Run it under the case's own seed."""
        return runs.observe(self.case, self.program, self.target, describe_failure=self.session.describe_failure)

    def with_own_state(self, observation: Observation, eager: Observation) -> Observation:
        """The run of a package, without the memory that its outputs cannot share with the model; others as they are."""
        if path_of(self.session.settings, self.session.how) != AOTI:
            return observation
        adjusted = observation.sharing_as(eager, self.program.tensors())
        if adjusted != observation:
            self.session.ledger.unseen.note(_COPIED_STATE)
        return adjusted

    def observe_seeds(self, numbers: Sequence[int]) -> Iterator[Observation]:
        """Run it once under each of the seeds ``numbers``, from the state that was kept."""
        assert self.kept is not None
        describe = self.session.describe_failure
        return seeds.observe_seeds(self.case, self.program, self.target, self.kept, numbers, describe_failure=describe)


def compiled_run(of: Runs, how: Compilation, counts: Counts, *, double: bool = False) -> Run:
    """Compile the case as ``how`` says, count the compile, and run it once, in float64 if ``double``."""
    with compiling(of.case.settings, of.as_far_as_interpreted(how)) as session:
        counts.compiles += 1
        program = build(of.case, of.device, double=double)
        compiled = Compiled(of.case, program, session.compile(program.model), session, None)
        observation = compiled.observe()
        run = Run.ended(observation if double else compiled.with_own_state(observation, of.eager))
    return compiled_run(of, how, counts, double=double) if of.refuses_kernels(session.ledger) else run


def as_asked(case: Case, how: Compilation) -> Compilation:
    """``how`` with the case's own choice of random stream, if it makes one; else eager's, so that values compare."""
    asked = {**case.settings.inductor, **case.settings.options}.get("fallback_random")
    return how if asked is None else replace(how, fallback_random=bool(asked))
