"""What the GitHub Action says of a triage, from the events that ``fuzzcompile triage --log`` wrote.

    python tools/action_summary.py bugs EVENTS              # the cases with a new bug, each ended by a NUL
    python tools/action_summary.py summary EVENTS STATUS    # Markdown for the job's summary

The standard library only: it also runs where fuzzcompile could not be installed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_MEANS = {
    "0": "No bug that is not known.",
    "1": "A bug that is not in the baseline.",
    "2": "Wrong usage: the log of the step says what of.",
    "3": "Something could not be judged.",
}
_COLUMNS = "| case | result | severity | signature |\n| --- | --- | --- | --- |"

Event = Mapping[str, object]


def judged(events: Path) -> list[Event]:
    """The events of judged cases, in their order; none if the triage ended before the first."""
    if not events.is_file():
        return []
    lines = [json.loads(line) for line in events.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line["event"] == "case_judged"]


def new_bugs(cases: Sequence[Event]) -> list[Event]:
    """The cases with a bug that the baseline lacks."""
    return [case for case in cases if case["is_bug"] and not case["known"]]


def summary(cases: Sequence[Event], status: str) -> str:
    """Markdown: a sentence, then a table with the new bugs first."""
    lines = ["## fuzzcompile", "", f"{_MEANS.get(status, f'Ended with status {status}.')} {len(cases)} judged."]
    return "\n".join([*lines, "", _COLUMNS, *_rows(cases)] if cases else lines) + "\n"


def _rows(cases: Sequence[Event]) -> Iterator[str]:
    for case in sorted(cases, key=lambda case: (case not in new_bugs(cases), not case["is_bug"])):
        result = str(case["verdict"] or f"not judged: {case['error']}")
        cells = (case["case"], f"{result} (known)" if case["known"] else result, case["severity"], case["signature"])
        yield f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _cell(value: object) -> str:
    """Text for a cell: no bars, no lines, no HTML."""
    text = " ".join(str(value or "").split())[:300]
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")


def main(arguments: Sequence[str]) -> str:
    """What the command prints."""
    match list(arguments):
        case ["bugs", events]:
            return "".join(f"{bug['case']}\0" for bug in new_bugs(judged(Path(events))))
        case ["summary", events, status]:
            return summary(judged(Path(events)), status)
    return sys.exit(__doc__)


if __name__ == "__main__":
    sys.stdout.write(main(sys.argv[1:]))
