"""Stable names for rewrite rules, and where their source is."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import fx

from fuzzcompile.compiler.ledger import Label
from fuzzcompile.compiler.veto_names import matches
from fuzzcompile.custom import is_custom
from fuzzcompile.facts import facts
from fuzzcompile.stage_names import LOWERING

_NAMES = facts().names
_VARIANT = re.compile(rf"({'|'.join(_NAMES.variants)})+$")
_NUMBERED = re.compile(r"^_*(?P<family>\w+?)_pattern_\d+$")
_SITE = re.compile(r'File "([^"]+)", line (\d+)')


def entry_label(entry: Any, stage: str, pass_name: str | None) -> Label:
    """Label of a pattern matcher entry.

    Replacement patterns go by their registered name where torch gives one, else by their search function,
    which the check's closure holds; graph and lowering patterns go by their handler.
    """
    function = _search_function(entry) or getattr(entry, "handler", None)
    name = getattr(entry, "pattern_name", None) or _function_name(function) or _pattern_name(entry)
    source, line = source_of(function)
    return Label(stage, pass_name, name, source, line)


def pass_label(function: Callable[..., Any] | None, stage: str, pass_name: str) -> Label:
    """Label of a whole pass, run as ``function`` under the name ``pass_name``."""
    source, line = source_of(function)
    return Label(stage, pass_name, pass_name, source, line)


def callable_label(function: Any, stage: str, pass_name: str | None) -> Label:
    """Label of a user's own pass: a function, or an object that is called, which goes by its class."""
    plain = _unwrapped(function)
    if hasattr(plain, "__code__"):
        source, line = source_of(plain)
        return Label(stage, pass_name, _function_name(plain) or "unnamed", source, line)
    source, line = source_of(type(plain).__call__)
    return Label(stage, pass_name, type(plain).__name__, source, line)


def backend_label(backend: str | Callable[..., Any]) -> Label:
    """Label of a backend, by its registered name or as the callable that it is."""
    if not isinstance(backend, str):
        return callable_label(backend, LOWERING, None)
    from torch._dynamo.backends.registry import lookup_backend

    source, line = source_of(lookup_backend(backend))
    return Label(LOWERING, None, backend, source, line)


def source_of(function: Any) -> tuple[str | None, int | None]:
    """File (relative to site-packages, ``torch/_inductor/…``) and first line of a function."""
    function = _unwrapped(function)
    code = getattr(function, "__code__", None)
    if code is None:
        return None, None
    return shown_file(code.co_filename), code.co_firstlineno


@functools.lru_cache(maxsize=1024)
def shown_file(file: str) -> str:
    """A file relative to the folder that holds torch; of any other, its name."""
    path, root = Path(file), Path(torch.__file__).parent.parent
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name


def base_name(rewrite: str) -> str:
    """A pattern's name without its variant: ``_sfdp_pattern_28_half_inference`` → ``_sfdp_pattern_28``."""
    return _VARIANT.sub("", rewrite)


def family_of(rewrite: str) -> str:
    """The family of a rewrite: numbered siblings stand in for each other (``_sfdp_pattern_3`` → ``sfdp``)."""
    base = base_name(rewrite).rpartition(":")[2]  # of a user's own pass without its module
    match = _NUMBERED.match(base)
    return match["family"] if match else base


def family_veto(stage: str, rewrite: str) -> str:
    """Return the name for `vetoes` that refuses a rewrite of a stage with its whole family (`family_of`)."""
    base = base_name(rewrite)
    match = _NUMBERED.match(base)
    return f"{stage}:{base[: match.end('family')]}_pattern_*" if match else f"{stage}:={base}"


def vetoes(label: Label, wanted: Iterable[str]) -> bool:
    """Return whether one of the names in ``wanted`` means this label.

    A name is exact (``remove_noop_ops``), a leading part that ends at an underscore or at the end
    (``_sfdp``, ``_sfdp_pattern_1``: not ``_sfdp_pattern_11``), or a glob; ``stage:`` before it restricts it
    to one stage, and ``=`` before the name to that rule and its variants (``=addmm``: not ``addmm_pattern``).
    A pass of the user's own, with its patterns, goes by ``module:attribute`` too.
    """
    for name in wanted:
        if is_custom(label.pass_name) and name == label.pass_name:
            return True
        stage, colon, rest = name.partition(":")
        if colon and stage != label.stage:
            continue
        if matches(label.rewrite, base_name(label.rewrite), rest if colon else name):
            return True
    return False


def location(nodes: Iterable[fx.Node]) -> str | None:
    """``file.py:line`` of the user's source behind the nodes, from the last node that knows it."""
    for node in reversed(list(nodes)):
        found = _SITE.findall(node.meta.get("stack_trace") or "")
        if found:
            path, line = found[-1]
            return f"{Path(path).name}:{line}"
    return None


def _search_function(entry: Any) -> Any:
    check = getattr(entry, "extra_check", None)
    check = getattr(check, "__wrapped_check__", check)
    code, cells = getattr(check, "__code__", None), getattr(check, "__closure__", None) or ()
    if code is None:
        return None
    names = dict(zip(code.co_freevars, cells, strict=False))
    return names[_NAMES.search_function].cell_contents if _NAMES.search_function in names else None


def _partial_inside(function: Any) -> Any:
    """Return the callee of a wrapper that only gives a partial a plain signature, as the SDPA patterns have it."""
    cells = dict(
        zip(
            getattr(getattr(function, "__code__", None), "co_freevars", ()),
            getattr(function, "__closure__", None) or (),
            strict=False,
        )
    )
    held = cells[_NAMES.partial].cell_contents if set(cells) == {_NAMES.partial} else None
    return held if isinstance(held, functools.partial) else None


def _unwrapped(function: Any) -> Any:
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif hasattr(function, "__func__"):
            function = function.__func__
        elif (inside := _partial_inside(function)) is not None:
            function = inside
        else:
            return function


def _function_name(function: Any) -> str | None:
    function = _unwrapped(function)
    name = getattr(function, "__name__", None)
    if name in _NAMES.nameless and "<locals>" in function.__qualname__:
        return str(function.__qualname__).split(".<locals>")[0]  # the factory that made it
    if name == "<lambda>":
        _, line = source_of(function)
        return f"lambda_line_{line}"
    return name


def _pattern_name(entry: Any) -> str:
    targets = getattr(entry.pattern, "fns_repr", lambda: "")()
    return f"{type(entry.pattern).__name__}_{targets}"
