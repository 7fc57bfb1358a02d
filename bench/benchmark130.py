"""The public benchmark of 130 silent bugs of torch.compile: each that can be put back is judged by its own reproducer.

    python bench/benchmark130.py [--only ISSUE ...] [--clean] [--json FILE] [--record]

A bug is *found* if `triage` calls its reproducer a bug with the fix undone, and *named* if stage and name of the
culprit are right too (`put_back`). ``--clean`` judges the reproducers without the plants as well: none may be a bug.
``--record`` writes down which bugs are named; `tests/test_put_back.py` (slow) fails where one no longer is.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from grading import names
from put_back import PublicBug, read_bugs, record_named

from fuzzcompile.run.device import describe_environment, resolve_device


@dataclass(frozen=True)
class Answer:
    """What `triage` says of a reproducer: the verdict, and stage and name of the culprit, or why there is none."""

    issue: int
    verdict: str
    found: bool
    stage: str | None
    culprit: str | None
    named: bool
    clean: str | None


def triage(text: str, plants: Sequence[Path]) -> dict[str, object]:
    """The report of `fuzzcompile triage --json` on a case with these plants."""
    with tempfile.TemporaryDirectory() as folder:
        case = Path(folder, "case.py")
        case.write_text(text, encoding="utf-8")
        options = [option for plant in plants for option in ("--plant", str(plant))]
        command = [sys.executable, "-m", "fuzzcompile", "triage", str(case), "--json", "--device", "cpu", *options]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = ran.stdout.strip().splitlines()
    if not lines:
        return {"verdict": None, "error": ran.stderr[-400:], "is_bug": False, "culprit": None}
    report: dict[str, object] = json.loads(lines[-1])
    return report


def judge(bug: PublicBug, *, clean: bool) -> Answer:
    """The answer on a bug that is put back; with ``clean`` also the verdict without the plant."""
    report = triage(bug.case, [bug.plant])
    culprit = report.get("culprit")
    stage = name = None
    told: list[str] = []
    if isinstance(culprit, dict):
        stage, name = culprit["stage"], culprit["rewrite"] or culprit["pass"]
        told = [str(culprit[key]) for key in ("rewrite", "pass", "family") if culprit.get(key)]
    found = bool(report.get("is_bug"))
    named = found and stage in bug.stages and any(names(bug.names, one) for one in told)
    without = triage(bug.case, []) if clean else {}
    verdict = str(report["verdict"] or report.get("error"))
    return Answer(bug.issue, verdict, found, stage, name, named, str(without.get("verdict")) if clean else None)


def print_patterns(bugs: Sequence[PublicBug], answers: Sequence[Answer]) -> None:
    """A row for each pattern of the study, beside the six tools."""
    told = {answer.issue: answer for answer in answers}
    print("\n| pattern | bugs | found by the six | put back | found | named |\n|---|---:|---:|---:|---:|---:|")
    for pattern in [*dict.fromkeys(bug.pattern for bug in bugs), "all"]:
        rows = [bug for bug in bugs if pattern in (bug.pattern, "all")]
        own = [told[bug.issue] for bug in rows if bug.issue in told]
        found, named = sum(answer.found for answer in own), sum(answer.named for answer in own)
        print(f"| {pattern} | {len(rows)} | {sum(bug.six for bug in rows)} | {len(own)} | {found} | {named} |")


def iterate_answers(bugs: Sequence[PublicBug], clean: bool) -> Iterator[Answer]:
    """The answers one after another, each printed as a row."""
    print("| issue | pattern | verdict | culprit | found | named |" + (" clean |" if clean else ""))
    print("|---|---|---|---|---|---|" + ("---|" if clean else ""))
    for bug in bugs:
        answer = judge(bug, clean=clean)
        said = f"{answer.stage}: {answer.culprit}" if answer.stage else ""
        marks = ["yes" if mark else "**no**" for mark in (answer.found, answer.named)]
        cells = [f"#{bug.issue}", bug.pattern, answer.verdict, said, *marks, *([str(answer.clean)] if clean else [])]
        print(f"| {' | '.join(cells)} |", flush=True)
        yield answer


def main() -> None:
    """Judge and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=int, nargs="+", default=[], help="these issues")
    parser.add_argument("--clean", action="store_true", help="judge the reproducers without the plants as well")
    parser.add_argument("--json", type=Path, help="where to write the answers")
    parser.add_argument("--record", action="store_true", help="write down in the table which bugs are named")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {describe_environment(resolve_device('cpu'), None).get('cpu')}\n")
    every = read_bugs()
    bugs = [bug for bug in every if not bug.reason and (not options.only or bug.issue in options.only)]
    answers = list(iterate_answers(bugs, options.clean))
    print_patterns(every if not options.only else bugs, answers)
    reasons = Counter(bug.reason.partition(":")[0] for bug in every if bug.reason)
    print("\nNot put back: " + "; ".join(f"{reason} ({number})" for reason, number in reasons.most_common()) + ".")
    lost = [
        str(bug.issue) for bug, answer in zip(bugs, answers, strict=True) if bug.named == "yes" and not answer.named
    ]
    print(f"Named before, and no longer: {', '.join(lost) or 'none'}.")
    if options.record:
        record_named({answer.issue: answer.named for answer in answers})
    if options.json:
        options.json.write_text(json.dumps([asdict(answer) for answer in answers], indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
