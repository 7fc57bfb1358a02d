"""The same answers before and after a change: every known issue, public issue, corpus finding and planted bug.

    python bench/parity.py --against REVISION [--keep FOLDER] [--report FILE]

Both trees run in processes of their own, from a git worktree of ``REVISION`` and from this one: the command line's
``triage --json`` on all case files of the *newer* tree, and ``bench/attribution.py --json`` (which plants bugs) of
each tree's own. What was answered is kept in ``FOLDER``, one file per tree and part, and is not asked twice.

A row is *same* if verdict, culprit (stage and rewrite), its proof (necessary) and the confidence are the same;
*differs* names what is not. Exits with 1 if a verdict or a culprit differs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CASES = ("tests/known_issues/*.py", "tests/public_issues/*/*.py", "corpus/*/*/case.py", "corpus/*/*/repro.py")


@dataclass(frozen=True)
class Answer:
    """What one tree says of one bug: ``culprit`` is ``stage: rewrite`` (``-`` for none)."""

    verdict: str
    culprit: str
    necessary: bool | None
    confidence: str = ""

    def differences(self, after: Answer) -> list[str]:
        """What another tree says otherwise, as ``verdict: a -> b``."""
        pairs = [
            ("verdict", self.verdict, after.verdict),
            ("culprit", self.culprit, after.culprit),
            ("necessary", self.necessary, after.necessary),
            ("confidence", self.confidence, after.confidence),
        ]
        return [f"{name}: {before} → {now}" for name, before, now in pairs if before != now]


def of_cases(tree: Path, kept: Path) -> dict[str, Answer]:
    """The answers of ``triage --json`` on all case files, by path."""
    files = sorted(str(path.relative_to(ROOT)) for pattern in CASES for path in ROOT.glob(pattern))
    if not kept.exists():
        command = [sys.executable, "-m", "fuzzcompile", "triage", "--json", "--device", "cpu"]
        command += [str(ROOT / name) for name in files]
        found = subprocess.run(command, cwd=tree, env=_importing(tree), capture_output=True, text=True, check=False)
        kept.write_text(found.stdout, encoding="utf-8")
        kept.with_suffix(".log").write_text(found.stderr, encoding="utf-8")
    answered = [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()]
    if len(answered) != len(files):
        raise SystemExit(
            f"{len(answered)} answers to {len(files)} files; see {kept.with_suffix('.log')}, delete {kept}."
        )
    return dict(zip(files, map(_of_report, answered), strict=True))


def _of_report(report: Mapping[str, Any]) -> Answer:
    culprit = report.get("culprit") or {}
    named = f"{culprit['stage']}: {culprit['rewrite']}" if culprit else "-"
    return Answer(str(report["verdict"]), named, culprit.get("necessary"), report.get("confidence", ""))


def of_plants(tree: Path, kept: Path) -> dict[str, Answer]:
    """The answers of ``bench/attribution.py`` on its planted bugs, by name."""
    if not kept.exists():
        command = [sys.executable, "bench/attribution.py", "--no-bisector", "--json", str(kept)]
        subprocess.run(command, cwd=tree, env=_importing(tree), stdout=subprocess.DEVNULL, check=True)
    rows = json.loads(kept.read_text(encoding="utf-8"))["rows"]
    return {row["name"]: Answer(row["ours"]["verdict"], row["ours"]["said"], row["ours"]["necessary"]) for row in rows}


def answers(tree: Path, folder: Path, name: str) -> dict[str, Answer]:
    """All answers of one tree, kept under its name."""
    return {**of_cases(tree, folder / f"{name}-cases.jsonl"), **of_plants(tree, folder / f"{name}-plants.json")}


def _importing(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree)}


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """A worktree of a revision, removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(tree), revision], cwd=ROOT, check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)


def table(before: Mapping[str, Answer], after: Mapping[str, Answer]) -> tuple[list[str], bool]:
    """Rows of Markdown, and whether all verdicts and culprits are the same."""
    rows, alike = [], True
    for name, answer in before.items():
        now = after.get(name)
        differing = ["missing"] if now is None else answer.differences(now)
        alike = alike and not any(text.startswith(("missing", "verdict", "culprit")) for text in differing)
        proof = {True: "necessary", False: "not necessary", None: ""}[answer.necessary]
        rows.append(f"| {name} | {answer.verdict} | {answer.culprit} | {proof} | {'; '.join(differing) or 'same'} |")
    return rows, alike


def main() -> None:
    """Ask both trees, write the table, and say by the exit status whether they agree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", required=True, metavar="REVISION", help="The revision to compare this tree with.")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="Where answers are kept, to resume or to look at.")
    parser.add_argument("--report", type=Path, metavar="FILE", help="Write the table to FILE too.")
    given = parser.parse_args()
    folder = given.keep or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    revision = subprocess.run(
        ["git", "rev-parse", "--short", given.against], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    with checked_out(revision) as tree:
        before = {
            **of_cases(tree, folder / f"{revision}-cases.jsonl"),
            **of_plants(tree, folder / f"{revision}-plants.json"),
        }
    after = {**of_cases(ROOT, folder / "here-cases.jsonl"), **of_plants(ROOT, folder / "here-plants.json")}
    rows, alike = table(before, after)
    same = sum(row.endswith("| same |") for row in rows)
    lines = [
        "# The same answers before and after",
        "",
        f"Made by `python bench/parity.py --against {revision}` ({platform.machine()}, Python "
        f"{platform.python_version()}): {same} of {len(rows)} rows are the same in verdict, culprit, proof and "
        "confidence.",
        "",
        f"| bug | verdict at {revision} | culprit | proof | now |",
        "|---|---|---|---|---|",
        *rows,
        "",
    ]
    print("\n".join(lines))
    if given.report:
        given.report.write_text("\n".join(lines), encoding="utf-8")
    sys.exit(0 if alike else 1)


if __name__ == "__main__":
    main()
