"""A mutant of the compiler: one expression or statement of one function, replaced in memory."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

Position = tuple[int, int]

_PLANT = """\
# Mutant {id} of {file}:{line}, in {function} ({operator}). Use: fuzzcompile triage CASE --plant THIS_FILE
# - {before}
# + {after}
import sys

sys.path.insert(0, {folder!r})
from recalling.code_replacement import replace_code

REACHED = []
replace_code({file!r}, {start}, {end}, {after!r}, lambda: REACHED.append(1) if not REACHED else None).install()
"""


@dataclass(frozen=True)
class Mutation:
    """One change of one function.

    Attributes:
        file: relative to the folder that holds torch.
        function: the qualified name of the innermost function; ``<lambda>`` for a lambda.
        lines: the first and last line of that function.
        start: where the replaced code starts: a line, from 1, and a column, from 0.
        end: where it ends.
        operator: the kind of change.
        before: the code replaced, on one line.
        after: what takes its place; empty for a dropped statement.
    """

    file: str
    function: str
    lines: tuple[int, int]
    start: Position
    end: Position
    operator: str
    before: str
    after: str

    @property
    def id(self) -> str:
        """Eight digits that name the mutant; the same in each run on the same torch."""
        place = json.dumps([self.file, self.start, self.end, self.operator, self.after])
        return hashlib.sha256(place.encode()).hexdigest()[:8]

    @property
    def place(self) -> str:
        """File and line."""
        return f"{self.file}:{self.start[0]}"

    @property
    def diff(self) -> str:
        """The change, on one line."""
        return f"{_short(self.before)} → {_short(self.after) or '(dropped)'}"

    def plant(self) -> str:
        """A file for ``--plant`` that makes the mutant of the installed torch."""
        return _PLANT.format(
            **{**asdict(self), "id": self.id, "line": self.start[0], "folder": str(Path(__file__).parents[1])}
        )

    def write(self, folder: Path) -> Path:
        """Write the plant into ``folder``."""
        path = folder / f"mutant_{self.id}.py"
        path.write_text(self.plant(), encoding="utf-8")
        return path

    @classmethod
    def from_json(cls, fields: dict[str, object]) -> Mutation:
        """The mutation whose fields ``dataclasses.asdict`` gave, read back from JSON."""
        pairs = {name: tuple(fields[name]) for name in ("lines", "start", "end")}  # type: ignore[call-overload]
        return cls(**{**fields, **pairs})  # type: ignore[arg-type]


def _short(text: str) -> str:
    return text if len(text) <= 90 else text[:87] + "..."
