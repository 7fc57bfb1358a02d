"""Prints the lower bounds of pyproject.toml as exact versions, for `pip install -c` (`make lower-bounds`).

torch and Triton come as constraints.txt has them: `make compat` runs on the oldest and the newest torch.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# They belong together, a Triton to its torch.
COMPILERS = ("torch", "triton")
_BOUND = re.compile(r"(?P<name>[\w.-]+)(?:\[[\w,-]+\])?>=(?P<lower>[\w.]+)")


def lower_bounds(project: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each dependency, those of the extras included, and the least version that it may have.

    Raises:
        ValueError: a dependency has no lower bound.
    """
    extras = project["optional-dependencies"].values()
    for requirement in (*project["dependencies"], *(each for extra in extras for each in extra)):
        if requirement.startswith(f"{project['name']}["):
            continue
        bound = _BOUND.match(requirement)
        if bound is None:
            raise ValueError(f"{requirement} has no lower bound: write NAME>=VERSION.")
        if bound["name"] not in COMPILERS:
            yield bound["name"], bound["lower"]


def main() -> None:
    """Print a constraint a line."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    tested = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    print(*(line for line in tested if line.partition("==")[0] in COMPILERS), sep="\n")
    print(*(f"{name}=={lower}" for name, lower in sorted(set(lower_bounds(project)))), sep="\n")


if __name__ == "__main__":
    main()
