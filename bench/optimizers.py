"""Optimizers of torch in compiled training steps: the verdict on each, its culprit, and how far its updates are off.

    python bench/optimizers.py [--state optimizers.jsonl] [--report reports/optimizers-2.13.md] [--only WORD ...]

Every optimizer of ``torch.optim`` in each of its implementations and with each of its settings, and a few of them with
each learning rate scheduler, clipped gradients, a gradient scaler, and averaged weights (``optimizer_scripts.py``). A
program is a script that compiles four training steps and asks ``fuzzcompile.triage`` about them; a worker judges. Some
260 programs take half an hour of a quiet core.

``--state`` holds a line of JSON for each program that was judged: what stands there is not judged again, unless its
script has changed. ``--only`` judges the programs whose name holds one of the words; ``--again`` judges them anew.
``--report`` writes the tables of what was judged below the line of the report that names this command; what a person
wrote above it stays. A difference is that of a parameter, compiled beside float64, in units of its change over the four
steps (RMS); that of the worst parameter is shown.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from optimizer_scripts import Program, list_programs

import fuzzcompile
from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.errors import FuzzcompileError
from fuzzcompile.model.signatures import hash_source
from fuzzcompile.run.device import describe_environment, resolve_device

_MADE_BY = "<!-- made by: python bench/optimizers.py"
# Seconds for one program.
_LIMIT = 150.0
_NO_FINDING = ("equal", "rounding")
# The sentence of a branch ends with a number of its own for each program.
_OWN_END = re.compile(r"; what the program changes in place differs by .*")


@dataclass(frozen=True)
class Row:
    """The answer on one program: a report, or the reason why there is none."""

    name: str
    sha: str  # of the script
    seconds: float
    report: ReportJson | None = None
    error: str = ""
    updates: Sequence[float] = ()  # the change of each parameter over the steps, RMS; none where eager mode raises

    @property
    def verdict(self) -> str:
        """The verdict, or that there is none."""
        return self.report["verdict"] if self.report else "no answer"

    @property
    def place(self) -> str:
        """The stage, the place and the name of the culprit; empty without one."""
        culprit = self.report.get("culprit") if self.report else None
        if not culprit:
            return ""
        place = f"{culprit['source']}:{culprit['line']}" if culprit.get("line") else culprit.get("source")
        return f"{', '.join(filter(None, (culprit['stage'], place)))} ({culprit.get('rewrite') or culprit['family']})"

    @property
    def difference(self) -> float | None:
        """The error of the worst parameter in units of its change; None where none is known."""
        errors = dict[int, float]()
        for output in self.report["evidence"].get("outputs", ()) if self.report else ():
            number = re.search(r"params\.(\d+) after the call", output["name"])
            if number and output["rms_error_compiled"] is not None:
                errors[int(number[1])] = output["rms_error_compiled"]
        known = {number: error for number, error in errors.items() if self.updates and self.updates[number]}
        return max((error / self.updates[number] for number, error in known.items()), default=None)

    @property
    def said(self) -> str:
        """The sentence of a finding, and the notes of any answer; without numbers of this program alone."""
        if self.report is None:
            return self.error
        finding = "" if self.verdict in _NO_FINDING else _OWN_END.sub("", self.report["detail"])
        where = self.report["where"]["why"]
        return "; ".join(filter(None, (finding, *(self.report["evidence"].get("notes") or ()), where)))


def main() -> None:
    """Judge what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state", type=Path, default=Path("optimizers.jsonl"))
    parser.add_argument("--report", type=Path)
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--tables", action="store_true", help="judge nothing: print what was judged")
    parser.add_argument("--show", metavar="NAME", help="print the script of a program, and its report")
    given = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of programs
        programs = list_programs()
        rows = read_rows(given.state)
        if given.show:
            (program,) = (each for each in programs if each.name == given.show)
            print(program.source, json.dumps(asdict(rows[given.show]), indent=1) if given.show in rows else "")
            return
        chosen = [each for each in programs if not given.only or any(word in each.name for word in given.only)]
        for program in () if given.tables else chosen:
            known = rows.get(program.name)
            if program.left_out or (known and known.sha == hash_source(program.source) and not given.again):
                continue
            rows[program.name] = row = judge(program)
            with given.state.open("a", encoding="utf-8") as state:
                state.write(json.dumps(asdict(row)) + "\n")
            print(f"{row.seconds:4.0f} s  {row.verdict:14} {row.name}  {row.place}", flush=True)
    text = "\n".join(iter_lines(programs, rows))
    if given.report is not None:
        write_report(given.report, text)
    print(text)


def read_rows(state: Path) -> dict[str, Row]:
    """The last answer on each program."""
    lines = state.read_text(encoding="utf-8").splitlines() if state.exists() else []
    return {row.name: row for row in (Row(**json.loads(line)) for line in lines)}


def judge(program: Program) -> Row:
    """Run a script, whose last line asks for a triage."""
    source = program.source.replace("fuzzcompile.triage(", "triage(")
    names: dict[str, Any] = {"triage": fuzzcompile.triage.options(timeout=_LIMIT)}
    start = time.monotonic()
    try:
        exec(compile(source, "script.py", "exec"), names)
    except FuzzcompileError as error:
        return Row(program.name, hash_source(program.source), time.monotonic() - start, error=str(error))
    seconds, report = time.monotonic() - start, names["report"].json
    return Row(program.name, hash_source(program.source), seconds, report, updates=program.measure_updates())


def iter_lines(programs: Sequence[Program], rows: Mapping[str, Row]) -> Iterator[str]:
    """The lines of the tables."""
    judged = [rows[program.name] for program in programs if program.name in rows and not program.left_out]
    machine = describe_environment(resolve_device("cpu"), None)
    yield (
        f"{datetime.datetime.now(datetime.UTC).date()}, revision {_find_revision()}, torch {torch.__version__}, Python "
        f"{machine['python']}, {machine['cpu']} ({machine['cpu_capability']}), {machine['platform']}."
    )
    missing = [program for program in programs if not program.left_out and program.name not in rows]
    verdicts = Counter(row.verdict for row in judged)
    minutes = sum(row.seconds for row in judged) / 60
    yield ""
    yield (
        f"{len(judged)} programs in {minutes:.0f} minutes: "
        f"{', '.join(f'{name} {count}' for name, count in verdicts.most_common())}; "
        f"{sum(row.report['where']['process'] == 'in place' for row in judged if row.report)} judged in place, "
        f"{len(missing)} not judged yet."
    )
    sentences: dict[str, str] = {}
    groups = defaultdict[str, list[Row]](list)
    extras = {program.name: program.extra for program in programs}
    for row in judged:
        groups[_group(row.name, extras[row.name])].append(row)
    for title, group in groups.items():
        yield from ("", f"## {title}", "")
        yield "| what | verdict | confidence | branch or culprit | graphs | difference / update | said |"
        yield "|---|---|---|---|--:|--:|---|"
        for row in group:
            report, said = row.report, row.said and sentences.setdefault(row.said, f"S{len(sentences) + 1}")
            difference = "" if row.difference is None else f"{row.difference:.1e}"
            graphs = report["evidence"].get("graphs", "") if report else ""
            confidence = report["confidence"] if report else ""
            cells = (f"`{row.name}`", row.verdict, confidence, row.place, graphs, difference, said)
            yield f"| {' | '.join(map(str, cells))} |"
    yield from ("", "## Said", "")
    yield from (f"- {number}: {' '.join(text.split())}" for text, number in sentences.items())
    yield from ("", "## Left out: the optimizer refuses its arguments", "")
    yield from (f"- `{program.name}`: {program.left_out}" for program in programs if program.left_out)


def _group(name: str, extra: str) -> str:
    if not extra:
        return "Optimizers"
    kinds = {"clip_": "Clipped gradients", "torch.amp": "Gradient scaler", "AveragedModel": "Averaged weights"}
    return next((title for start, title in kinds.items() if extra.startswith(start)), "Learning rate schedulers")


def _find_revision() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def write_report(path: Path, text: str) -> None:
    """Put the tables below the line of the report that names this command."""
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    above, _, _ = old.partition(_MADE_BY)
    head = above or f"# Optimizers in compiled steps, torch {torch.__version__}\n\n"
    path.write_text(f"{head}{_MADE_BY} --tables -->\n\n{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
