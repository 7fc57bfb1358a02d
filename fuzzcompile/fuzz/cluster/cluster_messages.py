"""The messages between a campaign and a Dask worker: plain data, pickled, with the files that conditions name."""

from __future__ import annotations

import functools
import hashlib
import pickle
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.custom import ObjectPath
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.judge_task import NamedFunction
from fuzzcompile.model.versions import PACKAGE
from fuzzcompile.run.pool.worker import RemoteError, make_remote_error, pickle_error

# Conditions sent to other machines: files travel as their content, because machines share no file system.

# A plant or a pass is source code: more than this is a mistake, and every Dask worker would get it.
_MOST_BYTES = 4 * 2**20


@dataclass(frozen=True)
class PackedConditions:
    """Conditions, and the text of the files that they name, by the paths that they have on the sender's machine."""

    conditions: Conditions
    texts: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, conditions: Conditions) -> PackedConditions:
        """Return conditions with the text of the files that they name.

        Raises:
            UsageError: a file cannot be read as text, or is too large.
        """
        return cls(conditions, tuple((path, _read_text(Path(path))) for path in dict.fromkeys(_list_files(conditions))))

    def unpack(self, folder: Path) -> Conditions:
        """Return the conditions for this machine, with the files written to the empty ``folder``.

        Files keep their names, which reports show; each is written to a folder of its own.
        """
        here: dict[str, Path] = {}
        for number, (path, text) in enumerate(self.texts):
            here[path] = folder / str(number) / Path(path).name
            here[path].parent.mkdir()
            here[path].write_text(text, encoding="utf-8")

        def move(target: ObjectPath) -> ObjectPath:
            return replace(target, module=str(here[target.module])) if target.is_file else target

        custom = self.conditions.custom
        return replace(
            self.conditions,
            plants=tuple(here[str(path)] for path in self.conditions.plants),
            custom=replace(
                custom,
                passes=tuple(replace(each, target=move(each.target)) for each in custom.passes),
                backend=move(custom.backend) if isinstance(custom.backend, ObjectPath) else custom.backend,
            ),
        )


def _list_files(conditions: Conditions) -> Iterator[str]:
    yield from map(str, conditions.plants)
    targets = [*(each.target for each in conditions.custom.passes), conditions.custom.backend]
    yield from (target.module for target in targets if isinstance(target, ObjectPath) and target.is_file)


def _read_text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be sent to a cluster: {' '.join(str(error).split())[:200]}.") from error
    if len(text) > _MOST_BYTES:
        raise UsageError(f"{path} cannot be sent to a cluster: it has more than {_MOST_BYTES >> 20} MiB.")
    return text


@dataclass(frozen=True)
class WorkerOffer:
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
class HostCharter:
    """The data that a Dask worker needs for the cases of one campaign.

    Attributes:
        campaign: the campaign's own name, which no other has.
        packed: the conditions under which cases run.
        slots: how many cases it is to take at once.
        share: the part of its machine's processors that is for it: several Dask workers may share a machine.
        opens: opens the pool that cases run in (:func:`fuzzcompile.fuzz.cluster.dask_host.open_local`).
    """

    campaign: str
    packed: PackedConditions
    slots: int
    share: float = 1.0
    opens: Callable[..., Any] = field(default=NamedFunction("fuzzcompile.fuzz.cluster.dask_host:open_local"))


def name_topic(campaign: str) -> str:
    """Return the topic of Dask's events under which Dask workers tell a campaign which of its tasks begin."""
    return f"fuzzcompile {campaign}"


def pack(value: object) -> bytes:
    """Pickle and compress a value.

    A task names every bug that needs no further proof: with 2,000 of them, 200 kB become a tenth in half a millisecond.
    """
    return zlib.compress(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), 1)


def unpack(data: bytes) -> Any:
    """Unpickle a compressed value. This runs code, but only of data that a campaign sent to its own workers."""
    return pickle.loads(zlib.decompress(data))


@dataclass(frozen=True)
class ClusterCall:
    """A task for a Dask worker: (function, args, kwargs) as `pack`, and the options of `TaskPool.schedule`.

    ``number`` tells the tasks of ``campaign`` apart.
    """

    campaign: str
    number: int
    call: bytes
    options: Mapping[str, Any]

    def make_payload(self) -> bytes:
        """Return data whose ``pickle.loads``, on a Dask worker, runs the task and returns a `ClusterReply`."""
        return pickle.dumps(_AnswerOnArrival(self), pickle.HIGHEST_PROTOCOL)

    def resume(self, left: Mapping[str, str]) -> ClusterCall:
        """Return the call after a loss, with ``left`` passed to those of its arguments that can resume."""
        function, args, kwargs = unpack(self.call)
        args = tuple(each.resume(left) if isinstance(each, Resumable) else each for each in args)
        return replace(self, call=pack((function, args, kwargs)))


@runtime_checkable
class Resumable(Protocol):
    """A task that can resume where another worker stopped."""

    def resume(self, left: Mapping[str, str]) -> Self:
        """Return the task with the intermediate results of a lost worker (`WorkerFailed.left`)."""


@dataclass(frozen=True)
class _AnswerOnArrival:
    """A call that is replaced by its answer when it is unpickled on a Dask worker."""

    call: ClusterCall

    def __reduce__(self) -> tuple[object, ...]:
        return NamedFunction("fuzzcompile.fuzz.cluster.dask_host:answer"), (self.call,)


@dataclass(frozen=True)
class ClusterReply:
    """The result of a task: a ``value``, or a pickled ``error`` and its ``cause``.

    ``told`` stands for an error that cannot be unpickled where it arrives, as one of torch's where there is no torch.
    ``unhosted`` says that the Dask worker does not serve the campaign, or no longer: the task is to run elsewhere.
    """

    value: object = None
    error: bytes | None = None
    cause: bytes | None = None
    remote_error: RemoteError | None = None
    unhosted: bool = False

    @classmethod
    def of(cls, error: Exception) -> ClusterReply:
        """Return the reply of a task that raised."""
        cause = error.__cause__
        return cls(
            error=pickle_error(error),
            cause=None if cause is None else pickle_error(cause),
            remote_error=make_remote_error(error),
        )

    def load_error(self) -> Exception | None:
        """Return the exception that the task raised, with its cause; None if it has a value."""
        if self.error is None:
            return None
        error = _load_error(self.error) or self.remote_error or RemoteError("Exception", "it cannot be unpickled")
        error.__cause__ = None if self.cause is None else _load_error(self.cause)
        return error


def _load_error(pickled: bytes) -> Exception | None:
    """Unpickle an exception; return None if it cannot be unpickled here."""
    try:
        error = pickle.loads(pickled)
    except Exception:  # unpickling imports the exception's module, and runs its own code, which may raise anything
        return None
    return error if isinstance(error, Exception) else None


@dataclass(frozen=True)
class HealthReport:
    """The answer of a Dask worker to a health check.

    ``left`` holds the intermediate results of running tasks since the last check, by number (`ClusterCall.number`).
    """

    left: Mapping[int, Mapping[str, str]] = field(default_factory=dict)


@functools.cache
def compute_code_digest() -> str:
    """Return a short hash of the installed fuzzcompile's files: version numbers do not tell two checkouts apart."""
    package = PACKAGE
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.suffix in (".py", ".toml", ".json") and path.is_file():
            digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
