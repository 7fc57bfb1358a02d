"""Observations that a watched compile missed: the only place where trouble of the watching is written down."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fuzzcompile.model.errors import describe_error

_MOST = 40
_SHOWN = 6
_NAMED = 3  # of one reason


@dataclass(frozen=True)
class Unseen:
    """Something that was not watched, or not done although it was asked for."""

    what: str  # name of the patch, or of the step of the watching, that did not work
    why: str  # the reason, as an exception's type and message
    stages: tuple[str, ...]  # the stages (:mod:`fuzzcompile.model.stages`) of which something was missed
    # what it would have shown, as the subject of a sentence in the plural ("rewrites of the joint graph")
    shows: str = ""
    harmless: bool = False  # whether no verdict and no culprit can depend on it

    def __str__(self) -> str:
        text = f"not watched: {self.what} ({self.why})"
        return f"{text}: {self.shows} were not seen" if self.shows else text


class UnseenLog(list[Unseen]):
    """Log of missed observations: each once, and at most some forty of them."""

    def note(self, unseen: Unseen) -> None:
        """Write an entry down, here and for every :func:`gather_unseen` around."""
        for log in (self, *_gathering):
            if unseen not in log and len(log) <= _MOST:
                rest = Unseen("further steps", f"more than {_MOST}", unseen.stages)
                log.append(unseen if len(log) < _MOST else rest)


_gathering: list[UnseenLog] = []


@contextlib.contextmanager
def gather_unseen() -> Iterator[UnseenLog]:
    """Gather what goes unseen in every compile inside the block, as a judgement rests on many; also a decorator."""
    log = UnseenLog()
    _gathering.append(log)
    try:
        yield log
    finally:
        _gathering.remove(log)


def get_gathered() -> UnseenLog:
    """Return the log of the innermost :func:`gather_unseen` so far; empty outside of one."""
    return _gathering[-1] if _gathering else UnseenLog()


@contextlib.contextmanager
def note_early_end(what: str, shows: str) -> Iterator[None]:
    """Note an exception that ends the block in what is gathered: the answer rests on what was seen up to there."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # the block runs any program's graph, which may raise anything
        get_gathered().note(Unseen(what, describe_error(error), (), shows))


def format_unseen(unseen: Sequence[Unseen]) -> list[str]:
    """A sentence for each reason, what may matter first; of many, the first few and how many steps there are more."""
    reasons: dict[tuple[bool, str, str], list[Unseen]] = {}
    for missed in unseen:
        reasons.setdefault((missed.harmless, missed.why, missed.shows), []).append(missed)
    first = sorted(reasons.values(), key=lambda alike: alike[0].harmless)[:_SHOWN]
    rest = len(unseen) - sum(map(len, first))
    return [*map(_format_alike, first), *([f"not watched: {rest} further steps"] if rest else [])]


def _format_alike(alike: Sequence[Unseen]) -> str:
    names = [each.what for each in alike]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return str(replace(alike[0], what=", ".join(names[:_NAMED]) + more))
