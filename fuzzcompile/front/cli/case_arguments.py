"""CASE|FINDING arguments: a file, or the name of a finding in the corpus."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fuzzcompile.model.errors import CaseError
from fuzzcompile.programs.casefiles.case_file import looks_like_path, read_case_file

if TYPE_CHECKING:
    from fuzzcompile.corpus.records import FindingSummary
    from fuzzcompile.corpus.store import Store


@contextlib.contextmanager
def open_existing_corpus(location: str | None) -> Iterator[Store | None]:
    """The corpus, or None if there is none at the default place.

    Raises:
        CorpusError: there is none at the ``location`` that the user named, or it cannot be opened.
    """
    from fuzzcompile.corpus.records import CorpusError
    from fuzzcompile.corpus.store import Store

    try:
        store = Store.open(location, create=False)
    except CorpusError:
        if location is not None:
            raise
        yield None
        return
    with store:
        yield store


def find_case(name: str) -> Path | None:
    """The case file that ``name`` names, read and found fit; None if it names a finding.

    Raises:
        CaseError: it is a file that cannot be a case, or means one that does not exist.
    """
    path = Path(name)
    if not path.is_file() and not looks_like_path(name):
        return None
    read_case_file(path)
    return path


def require_trusted(store: Store, findings: Sequence[FindingSummary], *, trusted: bool) -> None:
    """Refuse to run findings that come from another corpus, unless the user trusts them (now: ``--trust``).

    Raises:
        UntrustedError: no one here trusts one of them.
    """
    from fuzzcompile.corpus.queries import require_trust

    if trusted:
        store.trust(finding.id for finding in findings)
    else:
        require_trust(findings, store.location)


def require_finding(name: str, location: str | None) -> None:
    """Refuse the name of a finding that the corpus lacks, before torch is imported to work on it.

    Raises:
        CaseError: there is no corpus.
        CorpusError: it cannot be opened.
        UnknownFindingError: it has no such finding.
    """
    with open_existing_corpus(location) as store:
        require_corpus(store, name).finding(name)


def require_corpus(store: Store | None, name: str) -> Store:
    """The corpus that must hold ``name``, which is not a file.

    Raises:
        CaseError: there is no corpus.
    """
    if store is None:
        raise CaseError(f"{name} is not a file, and there is no corpus here; name a case file or use --corpus.")
    return store
