"""The corpus as the rest of the program sees it: records in, records out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from fuzzcompile.corpus import exporting, queries, reached, recording
from fuzzcompile.corpus.connection import connect, integrity, mendable_errors, writing
from fuzzcompile.corpus.location import describe, file_of, require_file, resolve
from fuzzcompile.corpus.models import CampaignRow, FindingRow
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
)
from fuzzcompile.corpus.schema import bring_up_to_date


class Store:
    """An open corpus. Each call is one transaction: when it has returned, a kill loses nothing of it.

    Threads may share a store, and processes may open the same corpus; a process that was forked
    opens its own.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._writing = writing(engine)

    @classmethod
    def open(cls, location: str | os.PathLike[str] | None = None, *, create: bool = True) -> Store:
        """Open a path or URL, else ``FUZZCOMPILE_CORPUS``, else ``corpus/fuzzcompile.db``.

        The schema is created or upgraded as needed; ``create=False`` insists that a corpus is there.
        Raises CorpusError, whose message says what to do.
        """
        url = resolve(location)
        path = file_of(url)
        if path is not None:
            require_file(path, create=create)
        engine = connect(url)
        try:
            with mendable_errors(url):
                bring_up_to_date(engine, create=create)
        except BaseException:
            engine.dispose()
            raise
        return cls(engine)

    @property
    def location(self) -> str:
        """The path, or the URL without its password: what to show, and to give to ``--corpus``."""
        return describe(self._engine.url)

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start_campaign(self, campaign: Campaign) -> int:
        """Store that a campaign begins."""
        with self._write() as session:
            row = CampaignRow(
                environment_id=recording.put_environment(session, campaign.environment),
                seed=campaign.seed,
                settings=recording.plain(campaign.settings),
                command=campaign.command,
                fuzzcompile_version=campaign.fuzzcompile_version,
                counters={},
                started=recording.now(),
            )
            row.last_heard = row.started
            session.add(row)
            session.flush()
            return row.id

    def heartbeat(self, campaign_id: int, counters: Mapping[str, Any]) -> None:
        """Keep the counters of a running campaign, so that a killed one still shows them."""
        with self._write() as session:
            row = _campaign(session, campaign_id)
            row.counters, row.last_heard = recording.plain(counters), recording.now()

    def finish_campaign(self, campaign_id: int, counters: Mapping[str, Any], ended: Ended) -> None:
        """Store how a campaign ended."""
        with self._write() as session:
            row = _campaign(session, campaign_id)
            row.counters, row.ended = recording.plain(counters), ended
            row.last_heard = row.finished = recording.now()

    def campaigns(self) -> list[StoredCampaign]:
        """Every campaign, oldest first."""
        with self._read() as session:
            return queries.campaigns(session)

    def recorded_indices(self, stream: str) -> set[int]:
        """The places of a stream that were judged, by this campaign or an earlier one."""
        with self._read() as session:
            return queries.recorded_indices(session, stream)

    def has_source(self, sha256: str, stream: str | None = None) -> bool:
        """Whether a case of that hash was judged, in ``stream`` or (None) in any."""
        with self._read() as session:
            return queries.has_source(session, sha256, stream)

    def case(self, sha256: str) -> CaseRecord | None:
        """The stored case of that hash, with its recipe; None where there is none."""
        with self._read() as session:
            return queries.case(session, sha256)

    def environment_of(self, finding: str | int) -> dict[str, Any]:
        """The environment in which a finding's best run was made."""
        with self._read() as session:
            return queries.environment_of(session, queries.finding_id(session, finding))

    def record(
        self,
        campaign_id: int | None,
        case: CaseRecord,
        environment: Mapping[str, Any],
        report: Mapping[str, Any],
        coverage: Sequence[Coverage] = (),
        *,
        screened: bool = False,
    ) -> Recorded:
        """Store a judged case: case, environment, run, finding and coverage, all or nothing.

        Raises ValueError for a bug without signature, an environment without torch, and NaN.
        """
        recording.check_report(report)
        with self._write() as session:
            return recording.put_run(session, campaign_id, case, environment, report, coverage, screened)

    def add_reproducer(self, finding: str | int, reproducer: Reproducer) -> int:
        """Store a reproducer of a finding; the same script again replaces what was known of it."""
        with self._write() as session:
            key = queries.finding_id(session, finding)
            return recording.put_reproducer(session, key, reproducer)

    def best_reproducer(self, finding: str | int) -> Reproducer | None:
        """A confirmed one before others, then the one with the fewest lines."""
        with self._read() as session:
            return queries.best_reproducer(session, queries.finding_id(session, finding))

    def findings(self, status: str | None = None, *, campaign_id: int | None = None) -> list[Finding]:
        """All findings, or those of a status or hit by a campaign; oldest first."""
        conditions = [] if status is None else [FindingRow.status == status]
        if campaign_id is not None:
            conditions.append(queries.hit_by(campaign_id))
        with self._read() as session:
            return queries.findings(session, *conditions)

    def finding(self, name: str | int) -> Finding:
        """The finding with this id (3, "3", "F3"), signature, or beginning of a signature.

        Raises UnknownFindingError, which names what there is.
        """
        with self._read() as session:
            key = queries.finding_id(session, name)
            return queries.findings(session, FindingRow.id == key)[0]

    def counters(
        self, stream: str | None = None, *, torch_version: str | None = None, until: datetime | None = None
    ) -> Counters:
        """What the whole corpus holds, or one stream of it, what is of one torch, or of campaigns until a moment."""
        with self._read() as session:
            return queries.counters(session, stream, torch_version, until)

    def coverage(self, torch_version: str | None = None, *, until: datetime | None = None) -> list[StoredCoverage]:
        """What was reached, under every torch or one: rewrites, decompositions, lowerings and kernels.

        With ``until``, only what a case that campaigns had judged by then was the first to reach; the counts stay
        those of the whole corpus.
        """
        with self._read() as session:
            return reached.coverage(session, torch_version, until)

    def stream_runs(self, stream: str, torch_version: str) -> list[StreamRun]:
        """The judged cases of a stream in its order, and what each was the first to reach under that torch."""
        with self._read() as session:
            return queries.stream_runs(session, stream, torch_version)

    def seeds(self, torch_version: str, profile: Mapping[str, Any], *, limit: int = 64) -> list[Seed]:
        """Generated cases of that profile that were first to reach something, those that reached most first."""
        with self._read() as session:
            return queries.seeds(session, torch_version, profile, limit)

    def export(self, finding: str | int, folder: str | os.PathLike[str]) -> list[Path]:
        """Write ``case.py``, ``repro.py``, ``neighbour.py`` (where there are such) and ``finding.json``.

        Raises FolderTakenError rather than overwrite what is not of this finding.
        """
        found = self.finding(finding)
        return exporting.export(found, self.best_reproducer(found.id), Path(folder))

    def integrity(self) -> str:
        """``ok``, or what is wrong with the database."""
        return integrity(self._engine)

    @contextmanager
    def _read(self) -> Iterator[Session]:
        with mendable_errors(self._engine.url), Session(self._engine) as session:
            yield session

    @contextmanager
    def _write(self) -> Iterator[Session]:
        with mendable_errors(self._engine.url), Session(self._writing) as session, session.begin():
            yield session


def _campaign(session: Session, campaign_id: int) -> CampaignRow:
    row = session.get(CampaignRow, campaign_id)
    if row is None:
        raise ValueError(f"there is no campaign {campaign_id}")
    return row
