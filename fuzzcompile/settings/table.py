"""The settings: their names in pyproject.toml, their environment variables, and what is built in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fuzzcompile.settings.kinds import Choice, FilePath, Kind, Number, Patterns, Text, Value
from fuzzcompile.severity import Severity
from fuzzcompile.targets import TARGETS


@dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        key: its name in ``[tool.fuzzcompile]``, and that of the option (``--max-memory``).
        kind: what values it takes.
        says: what it sets, for ``fuzzcompile config``.
        default: what is built in; None where a command decides.
    """

    key: str
    kind: Kind
    says: str
    default: Value | None = None

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"FUZZCOMPILE_{self.key.replace('-', '_').upper()}"


SETTINGS = (
    Setting("corpus", FilePath(or_url=True), "the corpus, a path or a URL", Path("corpus/fuzzcompile.db")),
    Setting("drafts", FilePath(), "the folder for a campaign's issue drafts", Path("reports/drafts")),
    Setting("device", Text("auto, cpu, cuda or cuda:N, as text"), "where cases run", "auto"),
    Setting("target", Choice(tuple(TARGETS)), "the device that the compiler is told"),
    Setting("workers", Number(1, 256, whole=True), "worker processes"),
    Setting("timeout", Number(1), "seconds for one case", 180.0),
    Setting("max-memory", Number(0.5), "GiB of host memory for one worker", 8.0),
    Setting("patience", Number(0), "seconds to wait for a corpus whose database server is gone", 600.0),
    Setting("baseline", FilePath(), "known bugs, which do not make the exit status 1"),
    Setting("fail-on", Choice(tuple(map(str, Severity))), "the least severity that makes the exit status 1"),
    Setting("ignore", Patterns(), "bugs that count as known, and files of a folder that are not judged", ()),
)
_BY_KEY = {setting.key: setting for setting in SETTINGS}
KEYS = tuple(_BY_KEY)


def setting(key: str) -> Setting:
    """The setting of that name.

    Raises:
        KeyError: there is none.
    """
    return _BY_KEY[key]
