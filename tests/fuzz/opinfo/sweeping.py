"""A campaign over torch's own operators with a bug planted."""

from __future__ import annotations

from pathlib import Path

from fuzzcompile.fuzz.campaign.budget import BudgetClock, CampaignBudget
from fuzzcompile.fuzz.campaign.campaign_events import Finished
from fuzzcompile.fuzz.campaign.campaign_run import run_campaign, start_workers
from fuzzcompile.fuzz.campaign.case_sources import open_tables
from fuzzcompile.fuzz.campaign.steering import UNIFORM
from fuzzcompile.fuzz.generation.profile import Profile
from fuzzcompile.model.conditions import Conditions


def sweep_planted(folder: Path, plant: str, operator: str, budget: str, *, eager: bool = False) -> Finished:
    """The summary of a campaign over one operator; another one in the same folder goes on with it."""
    (folder / "plant.py").write_text(plant)
    conditions, clock = (
        Conditions(device="cpu", plants=(folder / "plant.py",)),
        BudgetClock(CampaignBudget.parse(budget)),
    )
    with open_tables((operator,), eager=eager) as tables, start_workers(conditions, 1, clock) as started:
        settings = started.make_settings(
            Profile(),
            clock,
            seed=0,
            mix="full" if eager else "screen",
            strategy=UNIFORM,
            source=tables(0, clock),
            drafts=folder / "drafts",
        )
        return run_campaign(settings, started, location=str(folder / "corpus"), command="test", clock=clock)
