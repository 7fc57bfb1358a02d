"""The corpus as the rest of the program sees it: records in, records out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from sqlalchemy import CursorResult, delete, func, select, update
from sqlalchemy.orm import Session

from fuzzcompile.corpus import export as exporting
from fuzzcompile.corpus import imports, maintenance, transactions
from fuzzcompile.corpus.connection import connect, explained_errors, keep_trying, writes
from fuzzcompile.corpus.databases import shrink
from fuzzcompile.corpus.imports import Arrived, Copied, Duplicate, Export, put_export, put_finding, settle_duplicates
from fuzzcompile.corpus.location import describe, find_file, require_file, resolve
from fuzzcompile.corpus.maintenance import Freed, bring_up_to_date
from fuzzcompile.corpus.models import CampaignRow, CaseRow, FindingRow, Related, Replay, ReproducerRow, RunRow, Umbrella
from fuzzcompile.corpus.queries import finding_id
from fuzzcompile.corpus.reader import Reader
from fuzzcompile.corpus.records import (
    Campaign,
    CaseRecord,
    Coverage,
    Ended,
    Reproducer,
    StoredReport,
    StoredReproducer,
    public_id,
)
from fuzzcompile.corpus.transactions import Mark
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.settings import read_settings

if TYPE_CHECKING:
    from fuzzcompile.model.contract import ReportJson


class Store(Reader, AbstractContextManager["Store"]):
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

    def __exit__(self, *error: object) -> None:
        self.close()

    def start_campaign(self, campaign: Campaign) -> int:
        """Store that a campaign begins, with the part of its stream that it judges; return its row's id."""
        token = uuid4().hex  # one for all tries

        def put(session: Session) -> int:
            known = session.scalar(select(CampaignRow.id).where(CampaignRow.token == token))
            if known is not None:
                return known
            moment = transactions.present(session)
            row = CampaignRow(
                token=token,
                environment_id=transactions.put_environment(session, campaign.environment),
                seed=campaign.seed,
                settings={**transactions.plain(campaign.settings), transactions.PROCESS: transactions.this_process()},
                command=campaign.command,
                fuzzcompile_version=campaign.fuzzcompile_version,
                counters={},
                part=transactions.free_part(session, campaign.settings, moment),
                started=moment,
                last_heard=moment,
            )
            session.add(row)
            session.flush()
            return row.id

        return self.write(put)

    @writes
    def heartbeat(self, session: Session, campaign_id: int, counters: Mapping[str, object]) -> int:
        """Keep the counters of a running campaign, so that a killed one still shows them.

        Returns the part of its stream that it judges from now on: another one if it was silent for so long that its
        part was taken.
        """
        row, moment = _campaign(session, campaign_id), transactions.present(session)
        was_silent = row.last_heard < moment - transactions.SILENT
        if was_silent and row.part in transactions.held_parts(session, row.settings, moment, besides=row.id):
            row.part = transactions.free_part(session, row.settings, moment, besides=row.id)
        row.counters, row.last_heard = transactions.plain(counters), moment
        return row.part

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
        """Store what a person says of a finding or a group of them; return its name, and all that is said of it now."""
        group = session.get(Umbrella, name)
        if group is None and session.scalar(select(FindingRow.id).where(FindingRow.umbrella == name).limit(1)):
            group = Umbrella(name)
        if group is not None and mark.duplicate_of is not None:
            raise UsageError(f"{name} is a group, which is no duplicate of a finding: mark it known, with its issue.")
        row = group or session.get_one(FindingRow, finding_id(session, name))
        row.status, row.note = mark.status, mark.note or row.note
        row.issue = None if mark.status == "open" else mark.issue or row.issue
        session.add(row)
        if isinstance(row, Umbrella):
            return name, Mark(mark.status, row.issue, note=row.note)
        original = following = None if mark.duplicate_of is None else finding_id(session, mark.duplicate_of)
        while following is not None:
            if following == row.id:
                raise UsageError(f"{public_id(row.id)} would be a duplicate of itself: name the finding that stays.")
            following = session.get_one(FindingRow, following).duplicate_of_id
        row.duplicate_of_id = original
        return public_id(row.id), Mark(
            mark.status, row.issue, None if original is None else public_id(original), row.note
        )

    @writes
    def trust(self, session: Session, findings: Iterable[str | int] | None) -> int:
        """Trust what commands run of these findings, or (None) all of the corpus; how many sources were marked."""
        trusting = [update(kind).where(kind.imported).values(imported=False) for kind in (CaseRow, ReproducerRow)]
        if findings is not None:
            rows = [session.get_one(FindingRow, finding_id(session, name)) for name in findings]
            cases, scripts = ([row.case_id for row in rows], [row.best_reproducer_id for row in rows])
            trusting = [trusting[0].where(CaseRow.id.in_(cases)), trusting[1].where(ReproducerRow.id.in_(scripts))]
        return sum(cast("CursorResult[Any]", session.execute(each)).rowcount for each in trusting)

    def add_replay(self, finding: str | int, replay: Replay) -> None:
        """Store that a finding's reproducer was run again."""
        made = transactions.now()

        def put(session: Session) -> None:
            key = finding_id(session, finding)
            same = (Replay.finding_id == key, Replay.created == made, Replay.torch == replay.torch)
            if session.scalar(select(Replay.id).where(*same)) is None:
                row = replace(replay)  # the caller's stays as it is, for another try
                row.finding_id, row.created = key, made
                session.add(row)

        self.write(put)

    @writes
    def keep_related(
        self, session: Session, finding: str | int, related: Sequence[Related], queries: Sequence[str]
    ) -> None:
        """Store the public reports on a finding that ``queries`` led to, in place of those of an earlier search."""
        row = session.get_one(FindingRow, finding_id(session, finding))
        session.execute(delete(Related).where(Related.finding_id == row.id))
        for link in map(replace, related):
            link.finding_id = row.id
            session.add(link)
        row.searched, row.queries = transactions.now(), list(queries)

    def export(self, finding: str | int, folder: str | os.PathLike[str]) -> list[Path]:
        """Write ``case.py``, ``repro.py``, ``neighbour.py`` (as far as there are such) and ``finding.json``."""
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
            self.write(imports.put_coverage_and_groups, source)

    def collect(self, before: datetime, *, dry: bool = False) -> Freed:
        """Drop what clean cases hold that were last judged before a moment (`fuzzcompile.corpus.maintenance.collect`).

        An SQLite file gets smaller only then; PostgreSQL uses the space again.
        """
        freed = self.write(maintenance.collect, before, dry=dry)
        if not dry:
            with explained_errors(self._engine.url):
                shrink(self._engine)
        return freed


def _campaign(session: Session, campaign_id: int) -> CampaignRow:
    row = session.get(CampaignRow, campaign_id)
    if row is None:
        raise ValueError(f"there is no campaign {campaign_id}")
    return row
