"""A campaign on this machine: corpus, pool of workers, engine, handler, and a clean end."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fuzzcompile import __version__
from fuzzcompile.campaign.budget import Budget, Clock
from fuzzcompile.campaign.drawing import Variations
from fuzzcompile.campaign.engine import Engine
from fuzzcompile.campaign.events import Event, Finished, WorkerActivity
from fuzzcompile.campaign.interrupts import sigterm_interrupts
from fuzzcompile.campaign.profiles import for_this_torch
from fuzzcompile.campaign.settings import CampaignSettings
from fuzzcompile.case import source_hash
from fuzzcompile.corpus import Campaign, CorpusError, Store
from fuzzcompile.errors import CaseError, EnvironmentUnfit
from fuzzcompile.execution.device import Numerics, resolve
from fuzzcompile.execution.environment import cxx_compiler, describe
from fuzzcompile.execution.pool import WorkerFailed, WorkerPool, WorkerStartFailed
from fuzzcompile.generation import Profile
from fuzzcompile.plants import check_plants
from fuzzcompile.variations import survey
from fuzzcompile.worker.conditions import Conditions
from fuzzcompile.worker.lost import unstartable
from fuzzcompile.worker.pool import default_workers, open_pool


def run_campaign(
    settings: CampaignSettings,
    conditions: Conditions,
    *,
    location: str | None,
    command: str,
    on_event: Callable[[Event], object],
    clock: Clock | None = None,
) -> Finished:
    """Run a campaign to its end or until it is interrupted (Ctrl-C, SIGTERM), and summarise it.

    ``clock`` runs since the start of the command; by default, the budget begins now.

    Raises:
        CorpusError: the corpus cannot be opened or written.
        EnvironmentUnfit: no worker can be started.
    """
    clock = clock or Clock(settings.budget)
    environment = describe(resolve(settings.device), settings.target)
    with Store.open(location) as store:
        campaign = store.start_campaign(Campaign(settings.seed, _settings(settings), command, __version__, environment))
        pool = open_pool(conditions, settings.workers)
        engine = Engine(
            settings,
            store,
            pool,
            environment,
            campaign=campaign,
            clock=clock,
            describe_workers=lambda: _activity(pool),
        )
        interrupted = False
        try:
            with sigterm_interrupts(), closing(engine.run()) as events:
                for event in events:
                    on_event(event)
        except KeyboardInterrupt:
            interrupted = True
        except CorpusError:  # nothing more can be stored, why the campaign ended included
            raise
        except BaseException:  # whatever ended it, the corpus must say so
            engine.fail()
            raise
        finally:
            pool.kill_workers()
        return engine.finish(interrupted=interrupted)


def settings_here(
    conditions: Conditions, budget: Budget, *, workers: int | None = None, near_misses: bool = True, **asked: Any
) -> CampaignSettings:
    """The settings of a campaign on this machine under ``conditions``; ``asked`` are further fields of them.

    Raises:
        EnvironmentUnfit: there is no such device, or no C++ compiler, which compiling for the CPU takes.
        UsageError: a plant cannot be read.
    """
    check_plants(conditions.plants)
    device = resolve(conditions.device)
    if device.type == "cpu" and cxx_compiler() is None:
        raise EnvironmentUnfit(
            "There is no C++ compiler, which torch.compile needs on the CPU; install g++ or point CXX at one."
        )
    return CampaignSettings(
        budget=budget,
        profile=for_this_torch(Profile(near_misses=near_misses), conditions.target),
        device=conditions.device if conditions.device != "auto" else device.type,
        workers=workers or default_workers(conditions.device),
        torch=torch.__version__,
        vetoes=conditions.vetoes,
        plants=tuple(source_hash(path.read_text(encoding="utf-8"))[:12] for path in conditions.plants),
        case_seconds=conditions.limits.seconds,
        target=conditions.target,
        **asked,
    )


def survey_case(path: Path, conditions: Conditions) -> Variations:
    """Variations of the case file at ``path``; a worker process finds out what of it can be varied.

    Raises:
        CaseError: it is not a case file, or it fails, crashes or hangs in eager mode.
        EnvironmentUnfit: there is no such device, or no worker can be started.
    """
    with open_pool(replace(conditions, plants=()), 1) as pool:
        try:
            return Variations(pool.submit(survey, str(path), str(resolve(conditions.device))).result())
        except WorkerStartFailed as error:
            raise unstartable(error) from error
        except WorkerFailed as error:
            raise CaseError(f"{path} cannot be varied: in eager mode it {error}; fix it first.") from error


def _settings(settings: CampaignSettings) -> dict[str, object]:
    return {
        "budget": str(settings.budget),
        "device": settings.device,
        "target": settings.target,
        "workers": settings.workers,
        "near_misses": settings.profile.near_misses,
        "mix": settings.mix,
        "source": settings.drawn_from.name or "generator",
        **settings.conditions,
        "max_findings": settings.max_findings,
        "stream": settings.stream,
        "numerics": Numerics().to_json(),
    }


def _activity(pool: WorkerPool) -> list[WorkerActivity]:
    """What the pool's workers do, for display."""
    now = time.monotonic()
    return [
        WorkerActivity(
            state.slot,
            state.device,
            state.task if state.ready else state.task or "starting",
            now - state.busy_since if state.busy_since is not None else 0.0,
        )
        for state in pool.workers()
    ]
