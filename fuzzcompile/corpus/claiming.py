"""Campaigns at once: each judges a part of its stream that no other one judges.

A campaign takes the lowest part that no living campaign of its stream holds. One that ends frees its part, and the next
campaign resumes it. A campaign lives until it ends, until it has said nothing for three minutes, or until another one
on its machine sees that its process is gone.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from fuzzcompile.corpus import recording
from fuzzcompile.corpus.models import CampaignRow
from fuzzcompile.corpus.records import Campaign

# Place n of part p is ``p * PLACES + n``: no campaign comes to the end of a part.
PLACES = 2**40
# A campaign says that it lives every five seconds.
SILENT = timedelta(minutes=3)
# Among a campaign's settings: the process that runs it.
_PROCESS = "process"


def asked(settings: Mapping[str, object]) -> dict[str, object]:
    """What a campaign was asked to do, of its stored settings."""
    return {name: value for name, value in settings.items() if name != _PROCESS}


def part_of(place: int) -> int:
    """The part of a stream in which a place lies."""
    return place // PLACES


def put_campaign(session: Session, campaign: Campaign, token: str) -> int:
    """Store that a campaign begins, with its part, unless that of this token is there; return its row's id."""
    known = session.scalar(select(CampaignRow.id).where(CampaignRow.token == token))
    if known is not None:
        return known
    moment = present(session)
    row = CampaignRow(
        token=token,
        environment_id=recording.put_environment(session, campaign.environment),
        seed=campaign.seed,
        settings={**recording.plain(campaign.settings), _PROCESS: this_process()},
        command=campaign.command,
        fuzzcompile_version=campaign.fuzzcompile_version,
        counters={},
        part=_free_part(session, campaign.settings, moment),
        started=moment,
        last_heard=moment,
    )
    session.add(row)
    session.flush()
    return row.id


def hear(session: Session, row: CampaignRow, counters: Mapping[str, object]) -> int:
    """Store that a campaign lives; return the part that it holds from now on.

    That is another one if it was silent for so long that its part was taken.
    """
    moment = present(session)
    was_silent = row.last_heard < moment - SILENT
    if was_silent and row.part in _held(session, row.settings, moment, besides=row.id):
        row.part = _free_part(session, row.settings, moment, besides=row.id)
    row.counters, row.last_heard = recording.plain(counters), moment
    return row.part


def living(session: Session, moment: datetime) -> list[CampaignRow]:
    """The campaigns that run, as far as the corpus can tell, but for those of this process."""
    running = select(CampaignRow).where(CampaignRow.ended.is_(None), CampaignRow.last_heard >= moment - SILENT)
    return [row for row in session.scalars(running) if not _is_gone(str(row.settings.get(_PROCESS)))]


def present(session: Session) -> datetime:
    """The present: a server's own, where the clocks of several machines may differ."""
    is_server = session.get_bind().dialect.name == "postgresql"
    moment = session.scalar(select(func.clock_timestamp())) if is_server else None
    return moment or recording.now()


@functools.cache
def _machine() -> str:
    """The machine or container since it was started: only there, process ids mean something."""
    try:
        since, space = Path("/proc/sys/kernel/random/boot_id").read_text(), Path("/proc/self/ns/pid").readlink()
    except OSError:
        return ""
    return hashlib.sha256(f"{since}{space}".encode()).hexdigest()[:12]


def this_process() -> str:
    """What tells the process from others of its machine, earlier and later, and from those of other machines."""
    return f"{_machine()}:{os.getpid()}:{_begun(os.getpid())}"


def _begun(process: int) -> str:
    """When a process began, in the system's ticks; empty for one that is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _is_gone(process: str) -> bool:
    """Whether a process is known to run no campaign any more: it ended, or it is this one, which begins another."""
    machine, _, rest = process.partition(":")
    number, _, begun = rest.partition(":")
    if not machine or machine != _machine():
        return False
    return process == this_process() or _begun(int(number)) != begun


def _free_part(session: Session, settings: Mapping[str, object], moment: datetime, *, besides: int = 0) -> int:
    held = _held(session, settings, moment, besides=besides)
    return next(part for part in itertools.count() if part not in held)


def _held(session: Session, settings: Mapping[str, object], moment: datetime, *, besides: int) -> set[int]:
    """The parts of a stream that other living campaigns hold."""
    stream = settings.get("stream")
    return {row.part for row in living(session, moment) if row.settings.get("stream") == stream and row.id != besides}
