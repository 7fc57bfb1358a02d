"""Compare everything this tree prints with what another revision prints: the net below a change of structure.

    python bench/golden.py --against REVISION [--only PART ...] [--keep FOLDER]

Both trees run in processes of their own, REVISION from a git worktree, on the case files of *this* tree:

`cases`     ``triage --json`` of the known issues, the public issues, the findings of ``corpus/`` and ``bench/buried``
`plants`    ``bench/attribution.py --json`` of each tree: verdict, culprit and proof of each planted bug
`scripts`   the reproducers that ``minimize`` writes for a few of them
`corpus`    what ``corpus list``, ``corpus show``, ``issue`` and ``corpus export`` print for every finding of
            ``corpus/``, and the HTML report
`help`      ``--help`` of every command
`start`     how many modules ``fuzzcompile triage`` imports, and the median time of ``--help`` in milliseconds (shown,
            not compared)

Times, paths and line numbers of fuzzcompile's own files are normalised; numbers are compared to two digits. FOLDER
keeps what was printed, one file a part and tree; what is there is not asked again. Exits with 1 if a line differs.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CASES = (
    "tests/known_issues/*.py",
    "tests/public_issues/*/*.py",
    "corpus/*/*/case.py",
    "corpus/*/*/repro.py",
    "bench/buried/*.py",
)
MINIMIZED = ("sfdp-softmax-axis", "times-one-returns-input", "cumsum-dtype", "celu-alpha-zero", "fmin-stride")
# Of a report: what differs between two runs of one tree.
VOLATILE = {"seconds", "cost", "cost_ratio", "created", "machine", "case", "fuzzcompile_version"}


def normalised(value: Any) -> Any:
    """Return a JSON value without times and paths, its floats rounded to two digits."""
    if isinstance(value, Mapping):
        return {key: normalised(item) for key, item in value.items() if key not in VOLATILE}
    if isinstance(value, list):
        return [normalised(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.1e}")
    return normalised_text(value) if isinstance(value, str) else value


def normalised_text(text: str) -> str:
    """Return text without times, dates, temporary paths, and lines of fuzzcompile's own files."""
    text = text.replace(f"{sys.executable} -m fuzzcompile", "fuzzcompile").replace(sys.executable, "PYTHON")
    text = re.sub(r"/\S*?/(?=(tests|corpus|bench|templates|reports)/)", "", text)
    text = re.sub(r"/tmp/[\w./-]+", "TMP", text)
    text = re.sub(r"fuzzcompile/[\w/]+\.py(:\d+|\", line \d+)?", "FUZZCOMPILE", text)
    text = re.sub(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?)?( UTC|Z|\+00:00)?", "DATE", text)
    text = re.sub(r"\b\d+(\.\d+)? ?(s|ms|min|h)\b", "TIME", text)
    text = re.sub(r"\b(\d\.\d)\d*(e[-+]?\d+)", r"\1\2", text)
    return re.sub(r"(0x[0-9a-f]{6,}|\bpid \d+)", "ID", text)


class Tree:
    """One tree of the project, and its output."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.environment = {**os.environ, "PYTHONPATH": str(path), "COLUMNS": "120", "NO_COLOR": "1"}

    def run(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run ``python ARGUMENTS`` with this tree's fuzzcompile."""
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, cwd=cwd or self.path, env=self.environment, capture_output=True, text=True, check=False
        )

    def tool(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run ``fuzzcompile ARGUMENTS``."""
        return self.run("-m", "fuzzcompile", *arguments, cwd=cwd)


def print_cases(tree: Tree) -> dict[str, str]:
    """Map each case file to its report."""
    files = sorted(str(path.relative_to(ROOT)) for pattern in CASES for path in ROOT.glob(pattern))
    paths = [str(ROOT / name) for name in files]
    answered = tree.tool("triage", "--json", "--workers", "2", "--device", "cpu", *paths, cwd=ROOT)
    reports = [json.loads(line) for line in answered.stdout.splitlines()]
    if len(reports) != len(files):
        raise SystemExit(f"{len(reports)} reports on {len(files)} files: {answered.stderr[-2000:]}")
    return {name: json.dumps(normalised(report), indent=1) for name, report in zip(files, reports, strict=True)}


def print_plants(tree: Tree) -> dict[str, str]:
    """Map each planted bug of ``bench/attribution.py`` to what triage says of it."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "plants.json")
        ended = tree.run("bench/attribution.py", "--no-bisector", "--json", str(out))
        if not out.exists():
            raise SystemExit(f"bench/attribution.py failed: {ended.stderr[-2000:]}")
        rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    keys = ("verdict", "said", "necessary", "sufficient")
    return {row["name"]: json.dumps({key: row["ours"].get(key) for key in keys}) for row in rows}


def print_scripts(tree: Tree) -> dict[str, str]:
    """Map some findings to the reproducers that ``minimize`` writes."""
    written = {}
    for name in MINIMIZED:
        (folder,) = ROOT.glob(f"corpus/*/{name}")
        with tempfile.TemporaryDirectory() as scratch:
            out = Path(scratch, "repro.py")
            tree.tool("minimize", str(folder / "case.py"), "--out", str(out), "--compiles", "40", "--device", "cpu",
                      "--budget", "10m", cwd=Path(scratch))  # fmt: skip
            written[name] = normalised_text(out.read_text(encoding="utf-8") if out.exists() else "nothing written")
    return written


def print_corpus(tree: Tree) -> dict[str, str]:
    """Map each view of a finding to its text."""
    printed = {}
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        database = ("--corpus", str(place / "corpus.db"))
        tree.tool("corpus", "import", "--trust", str(ROOT / "corpus"), *database, cwd=place)
        printed["corpus list"] = normalised_text(tree.tool("corpus", "list", "--all", *database, cwd=place).stdout)
        listed = tree.tool("corpus", "list", "--json", *database, cwd=place).stdout
        for name in (str(json.loads(line)["finding"]) for line in listed.splitlines()):
            for words in (("corpus", "show", name), ("issue", "--anyway", name)):
                ended = tree.tool(*words, *database, cwd=place)
                printed[" ".join(words)] = normalised_text(f"{ended.returncode}\n{ended.stdout}\n{ended.stderr}")
            tree.tool("corpus", "export", name, f"exported-{name}", *database, cwd=place)
        for path in sorted(place.glob("exported-*/**/*.*")):
            content = path.read_text(encoding="utf-8")
            printed[f"export {path.relative_to(place)}"] = normalised_text(content)
        tree.tool("report", "--out", "page.html", *database, cwd=place)
        page = place / "page.html"
        printed["report"] = normalised_text(page.read_text(encoding="utf-8")) if page.exists() else "none"
    return printed


def print_help(tree: Tree) -> dict[str, str]:
    """Map each command to its ``--help``."""
    printed: dict[str, str] = {}

    def visit(words: tuple[str, ...]) -> None:
        text = tree.tool(*words, "--help").stdout
        printed[" ".join(words) or "fuzzcompile"] = text
        commands = text.partition("\nCommands:\n")[2]
        for name in re.findall(r"^  (\S+)  ", commands, flags=re.MULTILINE):
            visit((*words, name))

    visit(())
    return printed


def print_start(tree: Tree) -> dict[str, str]:
    """Count the modules that ``fuzzcompile triage`` imports, and time ``--help``."""
    counted = tree.run(
        "-c",
        "import runpy, sys\n"
        "sys.argv = ['fuzzcompile', 'triage', '--help']\n"
        "try:\n    runpy.run_module('fuzzcompile', run_name='__main__')\n"
        "except SystemExit:\n    pass\n"
        "own = [m for m in sys.modules if m.startswith('fuzzcompile')]\n"
        "print(len(own), len(sys.modules), 'torch' in sys.modules, file=sys.stderr)",
    )
    times = []
    for _ in range(5):
        start = time.perf_counter()
        tree.tool("triage", "--help")
        times.append(time.perf_counter() - start)
    return {"modules": counted.stderr.splitlines()[-1], "help": f"{1000 * statistics.median(times):.0f} ms"}


PARTS: dict[str, Callable[[Tree], dict[str, str]]] = {
    "help": print_help,
    "start": print_start,
    "corpus": print_corpus,
    "cases": print_cases,
    "scripts": print_scripts,
    "plants": print_plants,
}


def output_of(tree: Tree, part: str, kept: Path) -> dict[str, str]:
    """Return what a tree prints for one part, from ``kept`` if it is there."""
    if not kept.exists():
        kept.write_text(json.dumps(PARTS[part](tree), indent=1), encoding="utf-8")
    output: dict[str, str] = json.loads(kept.read_text(encoding="utf-8"))
    return output


def compare(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a unified diff for each output that differs."""
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name, ""), after.get(name, "")
        if old != new:
            yield from difflib.unified_diff(
                old.splitlines(), new.splitlines(), f"before: {name}", f"now: {name}", n=1, lineterm=""
            )


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """Yield a worktree of a revision, and remove it afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(tree), revision], cwd=ROOT, check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)


def main() -> None:
    """Collect both outputs, print the differences, and say by the exit status whether there are any."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", required=True, metavar="REVISION", help="The revision to compare this tree with.")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help="These parts.")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="Where output is kept, to resume or to look at.")
    given = parser.parse_args()
    folder = (given.keep or Path(tempfile.mkdtemp())).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    resolve = ["git", "rev-parse", "--short", given.against]
    revision = subprocess.run(resolve, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    differing = 0
    for part in given.only:
        kept = folder / f"{revision}-{part}.json"
        if kept.exists():
            before = output_of(Tree(ROOT), part, kept)
        else:
            with checked_out(revision) as path:
                before = output_of(Tree(path), part, kept)
        after = output_of(Tree(ROOT), part, folder / f"here-{part}.json")
        lines = [f"{name}: {before.get(name)} → {text}" for name, text in after.items()] if part == "start" else []
        lines += compare(before, after) if part != "start" else []
        print("\n".join(lines))
        same = sum(before.get(name) == text for name, text in after.items())
        print(f"{part}: {same} of {len(before.keys() | after.keys())} the same", flush=True)
        differing += 0 if part == "start" else len(before.keys() | after.keys()) - same
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
