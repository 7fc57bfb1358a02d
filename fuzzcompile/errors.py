"""The errors that a user can mend, each with the exit status that it ends the program with.

Every message is one sentence that says what is wrong and what to do. The command line prints it
without a traceback (``--debug`` adds one).
"""


class FuzzcompileError(Exception):
    """Something the user can mend; the program ends with ``exit_status``."""

    exit_status = 3


class UsageError(FuzzcompileError):
    """A wrong option or an input that is not what the command takes (exit status 2)."""

    exit_status = 2


class EnvironmentUnfit(FuzzcompileError):
    """The machine, its torch or its disk cannot do what was asked (exit status 3)."""


class CaseError(UsageError):
    """A file that is no case: unreadable, no Python, no ``make()`` (exit status 2)."""
