"""Errors that a user can fix, each with the exit status of the program.

Every message is one sentence that says what is wrong and what to do. The command line prints it without a traceback
(``--debug`` adds one).
"""

from __future__ import annotations


class FuzzcompileError(Exception):
    """An error that the user can fix; the program ends with ``exit_status``."""

    exit_status = 3


class UsageError(FuzzcompileError):
    """A wrong option, or an input that the command does not accept (exit status 2)."""

    exit_status = 2


class EnvironmentUnfit(FuzzcompileError):
    """The machine, its torch or its disk cannot do what was asked (exit status 3)."""


class MachineUnfit(EnvironmentUnfit):
    """A case could not be compiled for want of a disk or a compiler; others will fare no better (exit status 3)."""


class CaseError(UsageError):
    """A file that is not a case: unreadable, not Python, without ``make()`` (exit status 2)."""


def format_message(error: BaseException, limit: int = 600) -> str:
    """Return the message of an exception, on one line and cut at ``limit`` characters."""
    return " ".join(str(error).split())[:limit]


def describe_error(error: BaseException, limit: int = 300) -> str:
    """Return an exception's type, and its message if it has one, on one line and cut at ``limit`` characters."""
    return f"{type(error).__name__}: {format_message(error, limit)}".removesuffix(": ")[:limit]
