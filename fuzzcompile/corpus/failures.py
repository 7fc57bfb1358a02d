"""Errors about a corpus that its user can fix."""

from __future__ import annotations

from fuzzcompile.model.errors import EnvironmentUnfit, UsageError


class CorpusError(EnvironmentUnfit):
    """The corpus cannot be opened, read or written (exit status 3)."""


class CorpusGone(CorpusError):
    """The corpus's server was lost, or does not answer yet: the same call may succeed later."""


class NotAFileError(UsageError):
    """A folder without a corpus was named as one (exit status 2)."""


class UnknownFindingError(UsageError):
    """No finding, or more than one, has the given name (exit status 2)."""


class UntrustedError(UsageError):
    """What was to be run comes from another corpus, and no one here trusts it (exit status 2)."""


class FolderTakenError(UsageError):
    """An export would overwrite files that do not belong to this finding (exit status 2)."""
