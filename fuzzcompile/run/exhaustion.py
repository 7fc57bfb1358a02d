"""Exhausted memory, which torch reports in several ways, as one exception."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

# Messages of torch's allocators in a plain RuntimeError.
_NO_MEMORY = ("can't allocate memory", "not enough memory", "std::bad_alloc", "CUDA out of memory")


@contextlib.contextmanager
def memory_errors() -> Iterator[None]:
    """Turn every exception that stands for exhausted memory into a MemoryError."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # re-raised unless it stands for exhausted memory
        if not is_exhausted_memory(error):
            raise
        raise MemoryError(first_line(error)) from error


def is_exhausted_memory(error: BaseException | None) -> bool:
    """Whether an exception, or one of its causes, says that memory ran out."""
    while error is not None:
        if isinstance(error, MemoryError | torch.OutOfMemoryError):
            return True
        if isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY):
            return True
        error = error.__cause__
    return False


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, at most 300 characters."""
    text = str(error).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__
