"""Confirm or refute on a GPU what was found for a target without one: a table of both verdicts, finding by finding.

    python tools/gpu_findings.py CORPUS|FOLDER OUTDIR [--device cuda]

CORPUS is a file or URL; FOLDER holds folders that ``fuzzcompile corpus export`` wrote. Writes ``confirmed.json`` and
``confirmed.md`` to OUTDIR after each finding, and the programs to ``OUTDIR/findings``. Exit status: 0 all were judged,
1 some could not be, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fuzzcompile.corpus.store import Store
from fuzzcompile.diagnosis.worker.file_triage import FileAnswer, triage_files
from fuzzcompile.model.conditions import Conditions, Limits
from fuzzcompile.model.contract import ReportJson, read_target
from fuzzcompile.model.errors import FuzzcompileError, UsageError
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.programs.casefiles.case_file import defines_make
from fuzzcompile.programs.scripts.reproducer import confirm_reproducer
from fuzzcompile.programs.shrink.search import same_bug
from fuzzcompile.run.device import resolve_device

_SECONDS = 60.0
_COLUMNS = ("finding", "target", "verdict on the target", "verdict on the device", "run alone", "outcome", "culprit")


@dataclass(frozen=True)
class Taken:
    """A finding for a target: its report there and its program, which is its reproducer if it has one."""

    name: str
    report: ReportJson
    source: str


@dataclass(frozen=True)
class Compared:
    """Both verdicts on one finding.

    ``alone`` is the exit status of the reproducer by itself: 1 shows the bug, 0 does not; None if it was not run.
    """

    finding: str
    target: str
    on_target: str
    on_device: str
    alone: int | None
    outcome: str
    culprit: str


def taken_from(source: str) -> list[Taken]:
    """The findings for targets in a corpus or a folder of exports.

    Raises:
        UsageError: there is none.
        CorpusError: the corpus cannot be opened.
    """
    folder = Path(source)
    found = list(_of_folder(folder) if folder.is_dir() else _of_corpus(source))
    if not found:
        raise UsageError(f"{source} holds no finding for a target; name a corpus or a folder of exported findings.")
    return found


def _of_folder(folder: Path) -> Iterator[Taken]:
    for path in sorted(folder.glob("**/finding.json")):
        stored = json.loads(path.read_text(encoding="utf-8"))
        repro = path.with_name("repro.py")
        program = repro if repro.exists() else path.with_name("case.py")
        report = (stored.get("reproducer") or {}).get("report") or stored["report"]
        if read_target(report) is not None:
            yield Taken(path.parent.name, report, program.read_text(encoding="utf-8"))


def _of_corpus(location: str) -> Iterator[Taken]:
    with Store.open(location, create=False) as store:
        for finding in store.findings():
            best = store.best_reproducer(finding.public_id)
            report = best.report if best is not None and best.report else finding.report
            if read_target(report) is not None:
                yield Taken(finding.public_id, report, best.source if best is not None else finding.source)


def compared(taken: Taken, answer: FileAnswer, alone: int | None) -> Compared:
    """What the device says of a finding; ``alone`` is the exit status of its reproducer there."""
    there = answer.report
    if there is None:
        outcome, verdict = "not judged", answer.error or "not judged"
    else:
        outcome, verdict = _outcome(taken.report, there, alone), there["verdict"]
    culprit = taken.report.get("culprit") or {}
    return Compared(
        taken.name,
        read_target(taken.report) or "",
        taken.report["verdict"],
        verdict,
        alone,
        outcome,
        str(culprit.get("rewrite") or culprit.get("stage") or "not attributed"),
    )


def _outcome(wanted: ReportJson, there: ReportJson, alone: int | None) -> str:
    if there["is_bug"]:
        return "confirmed" if same_bug(wanted, there) else "another bug"
    if alone == 1:
        return "confirmed by its reproducer alone"
    # A program that was captured on the CPU may not run elsewhere as it stands; its reproducer places what it makes.
    return "not judged" if there["verdict"] == Verdict.INVALID and alone != 0 else "refuted"


def table(rows: Sequence[Compared], device: str) -> str:
    """The comparison in Markdown."""
    lines = [f"# Findings for targets, on {device}", "", f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
    for row in rows:
        alone = "-" if row.alone is None else f"exit {row.alone}"
        cells = (row.finding, row.target, row.on_target, row.on_device, alone, row.outcome, row.culprit)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    agree = sum(row.outcome.startswith("confirmed") for row in rows)
    lines += ["", f"{agree} of {len(rows)} confirmed, {sum(row.outcome == 'refuted' for row in rows)} refuted."]
    return "\n".join(lines) + "\n"


def written(folder: Path, findings: Iterable[Taken]) -> list[Path]:
    """The programs as files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for taken in findings:
        paths.append(folder / f"{taken.name}.py")
        paths[-1].write_text(taken.source, encoding="utf-8")
    return paths


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge every finding on the device, and write what it says of each as it comes."""
    parser = argparse.ArgumentParser("gpu_findings.py", description="Confirm findings for targets on a GPU.")
    parser.add_argument("source", metavar="CORPUS|FOLDER")
    parser.add_argument("out", metavar="OUTDIR", type=Path)
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args(arguments)
    try:
        device = str(resolve_device(given.device))
        findings = taken_from(given.source)
        paths = written(given.out / "findings", findings)
        rows = list[Compared]()
        conditions = Conditions(given.device, limits=Limits(_SECONDS))
        for taken, answer in zip(findings, triage_files(paths, conditions), strict=True):
            runs = defines_make(taken.source) and "__main__" in taken.source
            alone = confirm_reproducer(taken.source, timeout=_SECONDS).status if runs else None
            rows.append(compared(taken, answer, alone))
            (given.out / "confirmed.json").write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
            (given.out / "confirmed.md").write_text(table(rows, device))
    except FuzzcompileError as error:
        sys.stderr.write(f"gpu_findings: {error}\n")
        return error.exit_status
    return int(any(row.outcome == "not judged" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
