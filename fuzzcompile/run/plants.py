"""Plants: Python files that run before anything compiles and put a known bug into the installed torch."""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from pathlib import Path

from fuzzcompile.model.errors import UsageError, describe_error

_executed: list[Path] = []


def check_plants(paths: Sequence[Path]) -> None:
    """Refuse plants that cannot be read or parsed, before any worker starts.

    Raises:
        UsageError: a file is unreadable or not valid Python; the message names it.
    """
    for path in paths:
        try:
            compile(path.read_text(encoding="utf-8"), str(path), "exec")
        except (OSError, UnicodeDecodeError, SyntaxError, ValueError) as error:
            raise UsageError(f"Cannot use the plant {path}: {' '.join(str(error).split())[:200]}.") from error


def run_plants(paths: Sequence[Path]) -> None:
    """Execute the files in this process, each as a module of its own that stays loaded, and remember them.

    Raises:
        UsageError: a plant raises.
    """
    for number, path in enumerate(paths):
        module = types.ModuleType(f"fuzzcompile_plant_{number}")
        module.__file__ = str(path.resolve())
        sys.modules[module.__name__] = module
        try:
            text = path.read_text(encoding="utf-8")
            exec(compile(text, str(path.resolve()), "exec", dont_inherit=True), module.__dict__)
        except Exception as error:  # user code: whatever it raises is an error of the plant
            raise UsageError(f"The plant {path} raises {describe_error(error, 220)}.") from error
        _executed.append(path.resolve())


def list_plants() -> tuple[Path, ...]:
    """The plants that this process has executed, as absolute paths: what it compiles is compiled with them."""
    return tuple(_executed)
