"""What a process beside the script may not do: a fork goes on in the script's own code, and only the script may act.

A fork shares its parent's open files, sockets and shared memory. It lets go of the files, runs at the lowest priority,
is the first that the kernel kills when memory runs out, and ends at the first act that others could see: opening a file
for writing, a connection, a process. Landlock (Linux 5.13) also stops writes that no Python code makes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import struct
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

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
    """Ends the process once the script's code does something that others could see."""

    def __init__(self) -> None:
        self.on_act: Callable[[str], None] | None = None
        self._installed = False

    def watch(self, on_act: Callable[[str], None]) -> None:
        self.on_act = on_act
        if not self._installed:
            self._installed = True
            sys.addaudithook(self._audit)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What happens in the block is ours."""
        kept, self.on_act = self.on_act, None
        try:
            yield
        finally:
            self.on_act = kept

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        on_act = self.on_act
        if on_act is None:
            return
        if event in _VISIBLE:
            self.on_act = None
            on_act(event)
        elif event == "open" and _writes(arguments):
            self.on_act = None
            on_act(f"opening {arguments[0]} for writing")


def _writes(arguments: tuple[object, ...]) -> bool:
    flags = arguments[2] if len(arguments) > 2 else 0
    return isinstance(flags, int) and bool(flags & _WRITING) and arguments[0] != os.devnull


guard = _Guard()


def contain(keep: Collection[int]) -> None:
    """Cut this process, a fork of the script's, off from what it shares with the script.

    Args:
        keep: descriptors that stay open.
    """
    with contextlib.suppress(OSError):
        os.setsid()  # Ctrl-C is for the script
    for caught in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM):
        signal.signal(caught, signal.SIG_IGN if caught == signal.SIGINT else signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 0)
    with contextlib.suppress(OSError):
        os.nice(19)
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
