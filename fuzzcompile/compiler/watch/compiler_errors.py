"""Errors of the compiler: the place where one rose, and those that are the machine's fault."""

from __future__ import annotations

import contextlib
import errno
import functools
import linecache
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch
from torch import fx

from fuzzcompile.model.facts import facts
from fuzzcompile.model.stages import is_compiler
from fuzzcompile.run.code_files import find_owner, shorten_file
from fuzzcompile.run.observation import GeneratedPlace
from fuzzcompile.run.raise_sites import is_generated
from fuzzcompile.run.subprocesses import find_toolchain_fault

_MOST_FRAMES = 3
_MOST_GIVEN, _LONGEST_GIVEN = 6, 60
_FACTS = facts().errors


_Place = tuple[str, int, str]  # file, line and function


def find_raise_place(error: BaseException) -> _Place | tuple[None, None, None]:
    """File (relative to site-packages), line and function where an error of the compiler rose first, if known."""
    # In Inductor or a user's lowering; frames that only hand calls on are passed over unless there is nothing else.
    frames = [place for place, _ in _list_places(list_causes(error)[-1], _name_lowering_file)]
    telling = [place for place in frames if not _is_forwarding(*place)] or frames
    return telling[-1] if telling else (None, None, None)


def list_raise_frames(error: BaseException) -> tuple[_Place, ...]:
    """At most three innermost frames of the compiler that its error came through: file, line, function.

    A generated program that raised by itself has none, nor has an operator that it calls: its caller has finished its
    work.
    """
    return tuple(_qualify(*each) for each in _list_raising(error)[: -_MOST_FRAMES - 1 : -1])


def _qualify(place: _Place, frame: FrameType) -> _Place:
    """The place with the class of a method that many classes have, as ``__repr__``."""
    file, line, function = place
    return file, line, frame.f_code.co_qualname.rpartition("<locals>.")[2] if function.startswith("__") else function


def list_given(error: BaseException) -> tuple[str, ...]:
    """The arguments of the innermost frame that are numbers, text, tensors or nodes, as text."""
    for _, frame in _list_raising(error)[-1:]:
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        words = {name: _word_given(frame.f_locals.get(name)) for name in names}
        return tuple(f"{name}: {word}" for name, word in words.items() if word)[:_MOST_GIVEN]
    return ()


def _word_given(value: object) -> str:
    """A plain value or a tensor's form, a graph's node by the form of its result; empty for anything else."""
    with contextlib.suppress(Exception):  # of torch, in whose modes this may run
        if isinstance(value, fx.Node):
            value = value.meta.get("val", value.meta.get("example_value"))
        if isinstance(value, torch.Tensor):
            layout = "" if value.is_contiguous() else f" with strides {value.stride()}"
            return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}{layout}"
        if isinstance(value, (bool, int, float, str)) or (value is not None and type(value) in (list, tuple)):
            text = repr(value)
            return text if len(text) <= _LONGEST_GIVEN and " object at " not in text else ""
    return ""


def _list_raising(error: BaseException) -> list[tuple[_Place, FrameType]]:
    if find_generated_place(error) is not None or _is_of_called_operator(error):
        return []
    first, *later = reversed(list_causes(error))
    for cause in (first, *(error for error in later if not _is_raised_again(error))):
        frames = [each for each in _list_places(cause, _name_compiler_file) if not _is_forwarding(*each[0])]
        if frames:
            return frames
    return []


def find_generated_place(error: BaseException) -> GeneratedPlace | None:
    """The line of the generated program that raised an error by itself; None where anything else raised it.

    Of a program that is no Python, the line that Python does not take is all there is.
    """
    if isinstance(error, SyntaxError) and error.text and not Path(error.filename or "").is_file():
        return GeneratedPlace(error.text, 1)
    frame, line = next(reversed(list(traceback.walk_tb(error.__traceback__))), (None, 0))
    if frame is None or not is_generated(frame):
        return None
    source = "".join(linecache.getlines(frame.f_code.co_filename))
    return GeneratedPlace(source, line) if source else None


def find_inner_error(error: BaseException) -> BaseException:
    """The error that the compiler raised again as one of its own, which holds it as ``inner_exception``."""
    inner = getattr(error, "inner_exception", None)
    return find_inner_error(inner) if isinstance(inner, BaseException) and inner is not error else error


def find_origin(error: BaseException) -> BaseException:
    """The error that was raised first, which others were raised from."""
    return list_causes(error)[-1]


def list_causes(error: BaseException) -> list[BaseException]:
    """The error and its causes in turn, with what dynamo raises again as an error of its own ``from None``."""
    chain: list[BaseException] = []
    while error not in chain:
        chain.append(error)
        again = error.__context__ if _is_raised_again(error) else None
        error = error.__cause__ or again or error
    return chain


def _is_raised_again(error: BaseException) -> bool:
    return type(error).__module__ == "torch._dynamo.exc"


def _list_places(error: BaseException, name_file: Callable[[str], str | None]) -> list[tuple[_Place, FrameType]]:
    passed = traceback.walk_tb(error.__traceback__)
    named = ((name_file(frame.f_code.co_filename), line, frame) for frame, line in passed)
    return [((name, line, frame.f_code.co_name), frame) for name, line, frame in named if name is not None]


def _name_compiler_file(file: str) -> str | None:
    name = shorten_file(file)
    return name if is_compiler(name) else None


def _name_lowering_file(file: str) -> str | None:
    """The name of a file of Inductor or of a user's code; None for any other."""
    name, owner = shorten_file(file), find_owner(file)
    if owner == "torch":
        return name if name.startswith("torch/_inductor/") else None
    return name if owner == "program" and Path(file).is_file() else None


def _is_of_called_operator(error: BaseException) -> bool:
    """Return whether an operator raised an error that a generated program calls, perhaps through torch's own modes."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if not _is_forwarding(shorten_file(frame.f_code.co_filename), line, frame.f_code.co_name):
            return is_generated(frame)
    return False


def _is_forwarding(name: str, line: int, function: str) -> bool:
    forwards = name in _FACTS.forwarding_files or function in _FACTS.forwarding_functions
    return forwards or function in _FACTS.every_operator.get(name, ())


# Errors of a compile that are the machine's: a full disk, a folder without rights, no working C++ compiler.

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
_NO_RIGHTS = {errno.EACCES, errno.EPERM, errno.EROFS}
_EXHAUSTED = {errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ESTALE}
# A compiler that refuses a tiny program refuses a kernel for the same reason; asked once a process.
_check_toolchain = functools.cache(find_toolchain_fault)
# What g++ says when the machine stopped it, whatever it was to compile, as the system's number for it.
_STOPPED = {
    "No space left on device": errno.ENOSPC,
    "Disk quota exceeded": errno.EDQUOT,
    "Read-only file system": errno.EROFS,
    "Killed": errno.ENOMEM,
    "out of memory": errno.ENOMEM,
}


def describe_machine_fault(error: BaseException) -> str:
    """Return the fault of the machine behind an error (the root cause), and its remedy; empty if there is none."""
    if isinstance(error, OSError):
        return _describe_errno(error.errno or 0, str(error.filename or ""))
    # By name: these classes of torch._inductor.exc are not the same in every torch.
    if type(error).__name__ == "InvalidCxxCompiler":
        return find_toolchain_fault() or str(error).strip().splitlines()[0]
    if type(error).__name__ == "CppCompileError":
        output = str(getattr(error, "output", error))
        stopped = next((number for words, number in _STOPPED.items() if words in output), 0)
        return _describe_errno(stopped) or _check_toolchain() or ""
    return ""


def _describe_errno(number: int, file: str = "") -> str:
    """Describe an ``errno``; empty for one that a program may well be to blame for."""
    said = f"{os.strerror(number)}{f' ({file})' if file else ''}"
    if number in _NO_ROOM:
        return f"{said}; make room, or point TMPDIR and TORCHINDUCTOR_CACHE_DIR at a disk with some"
    if number in _NO_RIGHTS:
        return f"{said}; point TMPDIR and TORCHINDUCTOR_CACHE_DIR at folders that can be written"
    return said if number in _EXHAUSTED else ""
