"""``fuzzcompile minimize --pending``: a campaign that judges no cases of its own."""

from __future__ import annotations

from pathlib import Path

import click

from fuzzcompile import hints
from fuzzcompile.cli.subjects import may_run
from fuzzcompile.errors import EnvironmentUnfit
from fuzzcompile.worker.conditions import Conditions


def minimize_pending(
    budget: str, conditions: Conditions, location: str | None, log: Path | None, *, trusted: bool
) -> int:
    """Minimize the findings of the corpus that have no reproducer, and summarise what became of them.

    Those of another corpus are left out until they are ``trusted``.

    Raises:
        UntrustedError: all that wait come from another corpus.
        UsageError: ``budget`` is no time.
        CorpusError: there is no such corpus.
        EnvironmentUnfit: the machine can compile no more.
    """
    from fuzzcompile.campaign.budget import Budget, Clock, seconds_of
    from fuzzcompile.corpus import Store

    clock = Clock(Budget(seconds=seconds_of(budget, "minimize --budget")))
    with Store.open(location, create=False) as store:  # before a worker is started: there may be none
        waiting = [finding for finding in store.summaries("open") if finding.reproducer_lines is None]
        if trusted or not any(finding.trusted for finding in waiting):
            may_run(store, waiting, trusted=trusted)
    from rich.console import Console

    from fuzzcompile.campaign.crew import started
    from fuzzcompile.campaign.local import run_campaign
    from fuzzcompile.campaign.outputs import CampaignOutputs
    from fuzzcompile.campaign.terminal import print_summary, progress_handler, starting
    from fuzzcompile.generation import Profile
    from fuzzcompile.worker.pool import default_workers

    outputs = CampaignOutputs(log, None, None, location)
    workers = default_workers(conditions.device)
    click.echo(starting(workers), err=True)
    with outputs, started(conditions, workers, clock) as crew, progress_handler(Console(stderr=True)) as handler:
        summary = run_campaign(
            crew.settings(Profile(), clock, seed=0, judges=False),
            crew,
            location=location,
            command=hints.typed(),
            on_event=outputs.before(handler.handle),
            clock=clock,
        )
        outputs.finish(summary)
    print_summary(Console(), summary, conditions.options(), judges=False)
    if summary.why is not None:
        raise EnvironmentUnfit(summary.why)
    return 0
