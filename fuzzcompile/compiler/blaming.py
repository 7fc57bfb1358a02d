"""Attribution of an exception to the rule that was at work when it was raised."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from fuzzcompile.compiler.ledger import Label
from fuzzcompile.compiler.refusing import Refusing
from fuzzcompile.compiler.unseen import Unseen


@dataclass
class Blaming(Refusing):
    """Writes the rule that failed into the ledger."""

    _blamed: BaseException | None = None

    @contextlib.contextmanager
    def blame(self, label: Label) -> Iterator[None]:
        """The first exception that leaves this block is booked under ``label``."""
        try:
            yield
        except BaseException as error:  # re-raised as it is
            if self._blamed is None or self._blamed not in _chain(error):
                self.ledger.failed_in = label
            self._blamed = error
            raise

    def missed(self, unseen: Unseen, error: BaseException | None = None) -> None:
        """Record a missed observation; ``error`` is kept from the compile, so that no rule failed with it."""
        self.ledger.missed(unseen)
        if error is not None and self._blamed is not None and error in _chain(self._blamed):
            self.ledger.failed_in = self._blamed = None


def _chain(error: BaseException) -> list[BaseException]:
    """The exception and those it wraps: the compiler re-raises what passes raise as errors of its own."""
    chain: list[BaseException] = []
    pending: list[BaseException | None] = [error]
    while pending:
        item = pending.pop()
        if isinstance(item, BaseException) and item not in chain:
            chain.append(item)
            pending += [item.__cause__, item.__context__, getattr(item, "inner_exception", None)]
    return chain
