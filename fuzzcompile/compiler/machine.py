"""Errors of a compile that are the machine's: a full disk, a folder without rights, no working C++ compiler."""

from __future__ import annotations

import errno
import functools
import os

from fuzzcompile.execution.toolchain import toolchain_fault

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
_NO_RIGHTS = {errno.EACCES, errno.EPERM, errno.EROFS}
_EXHAUSTED = {errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ESTALE}
# By name: these classes of torch._inductor.exc are not the same in every torch.
_NO_COMPILER = "InvalidCxxCompiler"
_REFUSED = "CppCompileError"
# What g++ says when the machine stopped it, whatever it was to compile, as the system's number for it.
_STOPPED = {
    "No space left on device": errno.ENOSPC,
    "Disk quota exceeded": errno.EDQUOT,
    "Read-only file system": errno.EROFS,
    "Killed": errno.ENOMEM,
    "out of memory": errno.ENOMEM,
}


def machine_fault(error: BaseException) -> str:
    """Return the fault of the machine that made a compile fail, and its remedy; empty if there is none.

    Args:
        error: the exception without the wrappers of the compiler.
    """
    name = type(error).__name__
    if isinstance(error, OSError):
        return _of_the_system(error.errno or 0, str(error.filename or ""))
    if name == _NO_COMPILER:
        return toolchain_fault() or str(error).strip().splitlines()[0]
    if name == _REFUSED:
        output = str(getattr(error, "output", error))
        stopped = next((number for words, number in _STOPPED.items() if words in output), 0)
        return _of_the_system(stopped) or _toolchain()
    return ""


def _of_the_system(number: int, file: str = "") -> str:
    """Describe an ``errno``; empty for one that a program may well be to blame for."""
    said = f"{os.strerror(number)}{f' ({file})' if file else ''}"
    if number in _NO_ROOM:
        return f"{said}; make room, or point TMPDIR and TORCHINDUCTOR_CACHE_DIR at a disk with some"
    if number in _NO_RIGHTS:
        return f"{said}; point TMPDIR and TORCHINDUCTOR_CACHE_DIR at folders that can be written"
    return said if number in _EXHAUSTED else ""


@functools.cache
def _toolchain() -> str:
    """A compiler that refuses a tiny program refuses a kernel for the same reason; asked once a process."""
    return toolchain_fault() or ""
