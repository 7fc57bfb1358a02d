"""How small the minimiser makes known bugs that are buried in a transformer of two layers or in a script.

    python bench/minimize.py [FILE...] [--torch-minifier] [--budget SECONDS] [--json FILE]

Without files: everything in bench/buried and the cases of corpus/. For each: lines of model and input code before and
after, operators before and after, compiles and screens, seconds of the search, whether the product shows the bug when
it runs alone, and whether the signature is still the same. With --torch-minifier torch's own minifier
(TORCHDYNAMO_REPRO_AFTER=aot, level 4) gets the same case and the same time.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from fuzzcompile.generation import Profile
from fuzzcompile.isolation import isolated
from fuzzcompile.loading import defines_make, load
from fuzzcompile.probing import Target
from fuzzcompile.reduction.jobs import same_bug
from fuzzcompile.reduction.minimiser import minimise
from fuzzcompile.reduction.scripts.sources import case_part
from fuzzcompile.reduction.search import Budget
from fuzzcompile.reduction.writing import model_lines
from fuzzcompile.shrinking import LocalTools, job_of
from fuzzcompile.triage import triage
from fuzzcompile.work import WorkerSetup, prepare

ROOT = Path(__file__).parent.parent
CPU = torch.device("cpu")
LINES, OPERATORS, TESTS, SECONDS = 12, 6, 60, 300.0


@dataclass(frozen=True)
class Row:
    """One case: what it was and what it became. ``minifier`` is what torch's own came to."""

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
    note: str
    minifier: str = "not run"


def measured(path: Path, budget: float) -> Row | None:
    """Judge and minimise one file in this process; None if it shows no bug on this torch."""
    with isolated():
        report = triage(load(path, CPU), CPU).to_json()
    if not report["is_bug"]:
        return None
    source = path.read_text(encoding="utf-8")
    tools = LocalTools(Target.of(report))
    outcome = minimise(job_of(source, report, None, Profile()), tools, Budget(200, time.monotonic() + budget))
    before = case_part(source) if defines_make(source) else source
    after = case_part(outcome.reproducer) if outcome.confirmed else outcome.source
    return Row(
        path.stem if path.stem != "case" else path.parent.name,
        outcome.how,
        model_lines(before),
        model_lines(after),
        outcome.operators_before,
        operators_in(after) if outcome.how == "graph" else outcome.operators,
        outcome.tally.compiles,
        outcome.tally.screens,
        outcome.seconds,
        outcome.confirmed,
        same_bug(report, outcome.report),
        outcome.note,
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
from fuzzcompile.loading import load
from pathlib import Path
from fuzzcompile.execution.building import build
from fuzzcompile.execution.runs import observe
case = load(Path(sys.argv[1]), torch.device("cpu"))
program = build(case, torch.device("cpu"))
print(observe(case, program, torch.compile(program.model)).failure)
"""


def torch_minifier(path: Path, seconds: float) -> str:
    """What torch's own minifier makes of the case within ``seconds``: lines of ATen IR, or that it finds nothing."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TORCHDYNAMO_REPRO_AFTER": "aot",
            "TORCHDYNAMO_REPRO_LEVEL": "4",
            "TORCH_COMPILE_DEBUG_DIR": folder,
        }
        end = time.monotonic() + seconds
        _run([sys.executable, "-c", _DRIVER, str(path.resolve())], folder, environment, end)
        launchers = sorted(Path(folder).rglob("minifier_launcher.py"))
        if not launchers:
            return "finds nothing"
        _run([sys.executable, str(launchers[-1])], folder, environment, end)
        found = sorted(Path(folder).rglob("repro.py"), key=lambda p: p.stat().st_mtime)
        if not found:
            return f"no product within {seconds:.0f} s" if time.monotonic() >= end else "no product"
        text = found[-1].read_text(encoding="utf-8")
        return f"{model_lines(text)} lines, {text.count('torch.ops.')} ATen calls"


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
        os.killpg(process.pid, 9)
        process.wait()


def line(row: Row) -> str:
    """One row of the table."""
    operators = f"{row.operators_before or '-'} -> {row.operators or '-'}"
    tests = f"{row.compiles} + {row.screens}"
    return (
        f"| {row.name} | {row.how} | {row.lines_before} -> {row.lines} | {operators} | {tests} | "
        f"{row.seconds:.0f} | {'yes' if row.confirmed else 'no'} | {'yes' if row.same_signature else 'no'} | "
        f"{row.minifier} |"
    )


def summary(rows: list[Row]) -> dict[str, Any]:
    """The bars, and what was reached."""
    return {
        "cases": len(rows),
        "median lines": statistics.median(row.lines for row in rows),
        "median operators": statistics.median([row.operators for row in rows if row.operators is not None] or [0]),
        "median compiles and screens": statistics.median(row.compiles + row.screens for row in rows),
        "most seconds": round(max(row.seconds for row in rows)),
        "confirmed": sum(row.confirmed for row in rows),
        "same signature": sum(row.same_signature for row in rows),
    }


def main() -> int:
    """Run the bench; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--torch-minifier", action="store_true")
    parser.add_argument("--budget", type=float, default=SECONDS - 60)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    files = asked.files or [
        *sorted((ROOT / "bench" / "buried").glob("*.py")),
        *sorted((ROOT / "corpus").glob("*/*/case.py")),
    ]
    prepare(WorkerSetup())
    print("| case | by | lines | operators | compiles + screens | seconds | confirmed | signature kept | torch's own |")
    print("|---|---|---|---|---|---|---|---|---|")
    rows = []
    for path in files:
        row = measured(path, asked.budget)
        if row is None:
            print(f"| {path.stem} | shows no bug on this torch |", flush=True)
            continue
        if asked.torch_minifier:
            row = Row(**{**asdict(row), "minifier": torch_minifier(path, asked.budget)})
        rows.append(row)
        print(line(row), flush=True)
    if not rows:
        return 1
    reached = summary(rows)
    print(f"\nBars: {LINES} lines, {OPERATORS} operators, {TESTS} compiles and screens, {SECONDS:.0f} s.")
    print(f"Reached: {reached}")
    if asked.json:
        asked.json.write_text(json.dumps({"rows": [asdict(row) for row in rows], "summary": reached}, indent=1))
    missed = (
        reached["median lines"] > LINES
        or reached["median operators"] > OPERATORS
        or reached["median compiles and screens"] > TESTS
        or reached["most seconds"] > SECONDS
        or reached["same signature"] < len(rows)
    )
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
