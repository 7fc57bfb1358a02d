"""Judge every bundled architecture, in eval and in training, and write the table of verdicts.

    python tools/models_table.py OUT.md [--state FILE.jsonl] [--size tiny] [--timeout 600] [NAME ...]

Reports are kept in the state file as they come, and the table is written after each: a second run judges what is
missing or has changed since. What stands under "Remarks" in an earlier table is kept. Needs transformers and timm, and
no network.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from fuzzcompile.diagnosis.worker.file_triage import FileAnswer, triage_files
from fuzzcompile.fuzz.bundled_models import (
    SIZES,
    find_architecture,
    list_architectures,
    render_case,
    write_case_file,
)
from fuzzcompile.model.conditions import Conditions, Limits

REMARKS = "\n## Remarks\n"
COLUMNS = ("architecture", "mode", "verdict", "confidence", "graphs", "culprit", "seconds", "remark")


def main() -> None:
    """Judge what is missing and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these; default: all")
    parser.add_argument("--state", type=Path, default=Path("models-table.jsonl"))
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one case")
    options = parser.parse_args()
    wanted = [find_architecture(name).name for name in options.names] or list(list_architectures())
    cases = [(name, training) for name in wanted for training in (False, True)]
    known = read_state(options.state)
    missing = [case for case in cases if key(*case, options.size) not in known]
    with options.state.open("a", encoding="utf-8") as state:
        for row in judged(missing, options.size, options.timeout):
            sys.stderr.write(" | ".join(cells(row)) + "\n")
            state.write(json.dumps(row) + "\n")
            state.flush()
            known[row["key"]] = row
            write(options.out, known, cases, options.size)
    write(options.out, known, cases, options.size)


def write(out: Path, known: dict[str, dict], cases: list[tuple[str, bool]], size: str) -> None:
    """Write the table of the cases judged so far, with the remarks of an earlier one."""
    earlier = out.read_text(encoding="utf-8") if out.exists() else ""
    remarks = earlier[earlier.index(REMARKS) :] if REMARKS in earlier else ""
    rows = [known[key(*case, size)] for case in cases if key(*case, size) in known]
    out.write_text(table(rows, size) + remarks, encoding="utf-8")


def key(name: str, training: bool, size: str) -> str:
    """What identifies a judgement: the case's text and torch's version."""
    text = render_case(name, training=training, size=size)
    return hashlib.sha256(f"{torch.__version__}\n{text}".encode()).hexdigest()


def read_state(path: Path) -> dict[str, dict]:
    """The rows judged before, by key; the last judgement counts."""
    if not path.exists():
        return {}
    return {row["key"]: row for row in map(json.loads, path.read_text(encoding="utf-8").splitlines())}


def judged(cases: list[tuple[str, bool]], size: str, seconds: float) -> Iterator[dict]:
    """A row for each case, as it is judged."""
    files = [write_case_file(name, training=training, size=size) for name, training in cases]
    answers = triage_files(files, Conditions(limits=Limits(seconds=seconds)))
    for (name, training), answer in zip(cases, answers, strict=True):
        yield {"key": key(name, training, size), "name": name, "training": training, **outcome(answer)}


def outcome(answer: FileAnswer) -> dict:
    """What the table and a later look need of an answer."""
    return {"seconds": answer.seconds, "error": answer.error, "report": answer.report}


def cells(row: dict) -> tuple[str, ...]:
    """One line of the table."""
    report, mode = row["report"], "training" if row["training"] else "eval"
    seconds = f"{row['seconds']:.0f}"
    if report is None:
        return row["name"], mode, "refused", "-", "-", "-", seconds, row["error"]
    evidence, culprit = report["evidence"], report["culprit"]
    breaks = len(evidence.get("graph_breaks", ()))
    graphs = f"{evidence.get('graphs', '-')}" + (f" ({breaks} breaks)" if breaks else "")
    named = f"{culprit['stage']}: {culprit['rewrite']}" if culprit else "-"
    remark = "; ".join(filter(None, (report["detail"], *evidence.get("notes", ()))))
    return row["name"], mode, report["verdict"], report["confidence"], graphs, named, seconds, remark or "-"


def table(rows: list[dict], size: str) -> str:
    """The whole document."""
    lines = [
        f"# Real architectures, torch {torch.__version__}",
        "",
        f"Each architecture of `--hf-config` at `--hf-size {size}`, in eval and in training, judged by",
        "`fuzzcompile triage`; written by `python tools/models_table.py`. Seconds are wall time of one worker on a",
        "shared machine.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
        *(f"| {' | '.join(cell.replace('|', '/') for cell in cells(row))} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
