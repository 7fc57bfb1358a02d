"""Rewrites that a name after ``--veto`` means. Needs no torch: names are checked before a worker starts."""

from __future__ import annotations

import fnmatch
import functools
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

# Names in the source of the installed torch's passes, read without importing it.

_WORD = re.compile(rb"[A-Za-z_]\w*")
_STEM = re.compile(rb"([A-Za-z_]\w*_)\{")  # in an f-string: pass_pattern_{index}
# By torch's convention passes take a graph, handlers of patterns a match; SDPA patterns are numbered.
_RULE = re.compile(rb"def (?:(\w+)\(\s*(?:graph|gm|graph_module|match)\b|(\w+_pattern_\d+)\()")


@dataclass(frozen=True)
class PassSources:
    """Names in the files of torch's passes."""

    words: frozenset[str]  # every identifier
    stems: tuple[str, ...]  # beginnings of names that are made when torch runs
    rules: frozenset[str]  # functions that look like passes and patterns


def find_package_folder(package: str) -> Path | None:
    """The folder of an installed package, which is not imported; None if there is no such folder."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(folders[0]) if folders else None


def list_pass_files() -> list[Path]:
    """The files that define the installed torch's passes, or name them."""
    root = find_package_folder("torch")
    if root is None:
        return []
    inductor = root / "_inductor"
    return sorted([*(inductor / "fx_passes").rglob("*.py"), *inductor.glob("*.py"), *root.glob("_functorch/**/*.py")])


@functools.cache
def read_pass_sources() -> PassSources:
    """Read the names in those files; a tenth of a second of processor time."""
    words, stems, rules = set[bytes](), set[bytes](), set[bytes]()
    for path in list_pass_files():
        text = path.read_bytes()
        words.update(_WORD.findall(text))
        stems.update(_STEM.findall(text))
        rules.update(name or numbered for name, numbered in _RULE.findall(text))
    return PassSources(_decode_names(words), tuple(_decode_names(stems)), _decode_names(rules))


def _decode_names(names: set[bytes]) -> frozenset[str]:
    return frozenset(name.decode(errors="replace") for name in names)


def matches_veto(rewrite: str, base: str, name: str) -> bool:
    """Return whether ``name`` means a rewrite, whose name without its variant is ``base``.

    ``name`` is that name itself, a leading part that ends at an underscore or at the end, a glob, or ``=`` and the name
    with or without its variant.
    """
    if name.startswith("="):
        return name[1:] in (rewrite, base)
    if rewrite == name or fnmatch.fnmatchcase(rewrite, name):
        return True
    return bool(name) and rewrite.startswith(name) and (name.endswith("_") or rewrite[len(name)] == "_")
