"""The worker process's side: receive a task, run it, send back its outcome, and repeat.

Imports nothing beyond the standard library, so that a worker is ready in a tenth of a second and its initializer
decides what else is imported.
"""

from __future__ import annotations

import atexit
import contextlib
import enum
import faulthandler
import fcntl
import multiprocessing.spawn
import os
import pickle
import resource
import signal
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import IO, NamedTuple, TypeAlias


class WorkerFailed(Exception):
    """The worker was lost while it ran the task; the pool has replaced it.

    ``output`` is what it printed last, ``left`` what it left of the task until then (:func:`leave`).
    """

    output = ""
    left: Mapping[str, str] = MappingProxyType({})


@dataclass(eq=False, repr=False)
class WorkerTimeout(WorkerFailed):
    """The task ran for longer than its limit, in seconds; ``output`` ends with the stack in which it hung.

    ``load`` is how many processes wanted each of the machine's processors during the last minute.
    """

    seconds: float
    output: str = ""
    load: float = 0.0

    def __str__(self) -> str:
        return f"still running after {self.seconds:g} s"


@dataclass(eq=False, repr=False)
class WorkerOutOfMemory(WorkerFailed):
    """The worker's resident memory exceeded its limit; both in bytes."""

    limit: int
    seen: int
    output: str = ""

    def __str__(self) -> str:
        return f"used {self.seen / 2**20:.0f} MiB of memory, the limit is {self.limit / 2**20:.0f} MiB"


@dataclass(eq=False, repr=False)
class WorkerCrashed(WorkerFailed):
    """The worker process ended in the middle of the task.

    ``exit_code`` is negative for a signal, as in subprocess, and None if it is not known.
    """

    exit_code: int | None
    output: str = ""

    @property
    def signal_name(self) -> str | None:
        """``"SIGSEGV"`` and the like; None if the worker exited by itself."""
        if self.exit_code is None or self.exit_code >= 0:
            return None
        names = {number.value: number.name for number in signal.Signals}
        return names.get(-self.exit_code, f"signal {-self.exit_code}")

    def __str__(self) -> str:
        if self.signal_name is not None:
            return f"the worker was ended by {self.signal_name}"
        return f"the worker ended with exit status {self.exit_code}"


@dataclass(eq=False, repr=False)
class WorkerStartFailed(WorkerFailed):
    """No worker could be started, or its initializer failed: the pool is broken for good.

    ``final`` says that another attempt would not help.
    """

    reason: str
    output: str = ""
    final: bool = False

    def __str__(self) -> str:
        last = self.output.strip().rpartition("\n")[2]
        return f"{self.reason}: {last}" if last else self.reason


class WorkerStopped(WorkerFailed):
    """The pool was stopped while the task ran (``WorkerPool.kill_workers``)."""

    def __str__(self) -> str:
        return "the pool was stopped"


@dataclass(eq=False, repr=False)
class RemoteError(Exception):
    """Stands for an exception of the task that cannot be sent: unpicklable, or SystemExit and the like.

    ``kind`` is its qualified class name, ``message`` its text.
    """

    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


class RemoteTraceback(Exception):
    """The traceback in the worker, as text: the ``__cause__`` of an exception that the task raised."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


#: The signal on which a worker writes all its stacks to its log, even if a thread in C holds the GIL.
DUMP_STACKS = signal.SIGUSR1

#: The exit status of a worker that can no longer reach its pool.
LINE_LOST = 113

_device = "cpu"
_number = 0
_connection: Connection | None = None
_importing_main = False
_retired = False
_HIGH = 200  # number of the first descriptor that the streams are kept under
_pid = os.getpid()


def get_current_device() -> str:
    """The device that this worker was given, such as ``"cuda:1"``; ``"cpu"`` outside of a worker."""
    return _device


def get_worker_number() -> int:
    """The number of this worker in its pool, from 0; 0 outside of a worker."""
    return _number


def use_device(device: str) -> None:
    """Make ``device`` the current device of this worker, for a pool that was given less than its full name."""
    global _device
    _device = device


def say(doing: str) -> None:
    """Tell the pool in a few words what this worker does now. Has no effect outside a worker or in a fork of one."""
    _send_aside(WorkerReply.DOING, doing)


def leave(name: str, text: str) -> None:
    """Leave something of the running task that outlives this worker: if it is lost, ``WorkerFailed.left`` has it.

    What is left again under a name replaces the first. Has no effect outside a worker or in a fork of one.
    """
    _send_aside(WorkerReply.LEFT, (name, text))


def _send_aside(kind: WorkerReply, payload: Payload) -> None:
    if _connection is not None and os.getpid() == _pid:
        with contextlib.suppress(OSError):  # a task has closed the line: whatever is sent next reports it
            _connection.send_bytes(pickle.dumps((kind, payload)))


def retire() -> None:
    """Let this worker end once its task is answered: the process can do no further work. Another takes its place."""
    global _retired
    _retired = True


def is_importing_main() -> bool:
    """Return whether this is a worker that runs the user's script only to find a function defined in it."""
    return _importing_main


Payload: TypeAlias = "bytes | str | tuple[bytes, str] | tuple[str, str] | None"


class WorkerReply(enum.Enum):
    """A worker's message to its pool; the type of the payload stands beside each."""

    READY = enum.auto()  # the device that the worker uses
    START_FAILED = enum.auto()  # the initializer's (pickled exception, its traceback as text)
    DOING = enum.auto()  # what it does now, in a few words; before any other reply
    LEFT = enum.auto()  # (name, text) of what outlives this worker; after STARTED, before any other reply
    STARTED = enum.auto()  # None: from now on the loss of this worker counts as the task's doing
    RESULT = enum.auto()  # the pickled result
    RAISED = enum.auto()  # (pickled exception, its traceback as text)


class StartMessage(NamedTuple):
    """The first message to worker ``number``. ``initializer`` is pickled (function, arguments), or None."""

    device: str
    number: int
    initializer: bytes | None


class CallMessage(NamedTuple):
    """A message to a worker: pickled (function, args, kwargs), and the data to import ``__main__`` with.

    ``main`` is set only if the call refers to ``__main__``: importing the user's script in a worker takes time, and
    has side effects if the script has no ``if __name__ == "__main__"``.
    """

    call: bytes
    main: dict[str, str] | None


def main(descriptor: int) -> None:
    """Serve the pool at the other end of ``descriptor`` until it closes or sends an empty message."""
    global _connection
    os.set_inheritable(descriptor, False)  # a compiler that outlives us must not hold the line open
    for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        # High numbers, which code that closes inherited descriptors does not reach.
        _streams[number] = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _HIGH), stream
    _protect_process()
    connection = _connection = Connection(descriptor)
    try:
        if _set_up(connection):
            while not _retired and (message := connection.recv_bytes()):
                _serve(connection, pickle.loads(message))
            if _retired:
                os._exit(0)  # without exit handlers, which may wait for what this process has lost
            _leave()
    except (EOFError, OSError):  # the pool is gone, or a task has closed the line: end quietly
        sys.exit(LINE_LOST)


def _leave() -> None:
    """Run the exit handlers and end, without taking the interpreter apart: with torch in it, that takes a second."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # the task has closed or replaced it
            stream.flush()
    os._exit(0)


def restore_streams() -> None:
    """Restore the standard streams that this worker started with: a task may close or replace them.

    Has no effect outside a worker.
    """
    for number, (kept, stream) in _streams.items():
        with contextlib.suppress(OSError):
            same = False
            with contextlib.suppress(OSError):  # the task has closed it
                same = os.path.sameopenfile(kept, number)
            if not same:
                os.dup2(kept, number)
        if stream.closed:
            stream = os.fdopen(number, "r" if number == 0 else "w", buffering=1, closefd=False)
            _streams[number] = kept, stream
        name = ("stdin", "stdout", "stderr")[number]
        if getattr(sys, name, None) is not stream:
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


_streams: dict[int, tuple[int, IO[str]]] = {}


def _protect_process() -> None:
    """Leave Ctrl-C to the parent, core files off the disk, and the parent alive when memory runs out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    faulthandler.register(DUMP_STACKS, all_threads=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


def _set_up(connection: Connection) -> bool:
    global _device, _number
    setup: StartMessage = pickle.loads(connection.recv_bytes())
    _device, _number = setup.device, setup.number
    try:
        if setup.initializer is not None:
            function, args = pickle.loads(setup.initializer)
            function(*args)
    except BaseException as error:  # user code: whatever it raises goes to the pool, which reports it
        _reply(connection, WorkerReply.START_FAILED, (pickle_error(error), traceback.format_exc()))
        return False
    _reply(connection, WorkerReply.READY, _device)
    return True


def _serve(connection: Connection, call: CallMessage) -> None:
    global _importing_main
    restore_streams()
    _reply(connection, WorkerReply.STARTED, None)
    try:
        if call.main is not None:
            _importing_main = True
            try:
                multiprocessing.spawn.prepare(call.main)
            finally:
                _importing_main = False
        function, args, kwargs = pickle.loads(call.call)
        payload = pickle.dumps(function(*args, **kwargs), pickle.HIGHEST_PROTOCOL)
    except BaseException as error:  # user code: whatever it raises goes to the pool, which raises it there
        _reply(connection, WorkerReply.RAISED, (pickle_error(error), traceback.format_exc()))
    else:
        _reply(connection, WorkerReply.RESULT, payload)


def pickle_error(error: BaseException) -> bytes:
    """The exception pickled, or a RemoteError for one that cannot be rebuilt or would end the parent."""
    if isinstance(error, Exception):
        with contextlib.suppress(Exception):  # pickling runs the exception's own code, which may raise anything
            pickled = pickle.dumps(error)
            pickle.loads(pickled)  # many exceptions can be pickled and then not be rebuilt
            return pickled
    return pickle.dumps(make_remote_error(error))


def make_remote_error(error: BaseException) -> RemoteError:
    """The kind and the text of an exception, which can be rebuilt anywhere."""
    try:
        text = str(error)
    except Exception:  # an exception's own __str__ may raise anything
        text = "(its text cannot be read)"
    return RemoteError(f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins."), text)


def _reply(connection: Connection, kind: WorkerReply, payload: Payload) -> None:
    if os.getpid() != _pid:  # a task has forked and returns in both processes: the pool expects one answer
        os._exit(0)
    connection.send_bytes(pickle.dumps((kind, payload), pickle.HIGHEST_PROTOCOL))
