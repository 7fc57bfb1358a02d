"""The public benchmark of 130 silent bugs of torch.compile: which are put back in memory, and why others are not.

``issues.tsv`` lists all 130 (https://github.com/maybeLee/Torch-Compile-Correctness-Bug-Study). ``issue_N.py`` is a
plant (``--plant``) that undoes the fix of issue N, with its reproducer and what is to be found in three literals:

CASE: a case file or a script, the reproducer of the report as short as it gets, right without the plant
STAGES: the stages that are right as a culprit's
NAMES: operators, passes or rewrites of which the culprit must be one
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

FOLDER = Path(__file__).parent
_TABLE = FOLDER / "issues.tsv"


@dataclass(frozen=True)
class PublicBug:
    """A row of ``issues.tsv``.

    ``six`` says whether one of the six research tools of the study found it, ``named`` whether the bench names it
    (``yes``, ``no``, ``at times`` or ``with AVX-512``), ``reason`` why it is not put back; one of both is empty.
    """

    issue: int
    title: str
    pattern: str
    six: bool
    named: str
    reason: str

    @property
    def plant(self) -> Path:
        """The file that puts it back."""
        return FOLDER / f"issue_{self.issue}.py"

    @cached_property
    def _literals(self) -> dict[str, object]:
        tree = ast.parse(self.plant.read_text(encoding="utf-8"))
        found: dict[str, object] = {}
        for node in tree.body:
            match node:
                case ast.Assign(targets=[ast.Name(id="CASE" | "STAGES" | "NAMES" as name)], value=value):
                    found[name] = ast.literal_eval(value)
        return found

    @property
    def case(self) -> str:
        """The text of its reproducer."""
        return str(self._literals["CASE"])

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages that are right."""
        return tuple(self._literals["STAGES"])  # type: ignore[arg-type]

    @property
    def names(self) -> tuple[str, ...]:
        """The names that are right."""
        return tuple(self._literals["NAMES"])  # type: ignore[arg-type]


def read_bugs() -> list[PublicBug]:
    """All 130, in the order of the table."""
    return [
        PublicBug(int(issue), title, pattern, six == "yes", named, reason)
        for issue, title, pattern, six, named, reason in _read_rows()[1:]
    ]


def record_named(named: Mapping[int, bool]) -> None:
    """Write down which bugs are named, where the table says yes or no."""
    rows = _read_rows()
    for row in rows[1:]:
        if row[4] in ("yes", "no") and int(row[0]) in named:
            row[4] = "yes" if named[int(row[0])] else "no"
    _TABLE.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")


def _read_rows() -> list[list[str]]:
    return [line.split("\t") for line in _TABLE.read_text(encoding="utf-8").splitlines()]
