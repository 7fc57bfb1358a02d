"""The messages between a campaign and a Dask worker: plain data, pickled.

The scheduler between them need not have fuzzcompile: it unpickles the function and the arguments of each task, which
are ``pickle.loads`` and bytes.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import fuzzcompile
from fuzzcompile.cluster.travelling import Packed
from fuzzcompile.execution.failures import RemoteError
from fuzzcompile.execution.named import Named
from fuzzcompile.execution.worker import portable, told


@dataclass(frozen=True)
class Offer:
    """The description of a Dask worker before torch is imported.

    Attributes:
        version: its fuzzcompile's.
        code: a hash of that fuzzcompile's files.
        torch: the installed version; empty where there is none.
        gpu: whether torch might find a GPU.
        slots: how many cases it takes at once.
    """

    version: str
    code: str
    torch: str
    gpu: bool
    slots: int


@dataclass(frozen=True)
class Charter:
    """The data that a Dask worker needs for the cases of one campaign.

    Attributes:
        campaign: the campaign's own name, which no other has.
        packed: the conditions under which cases run.
        slots: how many cases it is to take at once.
        share: the part of its machine's processors that is for it: several Dask workers may share a machine.
        opens: opens the pool that cases run in (:func:`fuzzcompile.cluster.host.open_local`).
    """

    campaign: str
    packed: Packed
    slots: int
    share: float = 1.0
    opens: Callable[..., Any] = field(default=Named("fuzzcompile.cluster.host:open_local"))


def packed(value: object) -> bytes:
    """Pickle and compress a value.

    A task names every bug that needs no further proof: with 2,000 of them, 200 kB become a tenth in half a millisecond.
    """
    return zlib.compress(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), 1)


def unpacked(data: bytes) -> Any:
    """Unpickle a compressed value. This runs code, but only of data that a campaign sent to its own workers."""
    return pickle.loads(zlib.decompress(data))


@dataclass(frozen=True)
class Call:
    """A task for a Dask worker: (function, args, kwargs) as `packed`, and the options of `TaskPool.schedule`.

    ``number`` tells the tasks of ``campaign`` apart.
    """

    campaign: str
    number: int
    call: bytes
    options: Mapping[str, Any]

    def payload(self) -> bytes:
        """Return the data for which ``pickle.loads``, called on a Dask worker, runs the task and returns a `Reply`."""
        return pickle.dumps(_Answering(self), pickle.HIGHEST_PROTOCOL)

    def resumed(self, left: Mapping[str, str]) -> Call:
        """Return the call after a loss, with ``left`` passed to those of its arguments that can resume."""
        function, args, kwargs = unpacked(self.call)
        args = tuple(each.resumed(left) if isinstance(each, Resumable) else each for each in args)
        return replace(self, call=packed((function, args, kwargs)))


@runtime_checkable
class Resumable(Protocol):
    """A task that can resume where another worker stopped."""

    def resumed(self, left: Mapping[str, str]) -> Self:
        """Return the task with the intermediate results of a lost worker (`WorkerFailed.left`)."""


@dataclass(frozen=True)
class _Answering:
    """A call that is replaced by its answer when it is unpickled on a Dask worker."""

    call: Call

    def __reduce__(self) -> tuple[object, ...]:
        return Named("fuzzcompile.cluster.host:answer"), (self.call,)


@dataclass(frozen=True)
class Reply:
    """The result of a task: a ``value``, or a pickled ``error`` and its ``cause``.

    ``told`` stands for an error that cannot be unpickled where it arrives, as one of torch's where there is no torch.
    ``unhosted`` says that the Dask worker does not serve the campaign, or no longer: the task is to run elsewhere.
    """

    value: object = None
    error: bytes | None = None
    cause: bytes | None = None
    told: RemoteError | None = None
    unhosted: bool = False

    @classmethod
    def of(cls, error: Exception) -> Reply:
        """Return the reply of a task that raised."""
        cause = error.__cause__
        return cls(error=portable(error), cause=None if cause is None else portable(cause), told=told(error))

    def raised(self) -> Exception | None:
        """Return the exception that the task raised, with its cause; None if it has a value."""
        if self.error is None:
            return None
        error = _loaded(self.error) or self.told or RemoteError("Exception", "it cannot be unpickled")
        error.__cause__ = None if self.cause is None else _loaded(self.cause)
        return error


def _loaded(pickled: bytes) -> Exception | None:
    """Unpickle an exception; return None if it cannot be unpickled here."""
    try:
        error = pickle.loads(pickled)
    except Exception:  # unpickling imports the exception's module, and runs its own code, which may raise anything
        return None
    return error if isinstance(error, Exception) else None


@dataclass(frozen=True)
class Pulse:
    """The answer of a Dask worker to a health check.

    ``left`` holds the intermediate results of running tasks since the last check, by number (`Call.number`).
    """

    left: Mapping[int, Mapping[str, str]] = field(default_factory=dict)


@functools.cache
def code_digest() -> str:
    """Return a short hash of the installed fuzzcompile's files: version numbers do not tell two checkouts apart."""
    package = Path(fuzzcompile.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.suffix in (".py", ".toml", ".json") and path.is_file():
            digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
