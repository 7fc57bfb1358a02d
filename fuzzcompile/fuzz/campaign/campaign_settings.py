"""The settings of a campaign."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fuzzcompile.fuzz.campaign.budget import CampaignBudget
from fuzzcompile.fuzz.campaign.case_sources import CaseSource, GeneratorSource
from fuzzcompile.fuzz.campaign.focus_steering import FocusSource
from fuzzcompile.fuzz.campaign.steering import UNIFORM, Mix, Strategy
from fuzzcompile.fuzz.generation.profile import Profile
from fuzzcompile.model.custom import LoadedCustom
from fuzzcompile.model.focus_plan import FocusPlan


@dataclass(frozen=True)
class CampaignSettings:
    """The settings of a campaign.

    ``seed`` names the stream of cases, with the settings that `stream` lists; ``source`` is that of the cases (None:
    the generator under ``profile``). ``device`` is as the user named it, ``auto`` resolved, and ``target`` the device
    that the compiler is told, if it is not the one that runs. ``vetoes`` are rewrites to refuse, ``plants`` hashes of
    files that plant bugs, ``custom`` the user's own passes and backend. ``max_findings`` counts new ones. Without
    ``judges``, only findings of the corpus are minimized.
    """

    budget: CampaignBudget
    seed: int
    profile: Profile
    device: str
    workers: int
    torch: str
    vetoes: tuple[str, ...] = ()
    plants: tuple[str, ...] = ()
    case_seconds: float = 180.0
    max_findings: int | None = None
    drafts: Path = Path("reports/drafts")
    mix: Mix = "mixed"
    strategy: Strategy = field(default_factory=Strategy)
    source: CaseSource | None = None
    target: str | None = None
    judges: bool = True
    custom: tuple[LoadedCustom, ...] = ()

    @property
    def stream(self) -> str:
        """The key of the seeded sequence of cases, under which the corpus keeps judged indices."""
        drawn = self.case_source.name
        source = f" {drawn}" if drawn else ""
        how = "" if self.mix == "mixed" else f" {self.mix}-only"
        steered = " unsteered" if self.strategy == UNIFORM else ""
        vetoes = "".join(f" veto={name}" for name in sorted(self.vetoes))
        plants = "".join(f" plant={name}" for name in sorted(self.plants))
        own = "".join(f" {loaded.key}" for loaded in self.custom)
        device = self.device.split(":")[0] + (f" target={self.target}" if self.target is not None else "")
        return f"seed={self.seed} torch={self.torch} device={device}{source}{how}{steered}{vetoes}{plants}{own}"

    @property
    def conditions(self) -> dict[str, object]:
        """The settings that change the compiler's own behaviour, as the corpus keeps them."""
        own = {"custom": [loaded.key for loaded in self.custom]} if self.custom else {}
        return {"vetoes": list(self.vetoes), "plants": list(self.plants), **own}

    def to_json(self) -> dict[str, object]:
        """Return the settings as the corpus keeps them."""
        return {
            "budget": str(self.budget),
            "device": self.device,
            "target": self.target,
            "workers": self.workers,
            "near_misses": self.profile.near_misses,
            "mix": self.mix,
            "source": self.case_source.name or "generator",
            **self.conditions,
            "max_findings": self.max_findings,
            "stream": self.stream,
        }

    @property
    def focus(self) -> FocusPlan | None:
        """The plan of the focus; None for a campaign without one."""
        return self.source.plan if isinstance(self.source, FocusSource) else None

    @property
    def case_source(self) -> CaseSource:
        """The source of cases, by default the generator."""
        return self.source if self.source is not None else GeneratorSource(self.profile)
