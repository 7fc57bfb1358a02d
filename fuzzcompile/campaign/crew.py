"""The workers of a campaign, and what they say of the machine: the campaign's own process imports no torch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import TimeoutError as NotInTime
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fuzzcompile import hints
from fuzzcompile.campaign.budget import Clock, clock
from fuzzcompile.campaign.drawing import Variations
from fuzzcompile.campaign.events import WorkerActivity
from fuzzcompile.campaign.profiles import fitted
from fuzzcompile.campaign.settings import CampaignSettings
from fuzzcompile.custom import Custom
from fuzzcompile.errors import CaseError, EnvironmentUnfit
from fuzzcompile.execution.pool import WorkerFailed, WorkerPool, WorkerStartFailed
from fuzzcompile.generation import Profile
from fuzzcompile.plants import check_plants
from fuzzcompile.signatures import source_hash
from fuzzcompile.worker.conditions import Conditions
from fuzzcompile.worker.lost import unstartable
from fuzzcompile.worker.pool import open_pool
from fuzzcompile.worker.tasks import DESCRIBE, SURVEY, Surroundings


@dataclass(frozen=True)
class Crew:
    """Workers that have started under ``conditions``, how many, and where they run."""

    pool: WorkerPool
    conditions: Conditions
    workers: int
    surroundings: Surroundings

    def settings(self, profile: Profile, clock: Clock, **asked: Any) -> CampaignSettings:
        """The settings of a campaign with these workers; ``asked`` are further fields of them."""
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

    def activity(self) -> list[WorkerActivity]:
        """What the workers do, for display."""
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
    """Start workers and hear from one of them where they run; at the end of the block, kill them.

    Raises:
        EnvironmentUnfit: no worker can be started, or none starts within the budget.
        UsageError: a plant raises, or a pass or backend of the user's own cannot be used.
    """
    check_plants(conditions.plants)
    pool = open_pool(conditions, workers)
    try:
        told = pool.schedule(DESCRIBE, (conditions.target,), label="describe the machine")
        try:
            around = told.result(timeout=_left(budget))
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


def _left(budget: Clock) -> float | None:
    """Seconds that are left to wait; None for as long as it takes."""
    return None if budget.budget.seconds is None else budget.remaining


def survey_case(path: Path, conditions: Conditions, budget: Clock) -> Variations:
    """Variations of the case file at ``path``; a worker process finds out what of it can be varied.

    Raises:
        CaseError: it is not a case file, or it fails, crashes or hangs in eager mode.
        EnvironmentUnfit: there is no such device, no worker can be started, or the budget ends before it has answered.
    """
    with open_pool(replace(conditions, plants=(), custom=Custom()), 1) as pool:
        try:
            return Variations(pool.submit(SURVEY, str(path)).result(timeout=_left(budget)))
        except NotInTime as error:
            raise EnvironmentUnfit(f"{path} had not run in eager mode when the budget was over. Give more.") from error
        except WorkerStartFailed as error:
            raise unstartable(error) from error
        except WorkerFailed as error:
            raise CaseError(f"{path} cannot be varied: in eager mode it {error}; fix it first.") from error
