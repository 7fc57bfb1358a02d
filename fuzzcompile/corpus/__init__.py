"""The store of campaigns, cases, findings, reproducers and coverage, in SQLite or another database."""

from __future__ import annotations

from fuzzcompile.corpus.claiming import PLACES, part_of
from fuzzcompile.corpus.clock import campaign_seconds, moment_at
from fuzzcompile.corpus.failures import CorpusError, FolderTakenError, UnknownFindingError, UntrustedError
from fuzzcompile.corpus.marking import Mark
from fuzzcompile.corpus.records import (
    Campaign,
    CaseRecord,
    Counters,
    Coverage,
    Ended,
    Finding,
    FindingSummary,
    Kept,
    Recorded,
    Related,
    Replay,
    Reproducer,
    Seed,
    Status,
    StoredCampaign,
    StoredCoverage,
    StoredReplay,
    StreamRun,
    Umbrella,
    compiler_of,
    public_id,
)
from fuzzcompile.corpus.store import Store

__all__ = [
    "PLACES",
    "Campaign",
    "CaseRecord",
    "CorpusError",
    "Counters",
    "Coverage",
    "Ended",
    "Finding",
    "FindingSummary",
    "FolderTakenError",
    "Kept",
    "Mark",
    "Recorded",
    "Related",
    "Replay",
    "Reproducer",
    "Seed",
    "Status",
    "Store",
    "StoredCampaign",
    "StoredCoverage",
    "StoredReplay",
    "StreamRun",
    "Umbrella",
    "UnknownFindingError",
    "UntrustedError",
    "campaign_seconds",
    "compiler_of",
    "moment_at",
    "part_of",
    "public_id",
]
