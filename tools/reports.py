"""Make the reports of this repository again, each by the command that it names itself.

    python tools/reports.py [--list] [NAME ...]     # all, or those whose path holds a NAME

A report that can be made again has a line ``<!-- made by: COMMAND -->``. What stands above it is written by hand; all
below is the output of the command, with the date, the revision, torch and the machine.
"""

from __future__ import annotations

import argparse
import datetime
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from fuzzcompile.run.device import describe_environment, resolve_device

REPOSITORY = Path(__file__).resolve().parents[1]
_MADE_BY = re.compile(r"<!-- made by: (?P<command>.+) -->\n")


def list_reports(names: Sequence[str]) -> list[Path]:
    """Return the reports that say how they are made, all or those whose path holds one of the names."""
    pages = sorted((REPOSITORY / "reports").rglob("*.md"))
    chosen = [page for page in pages if not names or any(name in str(page.relative_to(REPOSITORY)) for name in names)]
    return [page for page in chosen if _MADE_BY.search(page.read_text(encoding="utf-8"))]


def make_report(page: Path) -> None:
    """Run the command of a report, and put its output in place of the former one.

    Raises:
        SystemExit: the command fails; the report stays as it was.
    """
    text = page.read_text(encoding="utf-8")
    match = _MADE_BY.search(text)
    assert match is not None, "list_reports chose it"
    words = shlex.split(match["command"])
    ran = subprocess.run([sys.executable, *words[1:]], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"{match['command']} ended with {ran.returncode}; {page.relative_to(REPOSITORY)} was left")
    output = ran.stdout.strip()
    body = output if "\n|---" in output else f"```\n{output}\n```"
    page.write_text(f"{text[: match.end()]}\n{_describe_run()}\n\n{body}\n", encoding="utf-8")


def _describe_run() -> str:
    revision = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.strip()
    machine = describe_environment(resolve_device("cpu"), None)
    processors = f"{machine.get('cpu')}, {torch.get_num_threads()} threads"
    return (
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, revision {revision}, torch {torch.__version__}, {processors}."
    )


def main() -> None:
    """Make the reports that were asked for, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true", help="Only say which, and by which command.")
    given = parser.parse_args()
    for page in list_reports(given.names):
        match = _MADE_BY.search(page.read_text(encoding="utf-8"))
        print(f"{page.relative_to(REPOSITORY)}: {match['command'] if match else ''}", file=sys.stderr)
        if not given.list:
            make_report(page)


if __name__ == "__main__":
    main()
