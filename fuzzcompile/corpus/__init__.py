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
    Reproducer,
    Seed,
    StoredCampaign,
    StoredCoverage,
    StreamRun,
    compiler_of,
    public_id,
)
from fuzzcompile.corpus.severity import severity
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
    "Reproducer",
    "Seed",
    "Store",
    "StoredCampaign",
    "StoredCoverage",
    "StreamRun",
    "UnknownFindingError",
    "campaign_seconds",
    "compiler_of",
    "moment_at",
    "public_id",
    "severity",
]
