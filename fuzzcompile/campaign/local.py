"""A campaign from its first case to its end: corpus, workers, engine, handler, and a clean end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace

from fuzzcompile import __version__
from fuzzcompile.campaign.ahead import drawing_ahead
from fuzzcompile.campaign.budget import Clock
from fuzzcompile.campaign.crew import Crew
from fuzzcompile.campaign.drawing import Source
from fuzzcompile.campaign.engine import Engine
from fuzzcompile.campaign.events import Event, Finished
from fuzzcompile.campaign.interrupts import sigterm_interrupts
from fuzzcompile.campaign.settings import CampaignSettings
from fuzzcompile.corpus import Campaign, CorpusError, Store
from fuzzcompile.errors import EnvironmentUnfit


def run_campaign(
    settings: CampaignSettings,
    crew: Crew,
    *,
    location: str | None,
    command: str,
    on_event: Callable[[Event], object],
    clock: Clock | None = None,
) -> Finished:
    """Run a campaign to its end or until it is interrupted (Ctrl-C, SIGTERM), and summarise it.

    Its workers have ended when it returns. ``clock`` runs since the start of the command; by default, the budget begins
    now. If the machine can compile no more, the summary says why (``Finished.why``).

    Raises:
        CorpusError: the corpus cannot be opened or written.
    """
    environment = crew.surroundings.environment
    with Store.open(location) as store, _drawing_ahead(settings, crew) as source:
        settings = replace(settings, source=source)
        kept = {**_settings(settings), "numerics": dict(crew.surroundings.numerics)}
        campaign = store.start_campaign(Campaign(settings.seed, kept, command, __version__, environment))
        engine = Engine(
            settings,
            store,
            crew.pool,
            environment,
            campaign=campaign,
            clock=clock,
            describe_workers=crew.activity,
            cluster=crew.cluster,
        )
        interrupted, why = False, None
        try:
            with sigterm_interrupts(), closing(engine.run()) as events:
                for event in events:
                    on_event(event)
        except KeyboardInterrupt:
            interrupted = True
        except CorpusError:  # nothing more can be stored, why the campaign ended included
            raise
        except EnvironmentUnfit as error:
            why = str(error)
        except BaseException:  # whatever ended it, the corpus must say so
            engine.fail()
            raise
        finally:
            crew.pool.kill_workers()
        return engine.finish(interrupted=interrupted, why=why)


def _drawing_ahead(settings: CampaignSettings, crew: Crew) -> AbstractContextManager[Source | None]:
    """Return the source, drawn ahead where there are many workers; a focus depends on results, and is not."""
    if settings.focus is not None:
        return nullcontext(settings.source)
    return drawing_ahead(settings.drawn_from, settings.strategy.candidates, lambda: crew.pool.capacity)


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
    }
