"""Watched executions of a case under the strict settings: what every kernel wrote, over one or several runs."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch

from fuzzcompile.attribution.replays import ReplayCount
from fuzzcompile.case import Case
from fuzzcompile.compiler.kernels.control import EVERYTHING, UNCHANGED, Control
from fuzzcompile.compiler.ledger import Ledger
from fuzzcompile.compiler.session import Compilation, compiling
from fuzzcompile.execution.building import build
from fuzzcompile.execution.observation import Observation
from fuzzcompile.execution.runs import observe
from fuzzcompile.execution.seeds import Kept
from fuzzcompile.stages.kernels.examined import Examined

_HOW = Compilation(kernels=True)
SHOWN = Control(realised=(EVERYTHING,), stored=True)
"""Every operator has a buffer of its own, so that a kernel shows what each of its operators gave."""
# No kernel writes into a buffer that it reads, or what was there could not be seen afterwards.
_APART = {"inplace_buffers": False, "allow_buffer_reuse": False}


class OutOfTime(Exception):
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

    def looks(self, count: ReplayCount) -> list[Examined]:
        """The lowered graphs with the calls of the first run, as far as they can be evaluated."""
        calls = zip(self.ledger.lowered, self.calls[0], strict=False)
        every = [Examined(self.ledger, lowered, count, number) for lowered, made in calls for number in range(made)]
        return [look for look in every if look.usable]


@dataclass
class Compiles:
    """Makes the executions, and counts them.

    Attributes:
        case: the case under the strict settings.
        device: where it runs.
        vetoes: rewrites that are refused throughout.
        deadline: value of ``time.monotonic()`` after which no further compile is begun.
        count: how many compiles were made.
    """

    case: Case
    device: torch.device
    vetoes: tuple[str, ...] = ()
    deadline: float | None = None
    count: int = 0

    @property
    def late(self) -> bool:
        """Return whether no further compile may be begun."""
        return self.deadline is not None and time.monotonic() > self.deadline

    def execute(self, *, case: Case | None = None, control: Control = UNCHANGED, runs: int = 1) -> Execution:
        """Compile a case and run it ``runs`` times, each time from the same state.

        Args:
            case: another form of the case; the case itself by default.
            control: what to change behind the graph passes.
            runs: how often the compiled program runs.

        Raises:
            OutOfTime: the deadline has passed.
        """
        if self.late:
            raise OutOfTime
        case = case or self.case
        self.count += 1
        config = _APART if control.stored else None
        how = replace(_HOW, vetoes=self.vetoes, control=control, config=config)
        observations, calls = list[Observation](), list[tuple[int, ...]]()
        with compiling(case.settings, how) as session:
            program = build(case, self.device)
            kept = Kept(case, program, self.device)
            target = session.compile(program.model)
            for number in range(runs):
                if number:
                    kept.restore()
                observations.append(observe(case, program, target, describe_failure=session.describe_failure))
                calls.append(tuple(len(lowered.calls) for lowered in session.ledger.lowered))
        return Execution(session.ledger, tuple(observations), tuple(calls))

    def run_eagerly(self, *, case: Case | None = None, runs: int = 1) -> list[Observation]:
        """Run the same built program ``runs`` times in eager mode, each time from the same state."""
        case = case or self.case
        program = build(case, self.device)
        kept = Kept(case, program, self.device)
        observations = []
        for number in range(runs):
            if number:
                kept.restore()
            observations.append(observe(case, program, program.model))
        return observations
