"""A campaign on this machine: corpus, pool of workers, engine, handler, and a clean end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import FrameType

from fuzzcompile import __version__
from fuzzcompile.campaign.drawing import Variations
from fuzzcompile.campaign.engine import Engine
from fuzzcompile.campaign.events import Finished
from fuzzcompile.campaign.pool import Limits, activity, open_pool
from fuzzcompile.campaign.settings import CampaignSettings
from fuzzcompile.campaign.terminal import Handler
from fuzzcompile.corpus import Campaign, Store
from fuzzcompile.errors import CaseError, EnvironmentUnfit
from fuzzcompile.execution.device import Numerics, resolve
from fuzzcompile.execution.environment import describe
from fuzzcompile.execution.pool import WorkerFailed, WorkerStartFailed
from fuzzcompile.variations import survey


def run_campaign(
    settings: CampaignSettings,
    *,
    location: str | None,
    plants: Sequence[Path],
    limits: Limits,
    command: str,
    handler: Handler,
) -> Finished:
    """Run a campaign to its end or until it is interrupted (Ctrl-C, SIGTERM), and summarise it.

    Raises:
        CorpusError: the corpus cannot be opened or written.
        EnvironmentUnfit: no worker can be started.
    """
    environment = describe(resolve(settings.device))
    with Store.open(location) as store:
        campaign = store.start_campaign(Campaign(settings.seed, _settings(settings), command, __version__, environment))
        pool = open_pool(settings.device, settings.workers, plants=plants, limits=limits)
        engine = Engine(settings, store, pool, environment, campaign=campaign, describe_workers=lambda: activity(pool))
        interrupted = False
        try:
            with _sigterm_interrupts(), closing(engine.run()) as events:
                for event in events:
                    handler.handle(event)
        except KeyboardInterrupt:
            interrupted = True
        except BaseException:
            engine.fail()
            raise
        finally:
            pool.kill_workers()
        return engine.finish(interrupted=interrupted)


def survey_case(path: Path, device: str, limits: Limits) -> Variations:
    """Variations of the case file at ``path``; what of it can be varied is found out in a worker process.

    Raises:
        CaseError: it is no case file, or it fails, crashes or does not end in eager mode.
        EnvironmentUnfit: there is no such device, or no worker can be started.
    """
    with open_pool(device, 1, limits=limits) as pool:
        try:
            return Variations(pool.submit(survey, str(path), str(resolve(device))).result())
        except WorkerStartFailed as error:
            raise EnvironmentUnfit(f"No worker can be started: {error}. Run `fuzzcompile doctor`.") from error
        except WorkerFailed as error:
            raise CaseError(f"{path} cannot be varied: in eager mode it {error}; mend it first.") from error


def _settings(settings: CampaignSettings) -> dict[str, object]:
    return {
        "budget": str(settings.budget),
        "device": settings.device,
        "workers": settings.workers,
        "near_misses": settings.profile.near_misses,
        "mix": settings.mix,
        "source": settings.drawn_from.name or "generator",
        "vetoes": list(settings.vetoes),
        "max_findings": settings.max_findings,
        "stream": settings.stream,
        "numerics": Numerics().to_json(),
    }


class _sigterm_interrupts:  # noqa: N801 - used as a context manager, like contextlib's
    """Within the block SIGTERM acts as Ctrl-C does, so that a stopped campaign ends with its summary."""

    def __enter__(self) -> None:
        self._before = None
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, _interrupt)

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
