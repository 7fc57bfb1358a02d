"""A new user's first ten minutes, as real commands: what each printed, its exit status, and how long it took.

    python tools/first_minutes.py                 # writes reports/first-minutes.md and docs/images/verdict.svg
    python tools/first_minutes.py --budget 20s    # a shorter campaign

The commands run in an empty folder, in the environment of this Python, with no corpus and no settings of the user's.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.text import Text

from fuzzcompile.model.privacy import scrub

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / "reports" / "first-minutes.md"
PICTURE = ROOT / "docs" / "images" / "verdict.svg"
# The scripts that the documentation begins with.
SCRIPTS = ROOT / "docs" / "first-triage.md"
WRONG = "import torch\n\ndef make(:\n    return torch.relu, (torch.ones(3),)\n"
COLUMNS = 110
SECONDS = 900
# Of a longer output, the beginning and the end are kept.
LINES = 70
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Step:
    """A command, and what a user wants with it."""

    wants: str
    command: str


@dataclass(frozen=True)
class Ran:
    """What came of a step; the times are wall-clock seconds since its start, ``first`` None if it printed nothing."""

    step: Step
    status: int
    first: float | None
    seconds: float
    output: str


def steps(budget: str) -> list[Step]:
    """What is tried, in the order in which a new user would."""
    return [
        Step("What is there?", "fuzzcompile --help"),
        Step("A model that compiles right", "fuzzcompile triage my_block.py"),
        Step("A model that does not", "fuzzcompile triage my_model.py"),
        Step("A typing error", "fuzzcompile triage wrong.py"),
        Step("A file that is not there", "fuzzcompile triage my_modle.py"),
        Step("Which rewrite is it, and why?", "fuzzcompile bisect my_model.py --html my_model.html"),
        Step("A small program that shows it", "fuzzcompile minimize my_model.py --budget 2m"),
        Step("It needs torch alone", "python repro_my_model.py"),
        Step("The text of an issue", "fuzzcompile issue my_model.py"),
        Step("What else is there to find?", f"fuzzcompile run --budget {budget}"),
        Step("What was found?", "fuzzcompile corpus list --all"),
        Step("One finding", "fuzzcompile corpus show F1"),
        Step("A page to send", "fuzzcompile report --out findings.html"),
        Step("What is in force?", "fuzzcompile config"),
    ]


def run(step: Step, folder: Path) -> Ran:
    """Run one step and keep what it prints, on either stream, in the order in which it comes."""
    given = shlex.split(step.command)
    started, first, pieces = time.monotonic(), None, list[str]()
    with subprocess.Popen(
        [str(Path(sys.executable).with_name(given[0])), *given[1:]],
        cwd=folder,
        env=_environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            first = first or time.monotonic() - started
            pieces.append(line)
        status = process.wait(timeout=SECONDS)
    return Ran(step, status, first, time.monotonic() - started, "".join(pieces))


def _environment(folder: Path) -> dict[str, str]:
    """Without settings of fuzzcompile's; kernels are cold, colours and width are those of a terminal."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FUZZCOMPILE_", "TORCH"))}
    terminal = {"FORCE_COLOR": "1", "COLUMNS": str(COLUMNS), "TERM": "xterm-256color", "PYTHONUNBUFFERED": "1"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {
        **kept,
        **terminal,
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "TORCHINDUCTOR_CACHE_DIR": str(folder.parent / "kernels"),
    }


def neutral(text: str, folder: Path) -> str:
    """The text without colours and without paths of this machine."""
    plain = ESCAPES.sub("", text).replace(str(folder), ".").replace("\r", "\n")
    return scrub(plain).rstrip()


def page(ran: Sequence[Ran], folder: Path) -> str:
    """The report in Markdown."""
    moment = datetime.now(UTC).strftime("%Y-%m-%d")
    where = f"Python {sys.version.split()[0]}, torch {version('torch')}, {len(os.sched_getaffinity(0))} processors"
    head = [
        "# The first ten minutes",
        "",
        f"Recorded on {moment} by `python tools/first_minutes.py`: {where}. Each command ran once, kernels cold at the "
        "start. Times are wall-clock seconds: of the whole command, and until it printed its first line.",
        "",
        "| command | status | seconds | first line |",
        "| --- | ---: | ---: | ---: |",
        *(f"| `{each.step.command}` | {each.status} | {each.seconds:.1f} | {_first(each)} |" for each in ran),
    ]
    return "\n".join([*head, *(line for each in ran for line in _section(each, folder))]) + "\n"


def _first(ran: Ran) -> str:
    return "none" if ran.first is None else f"{ran.first:.1f}"


def _section(ran: Ran, folder: Path) -> Iterator[str]:
    yield from ("", f"## {ran.step.wants}", "", "````console", f"$ {ran.step.command}")
    yield from _shortened(neutral(ran.output, folder).splitlines())
    yield from (f"[exit status {ran.status}, {ran.seconds:.1f} s]", "````")


def _shortened(lines: list[str]) -> list[str]:
    left_out = len(lines) - LINES
    if left_out <= 1:
        return lines
    return [*lines[: LINES // 2], f"[{left_out} lines left out]", *lines[-(LINES - LINES // 2) :]]


def picture(ran: Ran, folder: Path) -> str:
    """The answer as a terminal shows it, as SVG that loads nothing from elsewhere."""
    answer = re.sub(r"(?m)^fuzzcompile: .* \.\.\.\n", "", ran.output)  # what was waited for
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        console.print(f"[bold green]$[/] {ran.step.command}", highlight=False)
        console.print(Text.from_ansi(answer.replace(str(folder), ".").rstrip()))
        drawn = console.export_svg(title="fuzzcompile", unique_id="verdict")
    return re.sub(r"@font-face\s*\{[^}]*\}\s*", "", drawn)


def main() -> None:
    """Run everything and write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="60s", help="of the campaign")
    parser.add_argument("--report", type=Path, default=REPORT)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="first-minutes-") as made:
        folder = Path(made) / "project"
        folder.mkdir()
        for name, text in re.findall(
            r'```python title="(my_\w+\.py)"\n(.*?)```', SCRIPTS.read_text("utf-8"), re.DOTALL
        ):
            (folder / name).write_text(text, encoding="utf-8")
        (folder / "wrong.py").write_text(WRONG, encoding="utf-8")
        ran = list[Ran]()
        for step in steps(asked.budget):
            sys.stderr.write(f"$ {step.command}\n")
            ran.append(run(step, folder))
            sys.stderr.write(f"  status {ran[-1].status}, {ran[-1].seconds:.1f} s\n")
            asked.report.parent.mkdir(parents=True, exist_ok=True)
            asked.report.write_text(page(ran, folder), encoding="utf-8")  # what was seen stays if a later step fails
        shown = next(each for each in ran if each.step.command.endswith("triage my_model.py"))
        asked.picture.parent.mkdir(parents=True, exist_ok=True)
        asked.picture.write_text(picture(shown, folder), encoding="utf-8")


if __name__ == "__main__":
    main()
