"""What reading says of the mutants that no case changed: how many of them change what some program computes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path

from recalling.answers import Answer

KINDS = {
    "changed": "what some program computes",
    "device": "that too, on a GPU alone",
    "cost": "speed, memory, rounding or what is logged",
    "none": "nothing",
}


@dataclass(frozen=True)
class Reading:
    """Mutants without a change, drawn at random and read.

    Attributes:
        seed: of the draw.
        kinds: by id, in the order of the draw, one of `KINDS`.
    """

    seed: int
    kinds: Mapping[str, str]

    @classmethod
    def of(cls, path: Path) -> Reading:
        """What a file holds; nothing if there is none."""
        stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"seed": 0, "kinds": {}}
        return cls(stored["seed"], stored["kinds"])

    def among(self, rows: Sequence[Answer]) -> list[Answer]:
        """The rows that were drawn and read, in the order of the draw."""
        by_id = {row.of.id: row for row in rows}
        return [by_id[mutant] for mutant in self.kinds if mutant in by_id]

    def of_kind(self, rows: Sequence[Answer], kind: str) -> list[Answer]:
        """Those of one kind."""
        return [row for row in self.among(rows) if self.kinds[row.of.id] == kind]


def plausible_totals(seen: int, drawn: int, whole: int) -> tuple[int, int]:
    """The least and greatest number of ``whole`` that has 2.5 % or more on either side of ``seen`` in ``drawn``.

    The draw is without replacement, so that this is the exact interval of the hypergeometric distribution.
    """
    totals = [
        total
        for total in range(seen, whole - drawn + seen + 1)
        if sum(_chance(count, drawn, total, whole) for count in range(seen, drawn + 1)) >= 0.025
        and sum(_chance(count, drawn, total, whole) for count in range(seen + 1)) >= 0.025
    ]
    return totals[0], totals[-1]


def _chance(count: int, drawn: int, total: int, whole: int) -> float:
    return comb(total, count) * comb(whole - total, drawn - count) / comb(whole, drawn)


def estimate(tried: Sequence[Answer], reading: Reading) -> Iterator[str]:
    """How many mutants without a change do change meaning, and what that makes of the judge's recall."""
    unchanged = [row for row in tried if row.outcome == "no change"]
    read = reading.among(unchanged)
    if not read:
        return
    changed = len(reading.of_kind(unchanged, "changed"))
    found, loud, missed = (sum(row.outcome == outcome for row in tried) for outcome in ("found", "loud", "missed"))
    likely = changed * len(unchanged) / len(read)
    fewest, most = plausible_totals(changed, len(read), len(unchanged))
    yield (
        f"- {len(read)} of the {len(unchanged)} without a change, drawn at random, were read: {changed} change what "
        f"some program computes. So some {likely:.0f} of the {len(unchanged)} do (95 %: {fewest} to {most}), and were "
        "not shown."
    )
    yield (
        f"- With these in the denominator, {found} of {found + missed + likely:.0f} "
        f"({_recall(found, missed, likely, fewest, most)}) silent mutants that change meaning were found, and "
        f"{found + loud} of {found + loud + missed + likely:.0f} "
        f"({_recall(found + loud, missed, likely, fewest, most)}) with the loud ones."
    )


def _recall(shown: int, missed: int, likely: float, fewest: int, most: int) -> str:
    least, best = (shown / (shown + missed + unshown) for unshown in (most, fewest))
    return f"{shown / (shown + missed + likely):.0%}; 95 %: {least:.0%} to {best:.0%}"


def section(tried: Sequence[Answer], reading: Reading, reasons: Mapping[str, str]) -> Iterator[str]:
    """The mutants read, as a table."""
    unchanged = [row for row in tried if row.outcome == "no change"]
    read = reading.among(unchanged)
    if not read:
        return
    yield f"## No change, read: {len(read)} of {len(unchanged)}"
    yield ""
    counts = [f"{kind} ({text}): {len(reading.of_kind(unchanged, kind))}" for kind, text in KINDS.items()]
    yield (
        f"`random.Random({reading.seed}).sample` over the ids in the order of the table below, those read before "
        f"included. What the mutation changes: {', '.join(counts)}. *Run* means that the program was run with the "
        "mutation put in; the rest was read only."
    )
    yield ""
    yield "| id | stage | place | kind | why |"
    yield "|---|---|---|---|---|"
    for row in read:
        mutation = row.of
        cells = [mutation.id, row.stage, f"`{mutation.place}`", reading.kinds[mutation.id]]
        cells.append(reasons.get(mutation.id, ""))
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield ""
