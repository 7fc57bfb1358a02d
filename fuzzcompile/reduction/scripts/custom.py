"""The user's own passes and backend that a reproducer needs to show its bug."""

from __future__ import annotations

from collections.abc import Iterator

from fuzzcompile.compiler.custom import backend_in_force, in_force, passes_in_force
from fuzzcompile.compiler.custom_loading import module_name, root_of
from fuzzcompile.contract import ReportJson
from fuzzcompile.custom import Target, is_custom

_MARK = "# No part of PyTorch: "


def with_custom(source: str) -> str:
    """Add statements to the case that import and apply the user's own passes and backend of this process.

    Modules are imported from where they are on this machine, unless they are installed. A source that has these
    statements already stays as it is.
    """
    if not in_force() or _MARK in source:
        return source
    passes, backend = passes_in_force(), backend_in_force()
    targets = [*(each.custom.target for each in passes), *([backend] if isinstance(backend, Target) else [])]
    lines = [f"{_MARK}{', '.join(str(target.name) for target in targets) or backend}.", *_imports(targets)]
    for setting in dict.fromkeys(each.setting for each in passes):
        held = [f"{_expression(each.custom.target)}{each.ending}" for each in passes if each.setting == setting]
        value = held[0] if len(held) == 1 else f"[{', '.join(held)}]"
        lines.append(f"torch._inductor.config.{setting} = {value}")
    if backend is not None:
        lines.append(f"BACKEND = {_expression(backend) if isinstance(backend, Target) else repr(backend)}")
    return f"{source}\n" + "\n".join(lines) + "\n"


def blames_custom(report: ReportJson) -> bool:
    """Return whether the culprit is one of the user's own passes or backends."""
    return is_custom((report.get("culprit") or {}).get("pass"))


def _imports(targets: list[Target]) -> Iterator[str]:
    if not targets:
        return
    yield "import importlib"
    roots = list(dict.fromkeys(str(root) for target in targets if (root := root_of(target)) is not None))
    if roots:
        yield "import sys"
    yield "import torch._inductor.config"
    for folder in roots:
        yield f"sys.path.insert(0, {folder!r})"


def _expression(target: Target) -> str:
    return f'importlib.import_module("{module_name(target)}").{target.attribute}'
