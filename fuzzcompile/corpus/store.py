"""The corpus as the rest of the program sees it: records in, records out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self
from uuid import uuid4

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from fuzzcompile.corpus import export as exporting
from fuzzcompile.corpus import imports, maintenance, transactions
from fuzzcompile.corpus import queries as trusting
from fuzzcompile.corpus.connection import connect, keep_trying, shrink, writes
from fuzzcompile.corpus.imports import Arrived, Copied, Duplicate, Export, put_export, put_finding, settle_duplicates
from fuzzcompile.corpus.location import describe, find_file, require_file, resolve
from fuzzcompile.corpus.maintenance import Freed, bring_up_to_date
from fuzzcompile.corpus.models import CampaignRow, FindingRow, RunRow
from fuzzcompile.corpus.queries import finding_id
from fuzzcompile.corpus.reader import Reader
from fuzzcompile.corpus.records import (
    Campaign,
    CaseRecord,
    Coverage,
    Ended,
    Related,
    Replay,
    Reproducer,
    StoredReport,
    StoredReproducer,
    public_id,
)
from fuzzcompile.corpus.transactions import Mark, put_mark
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.settings import read_settings

if TYPE_CHECKING:
    from fuzzcompile.model.contract import ReportJson


class Store(Reader):
    """An open corpus. Each call is one transaction: once it has returned, a kill loses nothing of it.

    A call that is made again, because the server was lost meanwhile, stores nothing twice. Threads may share a store,
    and processes may open the same corpus; a process that was forked opens its own.
    """

    @classmethod
    def open(
        cls, location: str | os.PathLike[str] | None = None, *, create: bool = True, patience: float | None = None
    ) -> Store:
        """Open a path or URL, else ``FUZZCOMPILE_CORPUS``, else ``corpus/fuzzcompile.db``.

        The schema is created or upgraded as needed; ``create=False`` insists that a corpus is there. A server that is
        lost later is waited for, ``patience`` seconds at most (default: the setting of that name).

        Raises:
            CorpusError: the corpus cannot be opened; the message says what to do.
        """
        url = resolve(location)
        path = find_file(url)
        if path is not None:
            require_file(path, create=create)
        waits = float(str(read_settings().find_value("patience"))) if patience is None else patience
        engine = connect(url)
        try:
            keep_trying(lambda: bring_up_to_date(engine, create=create), describe(url), waits, opening=True)
        except BaseException:  # an interrupt must not leave connections open either
            engine.dispose()
            raise
        return cls(engine, waits)

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def start_campaign(self, campaign: Campaign) -> int:
        """Store that a campaign begins; return its row's id."""
        return self.write(transactions.put_campaign, campaign, uuid4().hex)

    @writes
    def heartbeat(self, session: Session, campaign_id: int, counters: Mapping[str, object]) -> int:
        """Keep the counters of a running campaign, so that a killed one still shows them.

        Returns:
            The part of its stream that it judges from now on (`fuzzcompile.corpus.transactions`).
        """
        return transactions.hear(session, _campaign(session, campaign_id), counters)

    @writes
    def finish_campaign(self, session: Session, campaign_id: int, counters: Mapping[str, object], ended: Ended) -> None:
        """Store how a campaign ended."""
        row = _campaign(session, campaign_id)
        row.counters, row.ended = transactions.plain(counters), ended
        row.last_heard = row.finished = transactions.present(session)

    def record(
        self,
        campaign_id: int | None,
        case: CaseRecord,
        environment: Mapping[str, object],
        report: ReportJson,
        coverage: Sequence[Coverage] = (),
        *,
        screened: bool = False,
        token: str | None = None,
    ) -> StoredReport:
        """Store a judged case: case, environment, run, finding and coverage, all or nothing.

        Of calls with the same ``token``, the first stores it; the others return what it stored.

        Raises:
            ValueError: a bug has no signature, the environment no torch, or a number is NaN or infinite.
        """
        return self.write(
            transactions.put_run, campaign_id, case, environment, report, coverage,
            screened=screened, token=token or uuid4().hex,
        )  # fmt: skip

    @writes
    def add_reproducer(
        self, session: Session, finding: str | int, reproducer: Reproducer, *, replaces: str | None = None
    ) -> StoredReproducer:
        """Store a reproducer of a finding; a script that is already stored is updated.

        A confirmed one settles what the finding is: a coarse signature becomes the refined one of its report, and
        findings that are thereby seen to be the same bug are merged. The answer says which finding is left.
        ``replaces`` is the hash of the finding's own script or case, if that was judged anew to make this one; what it
        shows now is what the finding is, whatever its signature was.
        """
        return transactions.put_reproducer(session, finding_id(session, finding), reproducer, replaces)

    @writes
    def mark(self, session: Session, name: str, mark: Mark) -> tuple[str, Mark]:
        """Store what a person says of a finding or a group of them; return its name, and all that is said of it now.

        Raises:
            UsageError: there is no such finding or group, or a finding would be a duplicate of itself.
        """
        return put_mark(session, name, mark)

    @writes
    def trust(self, session: Session, findings: Iterable[str | int] | None) -> int:
        """Trust what commands run of these findings, or (None) all that the corpus holds; how many sources were marked.

        Raises:
            UnknownFindingError: there is no such finding; nothing is trusted then.
        """
        if findings is None:
            return trusting.trust_all(session)
        return sum(trusting.trust(session, finding_id(session, name)) for name in findings)

    def add_replay(self, finding: str | int, replay: Replay) -> None:
        """Store that a finding's reproducer was run again."""
        made = transactions.now()
        self.write(lambda session: transactions.put_replay(session, finding_id(session, finding), replay, made))

    @writes
    def keep_related(
        self, session: Session, finding: str | int, related: Sequence[Related], queries: Sequence[str]
    ) -> None:
        """Store the public reports on a finding that ``queries`` led to, in place of those of an earlier search."""
        transactions.put_related(session, finding_id(session, finding), related, queries)

    def export(self, finding: str | int, folder: str | os.PathLike[str]) -> list[Path]:
        """Write ``case.py``, ``repro.py``, ``neighbour.py`` (as far as there are such) and ``finding.json``.

        Raises:
            FolderTakenError: the folder holds files that are not of this finding.
        """
        return exporting.export(self, self.finding(finding), Path(folder))

    def take(self, exports: Iterable[Export], *, trusted: bool = False) -> Iterator[Arrived]:
        """Store exported findings, each in a transaction of its own, and say what became of it.

        One that cannot be imported is refused, with the reason; the others go on. Unless ``trusted``, their sources are
        marked (`fuzzcompile.corpus.queries`).
        """
        yield from self._take((export.name, partial(put_export, export=export, trusted=trusted)) for export in exports)

    def _take(
        self, findings: Iterable[tuple[str, Callable[[Session], tuple[Arrived, Duplicate]]]]
    ) -> Iterator[Arrived]:
        duplicates = list[Duplicate]()
        for name, put in findings:
            try:
                arrived, duplicate = self.write(put)
            except ValueError as error:
                yield Arrived(name, "refused", why=str(error))
            else:
                duplicates.append(duplicate)
                yield arrived
        self.write(settle_duplicates, duplicates)

    def copy(
        self, other: Store, on_progress: Callable[[Copied, int], object], *, trusted: bool = False
    ) -> Iterator[Arrived]:
        """Store everything of another corpus; each chunk of runs and each finding is a transaction of its own.

        ``on_progress`` is called after each chunk with what has come, and how many runs there are. Unless ``trusted``,
        its programs are marked (`fuzzcompile.corpus.queries`).
        """
        if other.location == self.location:
            raise UsageError(f"{other.location} is the corpus itself: name another to import from.")
        before = {finding.public_id for finding in self.summaries()}
        with other.read() as source:
            copied, total = Copied(trusted), source.scalar(select(func.count()).select_from(RunRow)) or 0
            self.write(imports.put_campaigns, source, copied)
            last = 0
            while runs := imports.runs_after(source, last):
                copied = self.write(imports.put_copies, runs, copied)
                last = runs[-1][0].id
                source.expunge_all()
                on_progress(copied, total)
            rows = source.scalars(select(FindingRow).order_by(FindingRow.id)).all()
            put = partial(put_finding, other=source, before=before, trusted=trusted)
            yield from self._take((f"{public_id(row.id)} {row.signature}", partial(put, row=row)) for row in rows)
            self.write(imports.put_coverage, source)
            self.write(imports.put_groups, source)

    def collect(self, before: datetime, *, dry: bool = False) -> Freed:
        """Drop what clean cases hold that were last judged before a moment (`fuzzcompile.corpus.maintenance.collect`).

        An SQLite file gets smaller only then; PostgreSQL uses the space again.
        """
        freed = self.write(maintenance.collect, before, dry=dry)
        if not dry:
            shrink(self._engine)
        return freed


def _campaign(session: Session, campaign_id: int) -> CampaignRow:
    row = session.get(CampaignRow, campaign_id)
    if row is None:
        raise ValueError(f"there is no campaign {campaign_id}")
    return row
