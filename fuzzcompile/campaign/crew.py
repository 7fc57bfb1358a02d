"""The workers of a campaign. They describe the machine, because the campaign's own process imports no torch."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as NotInTime
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuzzcompile import hints
from fuzzcompile.campaign.budget import Clock, clock
from fuzzcompile.campaign.drawing import Generator, Variations
from fuzzcompile.campaign.events import WorkerActivity
from fuzzcompile.campaign.focused import Focused
from fuzzcompile.campaign.operators import reading_tables
from fuzzcompile.campaign.profiles import fitted
from fuzzcompile.campaign.settings import CampaignSettings
from fuzzcompile.cluster.address import ClusterAddress
from fuzzcompile.cluster.joining import join
from fuzzcompile.custom import Custom
from fuzzcompile.errors import CaseError, EnvironmentUnfit, UsageError, message_of
from fuzzcompile.execution.named import installed_torch
from fuzzcompile.execution.pool import WorkerFailed, WorkerStartFailed
from fuzzcompile.execution.task_pool import TaskPool
from fuzzcompile.focusing.plan import FocusQuestion, Plan
from fuzzcompile.generation import Profile
from fuzzcompile.generation.patterned import PatternProgram
from fuzzcompile.plants import check_plants
from fuzzcompile.signatures import source_hash
from fuzzcompile.worker.conditions import Conditions
from fuzzcompile.worker.lost import unstartable
from fuzzcompile.worker.pool import open_pool
from fuzzcompile.worker.tasks import DESCRIBE, FOCUS, PATTERNS, SURVEY, PatternTask, Surroundings

if TYPE_CHECKING:
    from fuzzcompile.cluster.pool import ClusterPool

# The most seconds that making programs for a focus may take before the first case.
_PREPARING = 120.0


@dataclass(frozen=True)
class Crew:
    """Started workers: their pool, their conditions, their number, and where they run.

    ``cluster`` is the pool again, if it is a cluster; ``surroundings`` are then those of its first worker.
    """

    pool: TaskPool
    conditions: Conditions
    workers: int
    surroundings: Surroundings
    cluster: ClusterPool | None = None

    def check_torch_here(self, what: str) -> None:
        """Refuse ``what``, which reads the torch that is installed here, if the workers run another version.

        Raises:
            UsageError: the versions differ.
        """
        here, there = installed_torch(), str(self.surroundings.environment["torch"])
        if here != there:
            raise UsageError(
                f"{what} reads the torch of this machine, which is {here or 'not installed'}, and the cluster runs "
                f"torch {there}: install that here."
            )

    def settings(self, profile: Profile, clock: Clock, **asked: Any) -> CampaignSettings:
        """Return the settings of a campaign with these workers; ``asked`` are further fields of the settings."""
        conditions, around = self.conditions, self.surroundings
        return CampaignSettings(
            budget=clock.budget,
            profile=fitted(profile, around.lacks, conditions.target),
            device=conditions.device if conditions.device != "auto" else around.device,
            workers=self.workers,
            torch=str(around.environment["torch"]),
            vetoes=conditions.vetoes,
            plants=tuple(source_hash(path.read_text(encoding="utf-8"))[:12] for path in conditions.plants),
            case_seconds=conditions.limits.seconds,
            target=conditions.target,
            custom=around.custom,
            **asked,
        )

    @contextmanager
    def focused(
        self, question: FocusQuestion, profile: Profile, clock: Clock, seed: int, *, sweeps: bool
    ) -> Iterator[Focused]:
        """Yield the source of a focus: workers resolve its names in their torch, and make programs from the rules.

        Making programs takes at most a quarter of the budget; rules without a program by then are left out. With
        ``sweeps``, operators get cases from torch's own tables; a separate process writes them until the block ends.

        Raises:
            UsageError: a name means nothing or several things, nothing that is aimed at can fire here, or ``sweeps`` is
                given and no operator is aimed at.
            EnvironmentUnfit: no worker answers within the budget, or the tables cannot be imported.
        """
        asked = replace(question, target=self.conditions.target)
        try:
            plan = self.pool.schedule(FOCUS, (asked,), label="look up the focus").result(timeout=clock.timeout)
        except NotInTime as error:
            raise EnvironmentUnfit("No worker had said what the focus means when the budget was over.") from error
        except WorkerFailed as error:
            raise EnvironmentUnfit(f"Looking up the focus, the worker {error}.") from error
        generator = Generator(fitted(profile, self.surroundings.lacks, self.conditions.target))
        operators = [aim.label for aim in plan.reachable if aim.kind == "operator"]
        if sweeps and not operators:
            raise UsageError("--source opinfo sweeps operators: focus on one, by its label or a line of its lowering.")
        with reading_tables() if sweeps else nullcontext() as tables:
            programs, notes = self._programs(plan, clock)
            plan = replace(plan, notes=(*plan.notes, *notes))
            swept = tables(seed, clock) if tables is not None else None
            narrowed = {label: swept.of_overload(label) for label in operators} if swept is not None else {}
            found = {label: sweep for label, sweep in narrowed.items() if sweep.size}
            yield Focused(plan, generator, programs, found)

    def _programs(self, plan: Plan, clock: Clock) -> tuple[Sequence[PatternProgram], list[str]]:
        """Return programs for the rules of a plan, and sentences on the rules for which none could be made.

        A program that a worker is still making when the time is over is added to the list once it is made.
        """
        sources = list(dict.fromkeys(rule for aim in plan.reachable for rule in aim.sources))
        share = min(_PREPARING, 0.25 * clock.remaining)  # endless for a budget of cases
        programs: list[PatternProgram] = []
        making = {
            self.pool.schedule(PATTERNS, (PatternTask((rule,)),), label=f"make programs for {rule[1]}"): rule[1]
            for rule in sources
        }
        for future in making:
            future.add_done_callback(lambda made: None if _failed(made) else programs.extend(made.result()))
        done, late = wait(making, timeout=share)
        cancelled = [future for future in late if future.cancel()]
        notes = [
            f"{making[future]}: its programs cannot be made: {message_of(error)}."
            for future in done
            if (error := future.exception()) is not None
        ]
        if cancelled:
            notes.append(
                f"no program was made for {len(cancelled)} of {len(sources)} rules in the {share:.0f} s for it."
            )
        return programs, notes

    def activity(self) -> list[WorkerActivity]:
        """Return the current activity of each worker, for display."""
        now = time.monotonic()
        return [
            WorkerActivity(
                state.slot,
                state.device,
                state.task if state.ready else state.task or "starting",
                now - state.busy_since if state.busy_since is not None else 0.0,
            )
            for state in self.pool.workers()
        ]


@contextmanager
def started(conditions: Conditions, workers: int, budget: Clock) -> Iterator[Crew]:
    """Start workers and let one of them describe the machine; at the end of the block, kill them.

    Raises:
        EnvironmentUnfit: no worker can be started, or none starts within the budget.
        UsageError: a plant raises, or a pass or backend of the user's own cannot be used.
    """
    check_plants(conditions.plants)
    pool = open_pool(conditions, workers)
    try:
        told = pool.schedule(DESCRIBE, (conditions.target,), label="describe the machine")
        try:
            around = told.result(timeout=budget.timeout)
        except NotInTime as error:
            raise EnvironmentUnfit(
                f"No worker had started after {clock(budget.elapsed)}, when the budget was over: importing torch and "
                "registering its patterns takes longer than that here. Give more."
            ) from error
        except WorkerStartFailed as error:
            raise unstartable(error) from error
        except WorkerFailed as error:
            raise EnvironmentUnfit(f"The first worker {error}; run `{hints.command('doctor')}`.") from error
        yield Crew(pool, conditions, workers, around)
    finally:
        pool.kill_workers()


@contextmanager
def gathered(
    address: ClusterAddress, conditions: Conditions, most: int | None, budget: Clock, *, torch: str | None = None
) -> Iterator[Crew]:
    """Join a cluster, and wait for a first worker that fits; at the end of the block, leave it.

    Args:
        address: the cluster.
        conditions: how cases run.
        most: how many cases to submit at once; None for as many as its workers take.
        budget: the campaign's.
        torch: the version that workers must have; None for the one that most of them have.

    Raises:
        EnvironmentUnfit: Dask is not installed, no scheduler answers, or no worker fits within a minute or the budget.
        UsageError: a plant raises, or something of the user's own cannot be sent or used.
    """
    check_plants(conditions.plants)
    pool = join(address, conditions, torch=torch, most=most)
    try:
        around = pool.gathered(budget.timeout)
        yield Crew(pool, conditions, pool.capacity, around, pool)
    finally:
        pool.kill_workers()


def survey_case(path: Path, conditions: Conditions, budget: Clock) -> Variations:
    """Return variations of the case file at ``path``; a worker process finds out which parts of it can be varied.

    Raises:
        CaseError: it is not a case file, or it fails, crashes or hangs in eager mode.
        EnvironmentUnfit: there is no such device, no worker can be started, or the budget ends before it has answered.
    """
    with open_pool(replace(conditions, plants=(), custom=Custom()), 1) as pool:
        try:
            return Variations(pool.submit(SURVEY, str(path)).result(timeout=budget.timeout))
        except NotInTime as error:
            raise EnvironmentUnfit(f"{path} had not run in eager mode when the budget was over. Give more.") from error
        except WorkerStartFailed as error:
            raise unstartable(error) from error
        except WorkerFailed as error:
            raise CaseError(f"{path} cannot be varied: in eager mode it {error}; fix it first.") from error


def _failed(future: Future[tuple[PatternProgram, ...]]) -> bool:
    return future.cancelled() or future.exception() is not None
