"""Calls that outlast their server: one that was lost is waited for, and the call made again.

Each call of a store is one transaction, and stores the same thing only once. So it may be made again whole, whether the
server had stored it or not when the connection was lost.
"""

from __future__ import annotations

import functools
import inspect
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

from fuzzcompile.corpus.failures import CorpusError, CorpusGone

# An outage that lasts longer is announced.
ANNOUNCED_SECONDS = 2.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_SOON = ("starting up", "shutting down", "recovery mode", "not yet accepting", "too many clients", "connection slots")
_log = logging.getLogger(__name__)

Kind = TypeVar("Kind")
Method = TypeVar("Method", bound=Callable[..., object])


class Patient(Protocol):
    """Whose calls wait: where the corpus is, and for how many seconds a lost server is waited for."""

    patience: float

    @property
    def location(self) -> str:
        """The corpus, as messages name it."""


def waiting(method: Method) -> Method:
    """Let a method, which is one transaction, be called again until the server that was lost is back.

    Raises:
        CorpusError: it was not back within ``patience`` seconds.
    """

    @functools.wraps(method)
    def call(self: Patient, *args: Any, **kwargs: Any) -> object:
        outage: Outage | None = None
        while True:
            try:
                result = method(self, *args, **kwargs)
            except CorpusGone as gone:
                outage = outage or Outage(self.location, self.patience)
                outage.wait(gone)
            else:
                if outage is not None:
                    outage.end()
                return result

    return cast(Method, call)


def survives_outages(kind: type[Kind]) -> type[Kind]:
    """Let every public method of a class wait (`waiting`), but for generators: what these call waits."""
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method) and not name.startswith("_") and not inspect.isgeneratorfunction(method):
            setattr(kind, name, waiting(method))
    return kind


def once_it_is_up(opened: Callable[[], None], location: str, patience: float) -> None:
    """Call a function, again and again while the server says that it is starting or stopping, or is overrun.

    Another outage ends it at once: at first, a wrong name is likelier than a server that will be there soon.
    """
    outage = Outage(location, patience)
    while True:
        try:
            return opened()
        except CorpusGone as gone:
            if not any(words in str(gone) for words in _SOON):
                raise
            outage.wait(gone)


class Outage:
    """A server that is not there since now."""

    def __init__(self, location: str, patience: float) -> None:
        self._location, self._patience = location, patience
        self._began, self._pause, self._announced = time.monotonic(), _FIRST_PAUSE, False

    def wait(self, gone: CorpusGone) -> None:
        """Wait a little, longer each time; say so once it has taken long.

        Raises:
            CorpusError: it has taken too long.
        """
        waited = time.monotonic() - self._began
        if waited >= self._patience:
            raise CorpusError(f"{str(gone).rstrip('.')} (waited for {_seconds(waited)}).") from gone
        if waited + self._pause >= ANNOUNCED_SECONDS and not self._announced:
            self._announced = True
            _log.warning(
                "The corpus %s does not answer; waiting up to %s for it ...", self._location, _seconds(self._patience)
            )
        time.sleep(min(self._pause, self._patience - waited))
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def end(self) -> None:
        """Say that the server is back, if it was said that it is not there."""
        if self._announced:
            _log.warning(
                "The corpus %s answers again after %s.", self._location, _seconds(time.monotonic() - self._began)
            )


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
