"""At whose door an exception is laid: the rule that was active when it rose."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from fuzzcompile.compiler.ledger import Label
from fuzzcompile.compiler.refusing import Refusing


@dataclass
class Blaming(Refusing):
    """Writes the rule that failed into the ledger."""

    _blamed: BaseException | None = None

    @contextlib.contextmanager
    def blame(self, label: Label) -> Iterator[None]:
        """Whatever exception leaves this block first is laid at this label's door."""
        try:
            yield
        except BaseException as error:
            if self._blamed is None or self._blamed not in _chain(error):
                self.ledger.failed_in = label
            self._blamed = error
            raise


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
