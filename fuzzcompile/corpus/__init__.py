"""The store of campaigns, cases, findings, reproducers and coverage, in SQLite or another database."""

from fuzzcompile.corpus.clock import campaign_seconds, moment_at
from fuzzcompile.corpus.failures import CorpusError, FolderTakenError, UnknownFindingError
from fuzzcompile.corpus.records import (
    Campaign,
    CaseRecord,
    Counters,
    Coverage,
    Ended,
    Finding,
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
    "Campaign",
    "CaseRecord",
    "CorpusError",
    "Counters",
    "Coverage",
    "Ended",
    "Finding",
    "FolderTakenError",
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
    "campaign_seconds",
    "compiler_of",
    "moment_at",
    "public_id",
]
