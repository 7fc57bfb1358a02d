"""A case file put under settings of the compiler."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from fuzzcompile.compiler.facts.inductor_toggles import Settings, merge_settings


def add_settings(source: str, settings: Mapping[str, object]) -> str:
    """The case with these entries of ``torch._inductor.config`` in force around everything.

    Entries that the case sets itself stay as they are; of a dictionary, both keep their keys. What it sets in another
    form than a literal is left alone. Equal where nothing is to be added.
    """
    tree = ast.parse(source)
    given = {
        name: _read_literal(node) for node in tree.body for name in ("OPTIONS", "CONFIG") if _is_assignment(node, name)
    }
    own = merge_settings([_list_inductor_settings(given.get("CONFIG")), given.get("OPTIONS") or {}])
    entries = {entry: _merge_setting(value, own.get(entry)) for entry, value in settings.items()}
    added = {entry: value for entry, value in entries.items() if entry not in own or value != own[entry]}
    if not added or any(value is None for value in given.values()):
        return source
    if inside := {entry: value for entry, value in added.items() if entry in (given.get("OPTIONS") or {})}:
        source = _replace_assignment(source, "OPTIONS", {**(given["OPTIONS"] or {}), **inside})
        added = {entry: value for entry, value in added.items() if entry not in inside}
    if not added:
        return source
    config = given.get("CONFIG") or {}
    return _replace_assignment(
        source, "CONFIG", {**config, "inductor": merge_settings([_list_inductor_settings(config), added])}
    )


def _merge_setting(wanted: object, own: object) -> object:
    """What an entry is to hold: the case's own value, with the keys that are wanted beside it."""
    if own is None or not (isinstance(wanted, Mapping) and isinstance(own, Mapping)):
        return wanted if own is None else own
    return {**wanted, **own}


def _list_inductor_settings(config: Settings | None) -> Settings:
    inner = (config or {}).get("inductor")
    return dict(inner) if isinstance(inner, Mapping) else {}


def _is_assignment(node: ast.stmt, name: str) -> bool:
    return isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == name for target in node.targets
    )


def _read_literal(node: ast.stmt) -> Settings | None:
    assert isinstance(node, ast.Assign), "only assignments are read"
    try:
        value = ast.literal_eval(node.value)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _replace_assignment(source: str, name: str, value: Mapping[str, object]) -> str:
    """The source with another value of a top-level name, or with a new one behind the imports."""
    lines = source.splitlines(keepends=True)
    body = ast.parse(source).body
    text = f"{name} = {value!r}\n"
    for node in body:
        if _is_assignment(node, name):
            return "".join([*lines[: node.lineno - 1], text, *lines[node.end_lineno or node.lineno :]])
    imports = [node for node in body if isinstance(node, (ast.Import, ast.ImportFrom))]
    last = (imports[-1].end_lineno or 0) if imports else 0
    return "".join([*lines[:last], "\n", text, *lines[last:]])
