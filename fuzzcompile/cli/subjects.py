"""CASE|FINDING arguments: a file, or the name of a finding in the corpus."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fuzzcompile.errors import CaseError

if TYPE_CHECKING:
    from fuzzcompile.corpus import Store


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


def needed(store: Store | None, name: str) -> Store:
    """The corpus that must hold ``name``, which is not a file.

    Raises:
        CaseError: there is no corpus.
    """
    if store is None:
        raise CaseError(f"{name} is not a file, and there is no corpus here; name a case file or use --corpus.")
    return store
