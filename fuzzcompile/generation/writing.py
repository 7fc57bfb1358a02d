"""Cases as files, without running them."""

from __future__ import annotations

from itertools import count as counting
from pathlib import Path

from fuzzcompile.errors import UsageError
from fuzzcompile.generation.cases import case_at
from fuzzcompile.generation.profile import Profile
from fuzzcompile.generation.rendering import render


def write_cases(folder: Path, seed: int, count: int, profile: Profile, *, start: int = 0) -> list[Path]:
    """Write ``count`` distinct cases into ``folder``, from index ``start`` of the seed on.

    Files are named after seed and index, so that a case can be drawn again, and their docstrings list the idioms, near
    misses and choices in it.

    Raises:
        UsageError: the folder cannot be written to.
    """
    paths: list[Path] = []
    seen: set[str] = set()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for index in counting(start):
            if len(paths) == count:
                break
            case = case_at(seed, index, profile)
            if case.sha256 in seen:
                continue
            seen.add(case.sha256)
            path = folder / f"case_{seed}_{index}.py"
            path.write_text(render(case.spec, described=True), encoding="utf-8")
            paths.append(path)
    except OSError as error:
        raise UsageError(f"Cannot write cases to {folder}: {error.strerror or error}; name another folder.") from error
    return paths
