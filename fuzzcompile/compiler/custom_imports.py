"""Import of a user's ``module:attribute``, and the example inputs of the patterns registered there."""

from __future__ import annotations

import contextlib
import difflib
import functools
import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from fuzzcompile.compiler.watch.torch_patch import Function
from fuzzcompile.model.custom import ObjectPath
from fuzzcompile.model.errors import UsageError, format_message


def import_target(target: ObjectPath, option: str) -> object:
    """The object that ``target`` names, for the ``option`` of the command line; UsageError says what is wrong with it.

    A module is looked for in the working directory first, a file's imports in its own folder.
    """
    try:
        value: object = _import_module(target)
    except Exception as error:  # user code: whatever it raises is an error of the module
        raise UsageError(
            f"{option} {target} cannot be imported: {type(error).__name__}: {format_message(error, 200)}."
        ) from error
    for part in target.attribute.split("."):
        if not hasattr(value, part):
            names = [name for name in dir(value) if not name.startswith("_")]
            near = difflib.get_close_matches(part, names, 3, 0.5)
            hint = f"; the nearest are {', '.join(near)}" if near else ""
            raise UsageError(f"{option} {target}: there is no {part!r} in it{hint}.")
        value = getattr(value, part)
    return value


def find_root(target: ObjectPath) -> Path | None:
    """The folder from which the module of an imported object is imported; None for one that is installed."""
    module = sys.modules[get_module_name(target)]
    if not module.__file__:
        return None
    depth = get_module_name(target).count(".") + Path(module.__file__).name.startswith("__init__.")
    root = Path(module.__file__).resolve().parents[depth]
    return None if root.name in ("site-packages", "dist-packages") else root


def _import_module(target: ObjectPath) -> ModuleType:
    folder = str(Path(target.module).parent) if target.is_file else str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = importlib.import_module(get_module_name(target))
    if target.is_file and Path(module.__file__ or "").resolve() != Path(target.module):
        raise ImportError(f"another module is called {get_module_name(target)} already; rename the file")
    return module


def get_module_name(target: ObjectPath) -> str:
    """The name under which the module is imported."""
    return Path(target.module).stem if target.is_file else target.module


def get_file_name(target: ObjectPath) -> str | None:
    """The name of the file that holds the object."""
    file = sys.modules[get_module_name(target)].__file__
    return Path(file).name if file else None


def hash_modules(target: ObjectPath) -> str:
    """A hash of the module's file and of the modules beside it that were imported."""
    file = sys.modules[get_module_name(target)].__file__
    if not file:
        return ""
    beside = Path(file).resolve().parent
    files = {
        Path(name).resolve() for module in list(sys.modules.values()) if (name := getattr(module, "__file__", None))
    }
    texts = (path.read_bytes() for path in sorted(files) if path.parent == beside and path.is_file())
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:12]


# The inputs with which a user's own replacement patterns are registered, noted while their module is imported.

_MODULE, _REGISTER = "torch._inductor.pattern_matcher", "register_replacement"


@dataclass(frozen=True)
class PatternExample:
    """A search function, and what it was traced with."""

    function: Callable[..., object]
    inputs: Sequence[object]
    scalars: Mapping[str, object] = field(default_factory=dict)


_examples: dict[int, tuple[object, PatternExample]] = {}  # by the identity of the entry, which is kept alive


def find_example(entry: object) -> PatternExample | None:
    """Return the inputs that the pattern of an entry was traced with; None where they were not noted."""
    noted = _examples.get(id(entry))
    return noted[1] if noted is not None else None


@contextlib.contextmanager
def record_examples() -> Iterator[None]:
    """Note what replacement patterns are registered with inside the block."""
    module = importlib.import_module(_MODULE)
    original = getattr(module, _REGISTER)
    setattr(module, _REGISTER, _record_registration(original))
    try:
        yield
    finally:
        setattr(module, _REGISTER, original)


def _record_registration(original: Function) -> Function:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def register(*args: Any, **kwargs: Any) -> object:
        given = signature.bind(*args, **kwargs).arguments
        before = set(map(id, _list_table_entries(given.get("pass_dicts"))))
        result = original(*args, **kwargs)
        inputs, scalars = given.get("example_inputs"), given.get("scalar_workaround") or {}
        if isinstance(inputs, (list, tuple)):
            example = PatternExample(given["search_fn"], tuple(inputs), dict(scalars))
            new = [entry for entry in _list_table_entries(given.get("pass_dicts")) if id(entry) not in before]
            _examples.update({id(entry): (entry, example) for entry in new})
        return result

    return register


def _list_table_entries(tables: Any) -> list[object]:
    if isinstance(tables, (list, tuple)):
        return [entry for table in tables for entry in _list_table_entries(table)]
    patterns = getattr(tables, "patterns", tables)
    return [entry for entries in patterns.values() for entry in entries] if isinstance(patterns, Mapping) else []
