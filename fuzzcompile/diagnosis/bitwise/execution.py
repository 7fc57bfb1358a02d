"""Watched executions of a case under the strict settings: the values that every kernel wrote in each run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch

from fuzzcompile.compiler.compile_changes import InductorSettings, Lowered, Veto
from fuzzcompile.compiler.kernels.lowering_control import EVERYTHING, UNCHANGED, Control
from fuzzcompile.compiler.session import Compilation, open_session
from fuzzcompile.compiler.torch_config import MISSING, get_setting
from fuzzcompile.compiler.watch.ledger import Ledger
from fuzzcompile.diagnosis.attribution.steps import ReplayCount
from fuzzcompile.diagnosis.kernels.watched_graph import WatchedGraph
from fuzzcompile.model.facts import facts
from fuzzcompile.run.case import Case
from fuzzcompile.run.case_program import CaseProgram, build
from fuzzcompile.run.observation import Failure, Observation
from fuzzcompile.run.runs import SavedTensors, observe

_HOW = Compilation(kernels=True)
SHOWN = Control(realised=(EVERYTHING,), stored=True)
"""Every operator has a buffer of its own, so that a kernel shows what each of its operators gave."""
# No kernel writes into a buffer that it reads, or what was there could not be seen afterwards.
_APART = {"inplace_buffers": False, "allow_buffer_reuse": False}


class BitwiseOutOfTime(Exception):
    """No further compile may be begun."""


@dataclass(frozen=True)
class Execution:
    """One compile of a case, and what it showed in each run of the same compiled program.

    ``calls`` is how often each graph had been called after each run, in the order of ``ledger.lowered``.
    """

    ledger: Ledger
    runs: tuple[Observation, ...]
    calls: tuple[tuple[int, ...], ...]

    @property
    def first(self) -> Observation:
        """The first run."""
        return self.runs[0]


@dataclass
class StrictCompiler:
    """Makes the executions of a case under the strict settings, and counts compiles and replays.

    ``vetoes`` are rewrites that are refused throughout; ``deadline`` is a value of ``time.monotonic()``.
    """

    case: Case
    device: torch.device
    vetoes: tuple[str, ...] = ()
    deadline: float | None = None
    compiles: int = 0
    count: ReplayCount = field(default_factory=ReplayCount)

    @property
    def is_late(self) -> bool:
        """Return whether no further compile may be begun."""
        return self.deadline is not None and time.monotonic() > self.deadline

    def execute(self, *, case: Case | None = None, control: Control = UNCHANGED, runs: int = 1) -> Execution:
        """Compile the case, or another form of it, and run it ``runs`` times, each time from the same state.

        Raises:
            BitwiseOutOfTime: the deadline has passed.
        """
        if self.is_late:
            raise BitwiseOutOfTime
        case = case or self.case
        self.compiles += 1
        apart = [InductorSettings(_APART)] if control.stored else []
        how = _HOW.under(Veto(tuple(self.vetoes)), Lowered(control), *apart)
        observations, calls = list[Observation](), list[tuple[int, ...]]()
        with open_session(case.settings, how) as session:
            program = build(case, self.device)
            compiled = session.compile(program.model)
            for observation in self._run(case, program, compiled, runs, session.describe_failure):
                observations.append(observation)
                calls.append(tuple(len(lowered.calls) for lowered in session.ledger.lowered))
        return Execution(session.ledger, tuple(observations), tuple(calls))

    def run_eager(self, *, case: Case | None = None, runs: int = 1) -> list[Observation]:
        """Run the same built program ``runs`` times in eager mode, each time from the same state."""
        case = case or self.case
        program = build(case, self.device)
        return list(self._run(case, program, program.model, runs))

    def list_watched_graphs(self, execution: Execution) -> list[WatchedGraph]:
        """The lowered graphs with the calls of the first run, as far as they can be evaluated."""
        ledger = execution.ledger
        calls = zip(ledger.lowered, execution.calls[0], strict=False)
        every = [WatchedGraph(ledger, lowered, self.count, number) for lowered, made in calls for number in range(made)]
        return [look for look in every if look.is_usable]

    def _run(
        self,
        case: Case,
        program: CaseProgram,
        target: Callable[..., object],
        runs: int,
        describe_failure: Callable[[BaseException], Failure] | None = None,
    ) -> Iterator[Observation]:
        kept = SavedTensors(case, program, self.device)
        for number in range(runs):
            if number:
                kept.restore()
            yield observe(case, program, target, describe_failure=describe_failure)


@dataclass(frozen=True)
class StrictRuns:
    """The runs that every promise is judged by: two in eager mode, and one compile, run twice."""

    compiler: StrictCompiler
    eager: Observation
    again: Observation
    compiled: Execution


# The settings under which torch promises equal bits, as far as the installed torch has them.


def strict_settings() -> dict[str, object]:
    """Entries of ``torch._inductor.config`` and their values, those that the installed torch has."""
    wanted = facts().bitwise.settings
    named = {entry: text for entry, text in wanted.items() if get_setting(entry) is not MISSING}
    return {entry: text == "True" if text in ("True", "False") else text for entry, text in named.items()}


def describe_promises() -> dict[str, str]:
    """Map each of the settings to torch's words on it."""
    promises = facts().bitwise.promises
    return {entry: promises[entry] for entry in strict_settings() if entry in promises}


def apply_contract(case: Case) -> Case:
    """The case compiled under the strict settings, which replace its own values of the same entries."""
    strict = strict_settings()
    own: Mapping[str, object] = case.settings.options
    options = {entry: value for entry, value in own.items() if entry not in strict}
    inductor = {**case.settings.inductor, **strict}
    return replace(case, settings=replace(case.settings, options=options, inductor=inductor))


def list_replaced_settings(case: Case) -> tuple[str, ...]:
    """Entries that the case itself sets to other values than the contract does."""
    own = {**case.settings.inductor, **case.settings.options}
    return tuple(entry for entry, value in strict_settings().items() if own.get(entry, value) != value)
