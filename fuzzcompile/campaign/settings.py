"""The settings of a campaign."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fuzzcompile.campaign.budget import Budget
from fuzzcompile.campaign.drawing import Generator, Source
from fuzzcompile.campaign.focused import Focused
from fuzzcompile.campaign.steering import UNIFORM, Mix, Strategy
from fuzzcompile.custom import Loaded
from fuzzcompile.focusing.plan import Plan
from fuzzcompile.generation import Profile


@dataclass(frozen=True)
class CampaignSettings:
    """The settings of a campaign.

    Attributes:
        budget: the time or number of cases after which to stop.
        seed: names the stream of cases, with the settings that `stream` lists.
        profile: the generator's settings.
        device: as the user named it, ``auto`` resolved.
        workers: how many cases run at once.
        torch: the installed version.
        vetoes: rewrites to refuse in every case.
        plants: hashes of the files that plant bugs.
        case_seconds: time of one case.
        max_findings: stop after this many new findings.
        minimize_seconds: time of one minimization.
        drafts: folder for issue drafts.
        mix: screen cases, judge them in full, or both.
        strategy: the parameters of steering.
        source: the source of cases; None for the generator under ``profile``.
        target: the device that the compiler is told; None for the one that runs.
        judges: True to judge cases; otherwise only findings of the corpus are minimized.
        custom: the user's own passes and backend.
    """

    budget: Budget
    seed: int
    profile: Profile
    device: str
    workers: int
    torch: str
    vetoes: tuple[str, ...] = ()
    plants: tuple[str, ...] = ()
    case_seconds: float = 180.0
    max_findings: int | None = None
    minimize_seconds: float = 120.0
    drafts: Path = Path("reports/drafts")
    mix: Mix = "mixed"
    strategy: Strategy = field(default_factory=Strategy)
    source: Source | None = None
    target: str | None = None
    judges: bool = True
    custom: tuple[Loaded, ...] = ()

    @property
    def stream(self) -> str:
        """The key of the seeded sequence of cases, under which the corpus keeps judged indices."""
        drawn = self.drawn_from.name
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

    @property
    def focus(self) -> Plan | None:
        """The plan of the focus; None for a campaign without one."""
        return self.source.plan if isinstance(self.source, Focused) else None

    @property
    def drawn_from(self) -> Source:
        """The source of cases, by default the generator."""
        return self.source if self.source is not None else Generator(self.profile)
