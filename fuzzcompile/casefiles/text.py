"""The text of a file that a user names."""

from __future__ import annotations

import io
import tokenize
from pathlib import Path

from fuzzcompile.errors import CaseError, message_of

_LARGEST = 32 * 2**20


def read_source(path: Path) -> str:
    """The text of a case file, script or notebook, decoded as Python decodes it: UTF-8 or as its first lines declare.

    Raises:
        CaseError: there is no such file, it cannot be read, or it is not text.
    """
    data = _bytes_of(path)
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise CaseError(f"{path} is not text ({message_of(error, 120)}); name a Python file or a notebook.") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _bytes_of(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise CaseError(f"{path} is a folder; name a file in it.")
        if path.exists() and not path.is_file():
            raise CaseError(f"{path} is not a regular file, and a case is read more than once; write it to a file.")
        if path.stat().st_size > _LARGEST:
            raise CaseError(f"{path} is larger than any program (over 32 MiB); name a Python file or a notebook.")
        return path.read_bytes()
    except FileNotFoundError as error:
        raise CaseError(f"{path} does not exist.") from error
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CaseError(f"{path} cannot be read ({reason}); name a Python file or a notebook.") from error
