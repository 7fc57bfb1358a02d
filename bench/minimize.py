"""Measure how small the minimizer makes known bugs that are buried in a transformer of two layers or in a script.

    python bench/minimize.py [FILE...] [--corpus PATH] [--torch-minifier] [--budget SECONDS] [--out FILE] [--json FILE]

Without files it takes everything in bench/buried, and with --corpus also the first ten findings of that corpus, each
from the case that a campaign drew. Columns: lines of model and input code before and after, operators before and after,
compiles and screens (including those for judging the result), seconds, whether the result shows the bug when it runs
alone, whether its signature is the same, and whether a passing change of one line was found. With --torch-minifier,
torch's own minifier (TORCHDYNAMO_REPRO_AFTER=aot, level 4, and 2 for errors) gets the same case and --minifier-seconds.
The Markdown table is printed row by row and written to --out at the end.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from fuzzcompile.corpus.store import Store
from fuzzcompile.diagnosis.probe import SignatureLock
from fuzzcompile.diagnosis.worker.judge import prepare
from fuzzcompile.diagnosis.worker.minimization import CandidateTools, judge_source, make_job
from fuzzcompile.diagnosis.worker.minimize_task import LocalAsker
from fuzzcompile.fuzz.campaign.leftovers import load_case
from fuzzcompile.fuzz.generation.recipes import GeneratedRecipe, read_recipe
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.programs.casefiles.case_file import defines_make
from fuzzcompile.programs.ir.case_source import count_model_lines
from fuzzcompile.programs.ir.case_text import extract_case
from fuzzcompile.programs.shrink.minimize import minimize
from fuzzcompile.programs.shrink.search import SearchBudget, same_bug
from fuzzcompile.run.device import describe_environment

ROOT = Path(__file__).parent.parent
CPU = torch.device("cpu")
LINES, OPERATORS, TESTS, SECONDS = 12, 6, 60, 300.0
FINDINGS = 10
# Candidates with these verdicts would end this process.
_LOST = (Verdict.CRASH, Verdict.TIMEOUT)


@dataclass(frozen=True)
class Subject:
    """A case to be minimized, and its recipe if the generator drew it."""

    name: str
    source: str
    recipe: GeneratedRecipe | None = None


def subjects_of(files: list[Path], corpus: Path | None) -> Iterator[Subject]:
    """The files, then the first findings of a corpus."""
    for path in files:
        name = path.stem if path.stem != "case" else path.parent.name
        yield Subject(name, path.read_text(encoding="utf-8"))
    if corpus is None:
        return
    with Store.open(corpus, create=False) as store:
        for finding in store.findings()[:FINDINGS]:
            case = load_case(store, finding)
            yield Subject(finding.public_id, finding.source, read_recipe(case.choices, case.spec))


@dataclass(frozen=True)
class Row:
    """One case before and after. ``minifier`` is the result of torch's own minifier, at its ``level``."""

    name: str
    how: str
    lines_before: int
    lines: int
    operators_before: int | None
    operators: int | None
    compiles: int
    screens: int
    seconds: float
    confirmed: bool
    same_signature: bool
    neighbour: bool
    note: str
    level: int
    minifier: str = "not run"


def measured(subject: Subject, budget: float) -> Row | None:
    """Judge and minimize one case in this process; None if it shows no bug on this torch."""
    source = subject.source
    report = judge_source(source)
    if not report["is_bug"] or report["verdict"] in _LOST:
        return None
    tools = CandidateTools(LocalAsker(), SignatureLock.of(report), report)
    job = make_job(source, report, subject.recipe)
    outcome = minimize(job, tools, SearchBudget(200, time.monotonic() + budget))
    before = extract_case(source) if defines_make(source) else source
    after = extract_case(outcome.reproducer) if outcome.confirmed else outcome.source
    return Row(
        subject.name,
        outcome.how,
        count_model_lines(before),
        count_model_lines(after),
        outcome.operators_before,
        operators_in(after) if outcome.how == "graph" else outcome.operators,
        outcome.tally.compiles,
        outcome.tally.screens,
        outcome.seconds,
        outcome.confirmed,
        same_bug(report, outcome.report),
        outcome.neighbour is not None,
        outcome.note,
        2 if Verdict(report["verdict"]).kind == "error" else 4,
    )


def operators_in(source: str) -> int:
    """Calls, operators and subscripts in the program of a reduced case: what a reader counts."""
    program = next(n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef | ast.ClassDef))
    counted = (ast.Call, ast.BinOp, ast.UnaryOp, ast.AugAssign, ast.Compare, ast.Subscript)
    inner = [n for n in ast.walk(program) if isinstance(n, counted) and not _is_constant(n)]
    return len(inner)


def _is_constant(node: ast.AST) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant)


_DRIVER = """
import sys
import torch
from fuzzcompile.programs.capture.case_loader import load
from pathlib import Path
from fuzzcompile.run.case_program import build
from fuzzcompile.run.runs import observe
case = load(Path(sys.argv[1]), torch.device("cpu"))
program = build(case, torch.device("cpu"))
print(observe(case, program, torch.compile(program.model)).failure)
"""


def torch_minifier(source: str, seconds: float, level: int) -> str:
    """The result of torch's own minifier within ``seconds``: lines and calls of ATen IR; "-" for none.

    ``level`` is 4 for wrong values, 2 for errors, which 4 does not see.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "subject.py"
        path.write_text(source, encoding="utf-8")
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TORCHDYNAMO_REPRO_AFTER": "aot",
            "TORCHDYNAMO_REPRO_LEVEL": str(level),
            "TORCH_COMPILE_DEBUG_DIR": folder,
        }
        end = time.monotonic() + seconds
        _run([sys.executable, "-c", _DRIVER, str(path)], folder, environment, end)
        launchers = sorted(Path(folder).rglob("minifier_launcher.py"))
        if not launchers:
            return "-"
        plain = {key: value for key, value in environment.items() if not key.startswith("TORCHDYNAMO_REPRO")}
        _run([sys.executable, str(launchers[-1])], folder, plain, end)
        reproducers = sorted(Path(folder).rglob("repro.py"), key=lambda p: p.stat().st_mtime)
        if not reproducers:
            return f"- ({seconds:.0f} s)" if time.monotonic() >= end else "-"
        text = reproducers[-1].read_text(encoding="utf-8")
        return f"{count_model_lines(text)} lines, {text.count('torch.ops.')} ATen calls"


def _run(command: list[str], folder: str, environment: dict[str, str], end: float) -> None:
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        process.wait(max(1.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()


_COLUMNS = (
    "case", "by", "lines", "operators", "compiles + screens", "seconds", "confirmed", "signature kept",
    "passing neighbour", "torch's own",
)  # fmt: skip


def line(row: Row) -> str:
    """One row of the table."""
    cells = (
        row.name,
        row.how,
        f"{row.lines_before} → {row.lines}",
        f"{row.operators_before or '-'} → {row.operators if row.operators is not None else '-'}",
        f"{row.compiles} + {row.screens}",
        f"{row.seconds:.0f}",
        _yes_or_no(row.confirmed),
        _yes_or_no(row.same_signature),
        _yes_or_no(row.neighbour),
        row.minifier,
    )
    return f"| {' | '.join(cells)} |"


def _yes_or_no(answer: bool) -> str:
    return "yes" if answer else "no"


def summary(rows: list[Row]) -> dict[str, object]:
    """The figures that the bars bound."""
    return {
        "cases": len(rows),
        "median lines": statistics.median(row.lines for row in rows),
        "median operators": statistics.median([row.operators for row in rows if row.operators is not None] or [0]),
        "median compiles and screens": statistics.median(row.compiles + row.screens for row in rows),
        "most seconds": round(max(row.seconds for row in rows)),
        "confirmed": sum(row.confirmed for row in rows),
        "same signature": sum(row.same_signature for row in rows),
        "passing neighbour": sum(row.neighbour for row in rows),
    }


def misses(reached: dict[str, object]) -> bool:
    """Whether a bar is missed."""
    return bool(
        reached["median lines"] > LINES
        or reached["median operators"] > OPERATORS
        or reached["median compiles and screens"] > TESTS
        or reached["most seconds"] > SECONDS
        or reached["same signature"] < reached["cases"]
        or reached["confirmed"] < reached["cases"]
    )


class Table:
    """Prints the document line by line, and keeps it."""

    def __init__(self) -> None:
        self.text: list[str] = []

    def add(self, line: str = "") -> None:
        """Print a line."""
        self.text.append(line)
        print(line, flush=True)


def main() -> int:
    """Run the bench; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--torch-minifier", action="store_true")
    parser.add_argument("--minifier-seconds", type=float, default=120.0)
    parser.add_argument("--budget", type=float, default=SECONDS - 60)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    files = asked.files or sorted((ROOT / "bench" / "buried").glob("*.py"))
    subjects = list(subjects_of(files, asked.corpus))
    prepare(Conditions())
    table, rows = Table(), list[Row]()
    _introduce(table, asked)
    for subject in subjects:
        row = measured(subject, asked.budget)
        if row is None:
            table.add(f"| {subject.name} | shows no bug on this torch |{' |' * (len(_COLUMNS) - 2)}")
            continue
        if asked.torch_minifier:
            row = replace(row, minifier=torch_minifier(subject.source, asked.minifier_seconds, row.level))
        rows.append(row)
        table.add(line(row))
    if not rows:
        return 1
    reached = summary(rows)
    _conclude(table, rows, reached)
    if asked.out:
        asked.out.write_text("\n".join([*table.text, ""]), encoding="utf-8")
    if asked.json:
        asked.json.write_text(json.dumps({"rows": [asdict(row) for row in rows], "summary": reached}, indent=1))
    return int(misses(reached))


def _introduce(table: Table, asked: argparse.Namespace) -> None:
    facts = describe_environment(CPU)
    table.add("# Minimising, beside torch's own minifier\n")
    table.add("Made by `python bench/minimize.py`: what each column means is said there. Lines are those of model and")
    table.add("input code, operators what a reader counts in the program; torch's own minifier (after AOTAutograd,")
    table.add(
        f"level 4, 2 for errors, {asked.minifier_seconds:.0f} s at most) leaves lines of ATen IR, or nothing (-).\n"
    )
    table.add(
        f"torch {facts['torch']}, {facts['cpu']}, {torch.get_num_threads()} thread; {time.strftime('%Y-%m-%d')}\n"
    )
    table.add(f"| {' | '.join(_COLUMNS)} |")
    table.add("|" + "---|" * len(_COLUMNS))


def _conclude(table: Table, rows: list[Row], reached: dict[str, object]) -> None:
    table.add(f"\nBars: {LINES} lines, {OPERATORS} operators, {TESTS} compiles and screens, {SECONDS:.0f} s.")
    table.add("Reached: " + ", ".join(f"{name} {value:g}" for name, value in reached.items()) + ".")
    for row in rows:
        if row.note:
            table.add(f"\n{row.name}: {row.note}.")


if __name__ == "__main__":
    raise SystemExit(main())
