"""Restore what a script changes in its process once its case is finished."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

from fuzzcompile.execution.reachable import is_user_file


@contextlib.contextmanager
def preserved_process() -> Iterator[None]:
    """Restore ``__main__``, arguments, import path, environment, working folder and warning filters at the end."""
    main, argv, search_path = sys.modules.get("__main__"), sys.argv, list(sys.path)
    modules = set(sys.modules)
    environment, folder = dict(os.environ), _working_folder()
    with warnings.catch_warnings():
        try:
            yield
        finally:
            if main is not None:
                sys.modules["__main__"] = main
            sys.argv, sys.path[:] = argv, search_path
            _forget_modules(modules)
            signal.setitimer(signal.ITIMER_REAL, 0)
            logging.disable(logging.NOTSET)
            _restore_environment(environment)
            if folder is not None and _working_folder() != folder:
                with contextlib.suppress(OSError):
                    os.chdir(folder)


def _forget_modules(known: set[str]) -> None:
    """Drop the user's modules imported since: the next file may have other modules of the same names."""
    for name in set(sys.modules) - known:
        if is_user_file(getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


def _working_folder() -> Path | None:
    try:
        return Path.cwd()
    except OSError:  # it has been removed
        return None


def _restore_environment(wanted: dict[str, str]) -> None:
    for name in set(os.environ) - set(wanted):
        del os.environ[name]
    for name, value in wanted.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


@contextlib.contextmanager
def silenced_output() -> Iterator[None]:
    """Discard standard output, written by Python or below it: a script may print without end."""
    sys.stdout.flush()
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        with Path(os.devnull).open("w") as stream, contextlib.redirect_stdout(stream):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
