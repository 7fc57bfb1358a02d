"""What can go wrong with a corpus that its user can mend."""

from fuzzcompile.errors import EnvironmentUnfit, UsageError


class CorpusError(EnvironmentUnfit):
    """The corpus cannot be opened, read or written (exit status 3)."""


class UnknownFindingError(UsageError):
    """No finding, or more than one, answers to the name that was given (exit status 2)."""


class FolderTakenError(UsageError):
    """An export would overwrite files that are not of this finding (exit status 2)."""
