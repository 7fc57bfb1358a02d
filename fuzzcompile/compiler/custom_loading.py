"""Import what a user named as ``module:attribute`` or ``file.py:attribute``, and say where it came from."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import sys
from pathlib import Path
from types import ModuleType

from fuzzcompile.custom import Target
from fuzzcompile.errors import UsageError, message_of


def imported(target: Target, option: str) -> object:
    """The object that ``target`` names, for the ``option`` of the command line.

    A module is looked for in the working directory first, a file's imports in its own folder.

    Raises:
        UsageError: it cannot be imported, or has no such attribute.
    """
    try:
        value: object = _module(target)
    except Exception as error:  # user code: whatever it raises is an error of the module
        raise UsageError(
            f"{option} {target} cannot be imported: {type(error).__name__}: {message_of(error, 200)}."
        ) from error
    for part in target.attribute.split("."):
        if not hasattr(value, part):
            names = [name for name in dir(value) if not name.startswith("_")]
            near = difflib.get_close_matches(part, names, 3, 0.5)
            hint = f"; the nearest are {', '.join(near)}" if near else ""
            raise UsageError(f"{option} {target}: there is no {part!r} in it{hint}.")
        value = getattr(value, part)
    return value


def root_of(target: Target) -> Path | None:
    """The folder from which the module of an imported object is imported; None for one that is installed."""
    module = sys.modules[module_name(target)]
    if not module.__file__:
        return None
    depth = module_name(target).count(".") + Path(module.__file__).name.startswith("__init__.")
    root = Path(module.__file__).resolve().parents[depth]
    return None if root.name in ("site-packages", "dist-packages") else root


def _module(target: Target) -> ModuleType:
    folder = str(Path(target.module).parent) if target.is_file else str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = importlib.import_module(module_name(target))
    if target.is_file and Path(module.__file__ or "").resolve() != Path(target.module):
        raise ImportError(f"another module is called {module_name(target)} already; rename the file")
    return module


def module_name(target: Target) -> str:
    """The name under which the module is imported."""
    return Path(target.module).stem if target.is_file else target.module


def source_of(target: Target) -> str | None:
    """The name of the file that holds the object."""
    file = sys.modules[module_name(target)].__file__
    return Path(file).name if file else None


def digest_of(target: Target) -> str:
    """A hash of the module's file and of the modules beside it that were imported."""
    file = sys.modules[module_name(target)].__file__
    if not file:
        return ""
    beside = Path(file).resolve().parent
    files = {
        Path(name).resolve() for module in list(sys.modules.values()) if (name := getattr(module, "__file__", None))
    }
    texts = (path.read_bytes() for path in sorted(files) if path.parent == beside and path.is_file())
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:12]
