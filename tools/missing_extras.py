"""Lists what tests would be skipped for: extras, PostgreSQL, a Chromium.

The exit status is 1 if any is missing. The weekly workflow asks first, so that no slow test is left out unnoticed.
"""

from __future__ import annotations

import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "bench"))

from postgres_server import lacking  # noqa: E402

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")


def missing_extras(project: Mapping[str, Any]) -> Iterator[str]:
    """The requirements of extras that this environment does not meet, each with its extra."""
    for extra, requirements in project["optional-dependencies"].items():
        for required in map(Requirement, requirements):
            applies = required.marker is None or required.marker.evaluate()
            if applies and required.name != project["name"] and not _is_met(required):
                yield f"{required} (extra {extra})"


def _is_met(required: Requirement) -> bool:
    try:
        return required.specifier.contains(version(required.name), prereleases=True)
    except PackageNotFoundError:
        return False


def missing_programs() -> Iterator[str]:
    """What beside Python packages is not there, as the tests' own reasons to skip say it."""
    if why := lacking():
        yield why
    if not any(map(shutil.which, CHROMIUMS)) and not _has_own_chromium():
        yield "needs a Chromium on the PATH, or that of `playwright install chromium`"


def _has_own_chromium() -> bool:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return False
    with sync_playwright() as playwright:
        return Path(playwright.chromium.executable_path).exists()


def main() -> int:
    """Print a line for each, and return the exit status."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    missing = [*missing_extras(project), *missing_programs()]
    print(*missing or ["Nothing is missing."], sep="\n")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
