"""Unfinished work of a campaign whose time is up: kept in the corpus, and done by the next campaign."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuzzcompile.campaign.drawing import Drawn
from fuzzcompile.corpus import Finding, FindingSummary, Store, StoredCampaign
from fuzzcompile.oracle.verdicts import Verdict


@dataclass(frozen=True)
class LeftCase:
    """A case that was cut off while it was judged; ``index`` is its place in the stream, None outside of the stream.

    ``verdict`` is the verdict before the proof began; None if there was no verdict yet.
    """

    case: Drawn
    index: int | None
    screen: bool = False
    verdict: str | None = None

    @property
    def shows_bug(self) -> bool:
        """True if the case had shown a bug before its proof was cut off."""
        return self.verdict is not None and Verdict(self.verdict).is_bug

    def to_json(self) -> dict[str, object]:
        """Return plain data as the corpus keeps it."""
        case = self.case
        return {
            "index": self.index,
            "screen": self.screen,
            "verdict": self.verdict,
            "source": case.source,
            "origin": case.origin,
            "features": list(case.features),
            "choices": case.choices.hex(),
            "spec": case.spec,
            "idioms": list(case.idioms),
            "near_misses": list(case.near_misses),
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> LeftCase:
        """Return the case from the data of `to_json`."""
        case = Drawn(
            kept["source"],
            kept["origin"],
            tuple(kept["features"]),
            bytes.fromhex(kept["choices"]),
            kept["spec"],
            tuple(kept["idioms"]),
            tuple(kept["near_misses"]),
        )
        return cls(case, kept["index"], kept["screen"], kept["verdict"])


@dataclass(frozen=True)
class LeftOver:
    """Work that a campaign leaves to the next one: cases, and signatures of findings that wait to be minimized.

    ``given_up`` are the signatures of findings that no campaign tries again: minimizing them cost a worker or raised.
    """

    cases: Sequence[LeftCase] = ()
    findings: Sequence[str] = ()
    given_up: Sequence[str] = ()

    def to_json(self) -> dict[str, object]:
        """Return plain data as the corpus keeps it, among the counters of the campaign."""
        cases = [case.to_json() for case in self.cases]
        return {"cases": cases, "findings": list(self.findings), "given_up": list(self.given_up)}


def left_cases(store: Store, stream: str, campaign: int) -> list[LeftCase]:
    """Return cases that ended campaigns of this stream left over, and that no campaign has judged since.

    ``campaign`` is the calling one, whose own heartbeats contain the cases that it has begun.
    """
    living = store.living() | {campaign}
    kept = [
        LeftCase.from_json(entry)
        for earlier in store.campaigns()
        if earlier.settings.get("stream") == stream and earlier.id not in living
        for entry in _left_by(earlier).get("cases", ())
    ]
    placed = any(left.index is not None for left in kept)
    judged = store.recorded_indices(stream) if placed else set()  # a million places take a second to read
    waiting = {
        left.case.sha256: left
        for left in kept
        if (left.index not in judged if left.index is not None else not store.has_source(left.case.sha256))
    }
    return list(waiting.values())


def left_findings(store: Store, settings: Mapping[str, object], environment: Mapping[str, object]) -> list[str]:
    """Return the findings that earlier campaigns left to be minimized, worst first.

    Args:
        store: the open corpus.
        settings: of the calling campaign, as the corpus keeps them: only campaigns with the same vetoes, plants and
            passes and backend of the user's own count.
        environment: in which the calling campaign runs.
    """
    living = store.living()
    alike = [
        _left_by(campaign)
        for campaign in store.campaigns()
        if campaign.id not in living
        and all(campaign.settings.get(name) == settings.get(name) for name in ("vetoes", "plants", "custom"))
    ]
    left, given_up = (
        {store.finding_of(signature) for entry in alike for signature in entry.get(name, ())}
        for name in ("findings", "given_up")
    )
    return [finding.public_id for finding in pending(store, environment) if finding.public_id in left - given_up]


def pending(store: Store, environment: Mapping[str, object]) -> list[FindingSummary]:
    """Return the findings that wait for a reproducer and may be run (`fuzzcompile.corpus.trusting`), worst first."""
    return [finding for finding in waiting(store, environment) if finding.trusted]


def waiting(store: Store, environment: Mapping[str, object]) -> list[FindingSummary]:
    """Return open findings without a reproducer that this torch showed on this device or target, worst first."""
    torch = environment["torch"]
    device = environment.get("target") or str(environment.get("device")).partition(":")[0]
    return [
        finding
        for finding in store.summaries("open")
        if finding.reproducer_lines is None and torch in finding.torch_versions and device in finding.devices
    ]


def drawn_of(store: Store, finding: Finding) -> Drawn:
    """Return the case of a finding, with its recipe where the corpus has it."""
    kept = store.case(finding.source_sha256)
    if kept is None:
        return Drawn(finding.source, "user")
    return Drawn(
        finding.source,
        kept.origin,
        tuple(kept.features),
        kept.choices or b"",
        kept.spec,
        tuple(map(str, kept.idioms)),
        tuple(map(str, kept.near_misses)),
    )


def _left_by(campaign: StoredCampaign) -> Mapping[str, Any]:
    left = campaign.counters.get("left_over")
    return left if isinstance(left, Mapping) else {}
