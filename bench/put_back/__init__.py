"""The public benchmark of 130 silent bugs of torch.compile: which are put back in memory, and why others are not.

``issues.tsv`` lists all 130 (https://github.com/maybeLee/Torch-Compile-Correctness-Bug-Study). ``issue_N.py`` is a
plant (``--plant``) that undoes the fix of issue N, with its reproducer and what is to be found in three literals:

CASE: a case file or a script, the reproducer of the report as short as it gets, right without the plant
STAGES: the stages that are right as a culprit's
NAMES: operators, passes or rewrites of which the culprit must be one
"""

from __future__ import annotations

import ast
import csv
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class PublicBug:
    """A row of ``issues.tsv``.

    ``six`` says whether one of the six research tools of the study found it, ``reason`` why it is not put back (empty
    where it is).
    """

    issue: int
    title: str
    pattern: str
    six: bool
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
    with (FOLDER / "issues.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    return [
        PublicBug(int(row["issue"]), row["title"], row["pattern"], row["six"] == "yes", row["not put back because"])
        for row in rows
    ]
