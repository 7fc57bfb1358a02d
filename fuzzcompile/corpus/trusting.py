"""Which programs may be run: those of another corpus are foreign code until someone here trusts them.

The mark is per source (``imported`` of a case or a reproducer). A finding is trusted if nothing that a command would
run of it is marked: the case that it shows, and its best reproducer with its neighbour. Reports are data: what is built
from them quotes them, and never runs what they say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast
from uuid import uuid4

from sqlalchemy import CursorResult, update
from sqlalchemy.orm import Session

from fuzzcompile.corpus.failures import UntrustedError
from fuzzcompile.corpus.models import CaseRow, FindingRow, ReproducerRow
from fuzzcompile.corpus.records import FindingSummary
from fuzzcompile.model.hints import format_command

_MOST_NAMED = 5
_CLAIM = "claimed:"


def claim() -> str:
    """The token of a run that a corpus which is not trusted tells of a case that is trusted here."""
    return f"{_CLAIM}{uuid4().hex}"


def is_claim(token: str | None) -> bool:
    """Whether a run's token is such a one."""
    return token is not None and token.startswith(_CLAIM)


def is_trusted(case_imported: bool | None, reproducer_imported: bool | None) -> bool:
    """Whether a finding may be run, by the marks of its case and of its best reproducer; None for one it lacks."""
    return not (case_imported or reproducer_imported)


def require_trust(findings: Sequence[FindingSummary], corpus: str) -> None:
    """Refuse to run findings of another corpus that no one here trusts.

    Raises:
        UntrustedError: there are such; the message says how to read and how to trust them.
    """
    foreign = [finding.public_id for finding in findings if not finding.trusted]
    if not foreign:
        return
    few = len(foreign) <= _MOST_NAMED
    trusting = format_command("corpus", "trust", *(foreign if few else ()), all=not few, corpus=corpus)
    read = format_command("corpus", "show", foreign[0], corpus=corpus)
    if len(foreign) == 1:
        says = f"{foreign[0]} comes from another corpus, and running it runs its code: read it with `{read}`"
    else:
        listed = ", ".join(foreign) if few else f"{len(foreign)} findings ({', '.join(foreign[:_MOST_NAMED])}, ...)"
        says = f"{listed} come from another corpus, and running them runs their code: read each as with `{read}`"
    raise UntrustedError(f"{says}, then give --trust, or `{trusting}`.")


def trust(session: Session, finding_id: int) -> int:
    """Trust what a command would run of a finding now, its case and its best reproducer; how many were marked."""
    row = session.get_one(FindingRow, finding_id)
    case = update(CaseRow).where(CaseRow.id == row.case_id, CaseRow.imported)
    reproducer = update(ReproducerRow).where(ReproducerRow.id == row.best_reproducer_id, ReproducerRow.imported)
    return sum(_changed(session.execute(each.values(imported=False))) for each in (case, reproducer))


def trust_all(session: Session) -> int:
    """Trust every source of the corpus; how many were marked."""
    marked = (update(kind).where(kind.imported).values(imported=False) for kind in (CaseRow, ReproducerRow))
    return sum(_changed(session.execute(each)) for each in marked)


def _changed(result: object) -> int:
    return cast("CursorResult[Any]", result).rowcount
