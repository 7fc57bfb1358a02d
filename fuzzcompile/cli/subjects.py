"""CASE|FINDING arguments: a file, or the name of a finding in the corpus."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fuzzcompile.casefiles import looks_like_path, read_case_file
from fuzzcompile.errors import CaseError

if TYPE_CHECKING:
    from fuzzcompile.corpus import FindingSummary, Store


@contextlib.contextmanager
def existing_corpus(location: str | None) -> Iterator[Store | None]:
    """The corpus, or None if there is none at the default place.

    Raises:
        CorpusError: there is none at the ``location`` that the user named, or it cannot be opened.
    """
    from fuzzcompile.corpus import CorpusError, Store

    try:
        store = Store.open(location, create=False)
    except CorpusError:
        if location is not None:
            raise
        yield None
        return
    with store:
        yield store


def case_named(name: str) -> Path | None:
    """The case file that ``name`` names, read and found fit; None if it names a finding.

    Raises:
        CaseError: it is a file that cannot be a case, or means one that does not exist.
    """
    path = Path(name)
    if not path.is_file() and not looks_like_path(name):
        return None
    read_case_file(path)
    return path


def may_run(store: Store, findings: Sequence[FindingSummary], *, trusted: bool) -> None:
    """Refuse to run findings that come from another corpus, unless the user trusts them (now: ``--trust``).

    Raises:
        UntrustedError: no one here trusts one of them.
    """
    from fuzzcompile.corpus.trusting import require_trust

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
    with existing_corpus(location) as store:
        needed(store, name).finding(name)


def needed(store: Store | None, name: str) -> Store:
    """The corpus that must hold ``name``, which is not a file.

    Raises:
        CaseError: there is no corpus.
    """
    if store is None:
        raise CaseError(f"{name} is not a file, and there is no corpus here; name a case file or use --corpus.")
    return store
