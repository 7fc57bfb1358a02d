"""Limits of a process beside the script: a fork goes on in the script's own code, and only the script may act.

A fork shares its parent's open files, sockets and shared memory. It lets go of the files, runs at the lowest priority,
is the first that the kernel kills when memory runs out, and ends at the first act that others could see: opening a file
for writing, a connection, a process. Landlock (Linux 5.13) also stops writes that no Python code makes.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import os
import random
import resource
import signal
import struct
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

import psutil
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fuzzcompile.analyses.watch.step_graphs import Graphs
from fuzzcompile.analyses.watch.step_records import TRAJECTORY, JobState, WatchSettings, append, write_json
from fuzzcompile.analyses.watch.step_values import StepValues
from fuzzcompile.compiler.collectives import find_size, refuse_groups, rejoin_groups
from fuzzcompile.model.errors import format_message
from fuzzcompile.programs.capture.state import renew_reducer
from fuzzcompile.run.arithmetic_modes import Float64Mode, UlpNoise
from fuzzcompile.run.sharded_tensors import adopt_dtype
from fuzzcompile.run.subprocesses import yield_to_others
from fuzzcompile.run.tensors import LOW_FLOATS, StorageCopier, is_plain

# How the runs beside the script differ: eager, in float64, perturbed, captured, followed.

Kind = Literal["eager", "float64", "exact", "noise", "graphs", "followed"]


@dataclass(frozen=True)
class Mode:
    """One way to run the step.

    ``float64`` keeps the program's low-precision casts, ``exact`` does not; ``noise`` moves every operator's result by
    one ulp at most; ``graphs`` captures dynamo's graphs; ``followed`` goes on for several steps. The seed is that of
    ``noise``, or of ``followed`` that by which the state is moved by one ulp (0: not moved).
    """

    kind: Kind
    seed: int = 0

    @property
    def name(self) -> str:
        """The name in files and reports."""
        return f"{self.kind}{self.seed}" if self.kind in ("noise", "followed") else self.kind


def _list_leaves() -> list[torch.Tensor]:
    """Every tensor in whose dtype autograd accumulates a gradient; first, all leave memory that the script reads."""
    # By type, not isinstance: a weak proxy may be dead.
    found: list[Any] = [value for value in gc.get_objects() if is_plain(value)]
    tensors = [tensor for tensor in found if tensor.layout is torch.strided and tensor.device.type == "cpu"]
    for tensor in tensors:
        if tensor.is_shared():
            with contextlib.suppress(RuntimeError):  # inference tensors are not written to
                tensor.data = tensor.detach().clone()
    return [tensor for tensor in tensors if tensor.is_leaf and tensor.requires_grad]


def _list_instances(module: str, name: str) -> list[Any]:
    """The objects of a class that the script may have loaded, by type as above."""
    kind = getattr(sys.modules.get(module), name, None)
    return [value for value in gc.get_objects() if kind in type(value).__mro__]


def _list_sharded() -> list[Any]:
    """The leaves that are ``DTensor``s, in whose parts gradients accumulate."""
    found = _list_instances("torch.distributed.tensor", "DTensor")
    return [tensor for tensor in found if tensor.is_leaf and tensor.requires_grad]


def _convert_to_float64(leaves: Iterable[torch.Tensor]) -> torch.dtype:
    """Convert what gradients accumulate in, and return its widest floating dtype; the mode converts the rest."""
    copier = StorageCopier(double=True)
    dtypes = set()
    with torch.no_grad():
        for leaf in leaves:
            dtypes.add(leaf.dtype)
            gradient, leaf.grad = leaf.grad, None
            with contextlib.suppress(RuntimeError):  # subclasses and inference tensors keep their values
                leaf.data = copier(leaf).detach()
            if gradient is not None and leaf.dtype is torch.float64:
                leaf.grad = copier(gradient).detach()
        for sharded in _list_sharded():
            sharded.grad = None
            sharded._local_tensor.data = copier(sharded._local_tensor).detach()
            adopt_dtype(sharded)
    return next((dtype for dtype in (torch.float64, *LOW_FLOATS) if dtype in dtypes), torch.float32)


# The processes beside the script: how many there may be, and what became of them.

# Samples under way at once: each is a snapshot, which costs the memory that the script changes meanwhile.
MOST_UNDER_WAY = 8
_WAIT = 0.02
_NICENESS = 19


class Queue:
    """Forks of the script's process that judge samples in the order of the steps; ``state`` counts lost ones.

    ``size`` is how many processes of the script are watched together.
    """

    def __init__(self, state: JobState, size: int = 1) -> None:
        self._state, self._size = state, size
        self._judging: list[int] = []  # the processes that judge samples; ``_others`` follow trajectories
        self._others: list[int] = []

    def refusal(self, state: Iterable[torch.Tensor]) -> str | None:
        """Return the reason why no sample of a step that can change ``state`` can be taken now; None if it can."""
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return "the script uses CUDA, whose processes cannot be forked; steps are judged on the CPU only"
        if (size := find_size()) is not None:
            if size != self._size:
                return f"the script runs in {size} processes, of which {self._size} are watched; watch it with --nproc"
            if (refused := refuse_groups()) is not None:
                return refused
        parameters = (tensor for tensor in state if isinstance(tensor, torch.nn.Parameter))
        if any(parameter.is_shared() for parameter in parameters):  # type: ignore[no-untyped-call]
            return "parameters lie in memory that other processes share, which a run beside the script would change"
        self.reap()
        if len(self._judging) >= MOST_UNDER_WAY:
            return "the process beside the script is behind"
        memory = psutil.Process().memory_info()
        if psutil.virtual_memory().available < (len(self._judging) + 3) * (memory.rss - memory.shared):
            return "too little memory is free for a snapshot"
        return None

    def forked(self, body: Callable[[int], Mode], lock: Path, *, counts: bool = True) -> Mode | None:
        """Fork ``body``, which holds its lock as long as it lives: None in the script, in a run its mode."""
        lock.parent.mkdir(parents=True, exist_ok=True)
        drawn = random.getstate()
        held = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, for processes with threads
                pid = os.fork()
            if pid == 0:
                mode = body(held)
                random.setstate(drawn)  # which Python seeds anew in every fork
                return mode
        finally:
            os.close(held)
        (self._judging if counts else self._others).append(pid)
        self._state.processes.append(pid)
        return None

    def wait(self, until: Callable[[], bool]) -> None:
        """Wait until no sample is under way, or ``until`` holds."""
        self.reap()
        while self._judging and not until():
            time.sleep(_WAIT)
            self.reap()

    def reap(self) -> None:
        """Forget the processes that have ended, and count those that were killed."""
        for pids in (self._judging, self._others):
            for pid in list(pids):
                try:
                    ended, status = os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:  # the script has reaped it
                    ended, status = pid, 0
                if ended:
                    pids.remove(pid)
                if ended and status and pids is self._judging:
                    how = describe_signal(status) or "ended by an error"
                    self._state.lost[how] = self._state.lost.get(how, 0) + 1


def describe_signal(status: int) -> str:
    """How a process was killed, by its wait status; empty if it was not."""
    return f"killed by {signal.Signals(os.WTERMSIG(status)).name}" if os.WIFSIGNALED(status) else ""


_VISIBLE = (
    "os.chmod", "os.chown", "os.exec", "os.fork", "os.forkpty", "os.kill", "os.killpg", "os.link", "os.mkdir",
    "os.posix_spawn", "os.remove", "os.rename", "os.rmdir", "os.spawn", "os.symlink", "os.system", "os.truncate",
    "os.utime", "subprocess.Popen", "shutil.rmtree", "shutil.move", "socket.connect", "socket.bind", "socket.sendto",
    "socket.sendmsg", "sqlite3.connect",
)  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# System calls of Landlock, the same on every architecture, and the rights that write (linux/landlock.h).
_CREATE, _ADD, _RESTRICT, _NO_NEW_PRIVILEGES = 444, 445, 446, 38
_WRITE_RIGHTS = 0x1FF2  # everything of version 1 but executing and reading
_PATH_BENEATH = 1
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


class _Guard:
    """Calls ``on_act`` before an act of this process that others could see, and watches no further then."""

    on_act: Callable[[str], None] | None = None

    def watch(self, on_act: Callable[[str], None]) -> None:
        self.on_act = on_act
        sys.addaudithook(self._audit)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the calls in the block unobserved: they are fuzzcompile's own."""
        kept, self.on_act = self.on_act, None
        try:
            yield
        finally:
            self.on_act = kept

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        on_act = self.on_act
        if on_act is None:
            return
        flags = arguments[2] if event == "open" and len(arguments) > 2 else 0
        writes = isinstance(flags, int) and bool(flags & _WRITING) and arguments[0] != os.devnull
        if writes or event in _VISIBLE:
            self.on_act = None
            on_act(f"opening {arguments[0]} for writing" if writes else event)


guard = _Guard()


def contain(keep: Collection[int]) -> None:
    """Cut this process, a fork of the script's, off from what it shares with the script but for descriptors to keep."""
    with contextlib.suppress(OSError):
        os.setsid()  # Ctrl-C is for the script
    for caught in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM):
        signal.signal(caught, signal.SIG_IGN if caught == signal.SIGINT else signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 0)
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    yield_to_others("self", _NICENESS)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    for number in [int(name) for name in os.listdir("/proc/self/fd")]:  # noqa: PTH208
        if number > 2 and number not in keep:
            with contextlib.suppress(OSError):
                os.dup2(nowhere, number)  # not closed: their owners close them, and abort where that fails
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.excepthook = lambda *_: None


def die_with_parent() -> None:
    """End this process when its parent ends, however that ends."""
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def only_writes_below(folder: Path) -> bool:
    """Let this process write nowhere but below ``folder``, for good; False if the kernel cannot do that."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_CREATE, None, 0, 1) < 1:
        return False
    attributes = struct.pack("Q", _WRITE_RIGHTS)
    rules = libc.syscall(_CREATE, attributes, len(attributes), 0)
    if rules < 0:
        return False
    try:
        for path in (str(folder), os.devnull):
            place = os.open(path, os.O_PATH)
            rights = _WRITE_RIGHTS if path != os.devnull else 0b10
            rule = struct.pack("=Qi", rights, place)
            libc.syscall(_ADD, rules, _PATH_BENEATH, rule, 0)
            os.close(place)
        libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        return bool(libc.syscall(_RESTRICT, rules, 0) == 0)
    finally:
        os.close(rules)


@dataclass
class Runner:
    """The runner that the script's code meets in such a process."""

    mode: Mode  # how the step is run
    path: Path | None  # where its values are written; None for a run that is only followed
    step: int  # the step in which it begins
    settings: WatchSettings  # the watch
    case_settings: Mapping[str, object]  # module-level names of the case files that a run of the kind ``graphs`` writes
    _graphs: Graphs = field(default_factory=Graphs)
    _entered: TorchDispatchMode | None = None

    @property
    def trajectory(self) -> str:
        """The name of its trajectory; empty if it has none."""
        return "" if self.mode.kind != "followed" else "perturbed" if self.mode.seed else "eager"

    def start(self, on_act: Callable[[str], None]) -> None:
        """Enter the mode; ``on_act`` is called before the script does something that others could see."""
        threading.excepthook = lambda arguments: None
        atexit.register(os._exit, 0)  # none of the script's own handlers
        only_writes_below(self.settings.folder)
        torch.set_num_threads(1)  # a fork has none of its parent's threads
        mode, leaves = self.mode, _list_leaves()
        if find_size() is not None:
            rejoin_groups(self.settings.meeting(mode.name, self.step), self.settings.seconds)
        if mode.kind == "graphs":
            self._graphs.capture()
        else:
            torch.compiler.set_stance("force_eager")
        if mode.kind == "followed" and mode.seed:
            noise = UlpNoise(mode.seed)
            for leaf in leaves:
                leaf.data = noise.add_noise(leaf.data)
            for sharded in _list_sharded():  # in place: FSDP gathers what has this memory
                sharded._local_tensor.data.copy_(noise.add_noise(sharded._local_tensor.data))
        if mode.kind in ("float64", "exact"):
            self._entered = Float64Mode(keep_casts=mode.kind == "float64", native=_convert_to_float64(leaves))
            for replica in _list_instances("torch.nn.parallel.distributed", "DistributedDataParallel"):
                renew_reducer(replica)
        elif mode.kind == "noise":
            self._entered = UlpNoise(mode.seed)
        if self._entered is not None:
            self._entered.__enter__()  # type: ignore[no-untyped-call]  # for good: the process ends in it
        guard.watch(on_act)

    def begin(self, step: int) -> None:
        """Another step begins."""
        if self.mode.kind != "followed" or step >= self.step + self.settings.trajectory:
            self.end()

    def fail(self, error: BaseException) -> NoReturn:
        """The script raises: the run ends."""
        guard.on_act = None
        if self.path is not None:
            values = StepValues(failure=(type(error).__name__, format_message(error, 300)))
            values.save(self.path)
        self.end(f"the script raises {type(error).__name__} in eager mode")

    def finish(self, values: StepValues) -> None:
        """The step is complete."""
        guard.on_act = None
        if isinstance(self._entered, Float64Mode):
            values.casts = self._entered.saw_cast
        if self._entered is not None:
            self._entered.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        if self.mode.kind == "followed":
            return
        assert self.path is not None
        if self.mode.kind == "graphs":
            folder = self.settings.folder / f"step_{self.step}"
            folder = folder / f"rank{self.settings.rank}" if self.settings.rank else folder
            folder.mkdir(exist_ok=True, parents=True)
            cases = self._graphs.write(folder, self.case_settings, self.settings.state_bytes)
            said = {"cases": [str(case) for case in cases], "left_out": self._graphs.left_out}
            write_json(self.path.with_suffix(".json"), said)
        else:
            values.save(self.path)
        os._exit(0)

    def end(self, reason: str = "") -> NoReturn:
        """End the process."""
        guard.on_act = None
        if self.trajectory and reason:
            append(self.settings.folder / TRAJECTORY, {"run": self.trajectory, "ended": reason})
        os._exit(0)
