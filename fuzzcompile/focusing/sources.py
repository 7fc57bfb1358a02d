"""A case file put under settings of the compiler."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from fuzzcompile.generation.switches import Settings
from fuzzcompile.generation.toggles import joined


def with_settings(source: str, settings: Mapping[str, object]) -> str:
    """The case with these entries of ``torch._inductor.config`` in force around everything.

    Entries that the case sets itself stay as they are; of a dictionary, both keep their keys. What it sets in another
    form than a literal is left alone. Equal where nothing is to be added.
    """
    tree = ast.parse(source)
    given = {name: _literal(node) for node in tree.body for name in ("OPTIONS", "CONFIG") if _assigns(node, name)}
    own = joined([_inductor(given.get("CONFIG")), given.get("OPTIONS") or {}])
    entries = {entry: _beside(value, own.get(entry)) for entry, value in settings.items()}
    added = {entry: value for entry, value in entries.items() if entry not in own or value != own[entry]}
    if not added or any(value is None for value in given.values()):
        return source
    if inside := {entry: value for entry, value in added.items() if entry in (given.get("OPTIONS") or {})}:
        source = _assigned(source, "OPTIONS", {**(given["OPTIONS"] or {}), **inside})
        added = {entry: value for entry, value in added.items() if entry not in inside}
    if not added:
        return source
    config = given.get("CONFIG") or {}
    return _assigned(source, "CONFIG", {**config, "inductor": joined([_inductor(config), added])})


def _beside(wanted: object, own: object) -> object:
    """What an entry is to hold: the case's own value, with the keys that are wanted beside it."""
    if own is None or not (isinstance(wanted, Mapping) and isinstance(own, Mapping)):
        return wanted if own is None else own
    return {**wanted, **own}


def _inductor(config: Settings | None) -> Settings:
    inner = (config or {}).get("inductor")
    return dict(inner) if isinstance(inner, Mapping) else {}


def _assigns(node: ast.stmt, name: str) -> bool:
    return isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == name for target in node.targets
    )


def _literal(node: ast.stmt) -> Settings | None:
    assert isinstance(node, ast.Assign), "only assignments are read"
    try:
        value = ast.literal_eval(node.value)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _assigned(source: str, name: str, value: Mapping[str, object]) -> str:
    """The source with another value of a top-level name, or with a new one behind the imports."""
    lines = source.splitlines(keepends=True)
    body = ast.parse(source).body
    text = f"{name} = {value!r}\n"
    for node in body:
        if _assigns(node, name):
            return "".join([*lines[: node.lineno - 1], text, *lines[node.end_lineno or node.lineno :]])
    imports = [node for node in body if isinstance(node, (ast.Import, ast.ImportFrom))]
    last = (imports[-1].end_lineno or 0) if imports else 0
    return "".join([*lines[:last], "\n", text, *lines[last:]])
