"""A user's own passes and backend in this process: imported, put into the compiler's settings, named in reports."""

from __future__ import annotations

import contextlib
import difflib
import functools
import hashlib
import importlib
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import fx
from torch._inductor import custom_graph_pass, pattern_matcher
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.pattern_matcher import LoweringPatternEntry, PatternEntry, PatternMatcherPass

from fuzzcompile.compiler.torch_config import load_config
from fuzzcompile.compiler.watch import rule_labels
from fuzzcompile.compiler.watch.ledger import Label
from fuzzcompile.model.custom import Custom, CustomPass, LoadedCustom, ObjectPath
from fuzzcompile.model.errors import UsageError, describe_error
from fuzzcompile.model.facts import facts
from fuzzcompile.model.stages import LOWERING, POST_GRAD, PRE_GRAD
from fuzzcompile.run.case import CompileSettings
from fuzzcompile.run.code_files import INSTALLED
from fuzzcompile.run.torch_attributes import ReplacedAttribute

# Import of what a user's ``module:attribute`` names.


def import_target(target: ObjectPath, option: str) -> object:
    """The object that ``target`` names, for an ``option`` of the command line; UsageError says what is wrong."""
    try:
        value: object = _import_module(target)
    except Exception as error:  # user code: whatever it raises is an error of the module
        raise UsageError(f"{option} {target} cannot be imported: {describe_error(error, 220)}.") from error
    for part in target.attribute.split("."):
        if not hasattr(value, part):
            names = [name for name in dir(value) if not name.startswith("_")]
            near = difflib.get_close_matches(part, names, 3, 0.5)
            hint = f"; the nearest are {', '.join(near)}" if near else ""
            raise UsageError(f"{option} {target}: there is no {part!r} in it{hint}.")
        value = getattr(value, part)
    return value


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


def _find_file(target: ObjectPath) -> Path | None:
    file = sys.modules[get_module_name(target)].__file__
    return Path(file) if file else None


def find_root(target: ObjectPath) -> Path | None:
    """The folder from which the module of an imported object is imported; None for one that is installed."""
    file = _find_file(target)
    if file is None:
        return None
    root = file.resolve().parents[get_module_name(target).count(".") + file.name.startswith("__init__.")]
    return None if root.name in INSTALLED else root


def _hash_modules(target: ObjectPath) -> str:
    file = _find_file(target)
    if file is None:
        return ""
    imported = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    files = sorted({Path(name).resolve() for name in imported if name})
    texts = (path.read_bytes() for path in files if path.parent == file.resolve().parent and path.is_file())
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:12]


# The inputs with which a user's own replacement patterns are registered, noted while their module is imported.


@dataclass(frozen=True)
class PatternExample:
    """A search function, and what it was traced with."""

    function: Callable[..., object]
    inputs: Sequence[object]
    scalars: Mapping[str, object]


_examples: dict[int, tuple[object, PatternExample]] = {}  # by the identity of the entry, which is kept alive


def find_example(entry: object) -> PatternExample | None:
    """Return the inputs that the pattern of an entry was traced with; None where they were not noted."""
    _, example = _examples.get(id(entry), (None, None))
    return example


@contextlib.contextmanager
def _record_examples() -> Iterator[None]:
    original = pattern_matcher.register_replacement
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

    with REGISTRATION.replace(register):
        yield


def _probe_registration() -> str | None:
    table = PatternMatcherPass()
    with _record_examples():
        arguments = [torch.ones(1)], pattern_matcher.fwd_only, table
        pattern_matcher.register_replacement(lambda x: torch.sin(x) + 1, torch.cos, *arguments)
    return None if all(map(find_example, list_entries([table]))) else "its arguments are not noted"


REGISTRATION = ReplacedAttribute("torch._inductor.pattern_matcher", "register_replacement", probe=_probe_registration)


def _list_table_entries(tables: Any) -> list[object]:
    if isinstance(tables, (list, tuple)):
        return [entry for table in tables for entry in _list_table_entries(table)]
    patterns = getattr(tables, "patterns", tables)
    return [entry for entries in patterns.values() for entry in entries] if isinstance(patterns, Mapping) else []


# What this process compiles with.


@dataclass
class _CustomCode:
    passes: tuple[InstalledPass, ...] = ()
    backend: str | Callable[..., object] | None = None
    target: ObjectPath | None = None  # of the backend


_custom_code = _CustomCode()


def install_custom(custom: Custom) -> None:
    """Import what the user named, for every compile of this process from now on; UsageError says what is wrong."""
    for each in _custom_code.passes:
        setattr(load_config("inductor"), each.setting, None)
    _custom_code.passes, _custom_code.backend, _custom_code.target = (), None, None
    if custom.passes:
        with _record_examples():
            _custom_code.passes = tuple(load_pass(each) for each in custom.passes)
    for each in _custom_code.passes:
        setattr(load_config("inductor"), each.setting, _make_config_value(each.setting))
    if custom.backend is not None:
        _custom_code.backend = _resolve_backend(custom.backend)
        _custom_code.target = custom.backend if isinstance(custom.backend, ObjectPath) else None


def find_installed_pass(function: object) -> InstalledPass | None:
    """The user's own pass that Inductor calls as ``function``; None if it is another."""
    plain = function.func if isinstance(function, functools.partial) else function
    return next((each for each in _custom_code.passes if each.is_run_as(plain)), None)


def list_passes() -> tuple[InstalledPass, ...]:
    """The user's own passes in this process."""
    return _custom_code.passes


def describe_backend() -> ObjectPath | str | None:
    """The backend of this process: where the user's own stands, or its registered name; None without one."""
    return _custom_code.backend if isinstance(_custom_code.backend, str) else _custom_code.target


def has_custom_code() -> bool:
    """Return whether this process compiles with custom passes or a custom backend of the user."""
    return bool(_custom_code.passes) or _custom_code.backend is not None


def list_loaded() -> tuple[LoadedCustom, ...]:
    """Return the custom passes and backend that this process compiles with, in plain data."""
    passes = tuple(each.describe() for each in _custom_code.passes)
    if _custom_code.backend is None:
        return passes
    name, target = str(_custom_code.backend), _custom_code.target
    named = LoadedCustom(target.name, "backend", digest=_hash_modules(target)) if target else None
    return (*passes, named or LoadedCustom(name, "backend"))


def apply_backend(settings: CompileSettings) -> CompileSettings:
    """The settings of a case under the backend in force."""
    # One that takes no options or mode gets neither: as entries of Inductor's config they act where it calls Inductor.
    backend = _custom_code.backend
    if backend is None:
        return settings
    if backend == "inductor" or _takes_options(backend):
        return replace(settings, backend=backend)
    meant = {**torch._inductor.list_mode_options(settings.mode), **settings.options} if settings.mode else {}
    given = {**settings.inductor, **meant, **settings.options}
    return replace(settings, backend=backend, options={}, mode=None, inductor=given)


def make_backend_label(backend: str | Callable[..., object]) -> Label:
    """Label of a backend, by its registered name or as the callable that it is; the user's own as it was named."""
    if isinstance(backend, str):
        return Label(LOWERING, None, backend, *rule_labels.find_source(torch._dynamo.lookup_backend(backend)))
    label = rule_labels.make_callable_label(backend, LOWERING, None)
    own = _custom_code.target if backend is _custom_code.backend else None
    return label if own is None else replace(label, pass_name=own.name, rewrite=own.name)


def make_config_without(name: str | None) -> dict[str, object]:
    """The entry of Inductor's config that leaves out the pass called ``name``; empty if there is none such."""
    left_out = [each for each in _custom_code.passes if each.name == name][:1]
    return {each.setting: _make_config_value(each.setting, each) for each in left_out}


def _make_config_value(setting: str, left_out: InstalledPass | None = None) -> object:
    """Return what an entry of the config holds: torch 2.11 takes one pass alone."""
    passes = [each for each in _custom_code.passes if each.setting == setting and each is not left_out]
    return passes if len(passes) > 1 else passes[0] if passes else None


def _resolve_backend(named: ObjectPath | str) -> str | Callable[..., object]:
    if isinstance(named, ObjectPath):
        given = import_target(named, "--backend")
        if callable(given):
            return given
        raise UsageError(f"--backend {named} is a {type(given).__name__}; name a function of a graph and its inputs.")
    known = torch._dynamo.list_backends(None)
    if named not in known:
        near = difflib.get_close_matches(named, known, 3, 0.5) or known
        raise UsageError(f"--backend {named}: torch has no backend of that name; it has {', '.join(near)}.")
    return named


def _takes_options(backend: Any) -> bool:
    if isinstance(backend, str):
        backend = torch._dynamo.lookup_backend(backend)
    try:
        parameters = inspect.signature(backend).parameters.values()
    except (TypeError, ValueError):
        return False
    names = {parameter.name for parameter in parameters}
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters) or {"options", "mode"} <= names


# A user's own passes as they stand in Inductor's config (``torch._inductor.config.*custom*``).

# torch 2.11 does not have it.
_AWARE: Any = getattr(custom_graph_pass, "CustomInferenceAwareGraphPass", ())

SETTINGS = facts().custom_passes.stages
"""The entry of Inductor's config that runs a pass at a stage: of two, the one behind torch's own passes."""

_CALL_ENDING = "()"  # follows the name of a class
_DEPTH = 4  # a manager of passes, its list, a pass, its tables


class InstalledPass(CustomGraphPass):
    """A pass of the user's own (a table of patterns, or what is called with a graph) as Inductor's config holds it."""

    def __init__(self, custom: CustomPass, given: PatternMatcherPass | Callable[..., object], ending: str = "") -> None:
        assert custom.at is not None
        self.custom, self.given, self.place, self.ending = custom, given, custom.at, ending

    def __call__(self, graph: fx.Graph) -> None:
        """Run the pass over the graph."""
        if isinstance(self.given, PatternMatcherPass):
            self.given.apply(graph)
        else:
            self.given(graph)

    def is_run_as(self, function: object) -> bool:
        """Return whether Inductor runs this pass where it calls ``function``: a script may have given it as it is."""
        if function is self or function is self.given or getattr(function, "__self__", None) is self.given:
            return True
        return self.ending.startswith(_CALL_ENDING) and type(function) is type(self.given)

    @property
    def is_table(self) -> bool:
        """True for a pass that is nothing but a table of patterns."""
        return isinstance(self.given, PatternMatcherPass)

    def uuid(self) -> object:
        """The pass's own, by which torch decides when it runs passes over dynamo's graph."""
        return self.given.uuid() if isinstance(self.given, CustomGraphPass) else None

    def __deepcopy__(self, memo: object) -> InstalledPass:
        """Itself: a copy of the config holds the same pass."""
        return self

    def __repr__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        """The name of the pass in reports."""
        return self.custom.target.name

    @property
    def setting(self) -> str:
        """The entry of Inductor's config that holds it."""
        return SETTINGS[self.place]

    def make_label(self, stage: str) -> Label:
        """The label of what the pass does beyond the patterns of its tables."""
        code = self.given if inspect.isroutine(self.given) else vars(type(self.given)).get("__call__")
        source, line = (None, None) if self.is_table else rule_labels.find_source(code)
        file = _find_file(self.custom.target)
        return Label(stage, self.name, self.name, source or (file.name if file else None), line or 1)

    def list_patterns(self) -> list[tuple[Label, PatternEntry]]:
        """The patterns of its tables, as far as they can be seen from outside, each with its label."""
        entries = list_entries(_find_tables(self.given, _DEPTH))
        return [(rule_labels.make_entry_label(entry, self.place, self.name), entry) for entry in entries]

    def describe(self) -> LoadedCustom:
        """The pass in plain data."""
        names = tuple(label.rewrite for label, _ in self.list_patterns()) or (self.name,)
        return LoadedCustom(self.name, "pass", self.place, self.setting, names, _hash_modules(self.custom.target))


class InferenceAwarePass(InstalledPass):
    """A pass that is told whether the graph is for inference."""

    def __call__(self, graph: fx.Graph, is_inference: bool = False) -> None:
        """Run the pass over the graph."""
        assert callable(self.given)
        self.given(graph, is_inference)


if _AWARE:
    _AWARE.register(InferenceAwarePass)  # torch tells those that are of its class


def load_pass(custom: CustomPass) -> InstalledPass:
    """Import a pass and make it one that Inductor's config can hold; UsageError says why it cannot be."""
    given, ending = import_target(custom.target, "--pass"), ""
    if inspect.isclass(given):
        ending = _CALL_ENDING
        try:
            given = given()
        except Exception as error:  # user code: whatever it raises is an error of the class
            why = f"cannot be made without arguments ({describe_error(error, 220)})"
            raise UsageError(f"--pass {custom.target} is a class that {why}; name an object of it.") from error
    if inspect.ismethod(given) and isinstance(given.__self__, PatternMatcherPass):
        given = given.__self__  # its method, as the compiler's settings take it
    elif isinstance(given, PatternMatcherPass):
        ending += ".apply"
    if not (callable(given) or isinstance(given, PatternMatcherPass)):
        kind = type(given).__name__
        raise UsageError(f"--pass {custom.target} is a {kind}; name a function of a graph, or a PatternMatcherPass.")
    _make_names_unique(given)
    at = custom.at or _find_certain_stage(given)
    if at is None:
        raise UsageError(f"--pass {custom.target} does not say which graphs it is for: add --at {'|'.join(SETTINGS)}.")
    aware = isinstance(given, _AWARE)
    if aware and at != POST_GRAD:
        raise UsageError(f"--pass {custom.target} takes is_inference, which torch tells passes at {POST_GRAD} alone.")
    return (InferenceAwarePass if aware else InstalledPass)(replace(custom, at=at), given, ending)


def _make_names_unique(given: PatternMatcherPass | Callable[..., object]) -> None:
    names: Counter[str] = Counter()
    for entry in list_entries(_find_tables(given, _DEPTH)):
        name = rule_labels.make_entry_label(entry, POST_GRAD, None).rewrite
        names[name] += 1
        if names[name] > 1:
            entry.pattern_name = f"{name}#{names[name]}"  # type: ignore[attr-defined]  # torch reads it for telemetry


def _find_certain_stage(given: object) -> str | None:
    """The stage that alone can run the pass, where its kind or its patterns show that; else None."""
    if isinstance(given, _AWARE):
        return POST_GRAD
    if not isinstance(given, PatternMatcherPass):
        return None
    entries = list(list_entries([given]))
    if any(isinstance(entry, LoweringPatternEntry) for entry in entries):
        return POST_GRAD
    # Graphs behind dynamo's call overloads of operators and nothing else.
    heads = [key for key in given.patterns if given.patterns[key]]
    torch_level = [op != "call_function" or not isinstance(target, torch._ops.OpOverload) for op, target in heads]
    return PRE_GRAD if heads and all(torch_level) else None


def _find_tables(value: object, depth: int) -> Iterator[PatternMatcherPass]:
    if isinstance(value, PatternMatcherPass):
        yield value
    if isinstance(value, PatternMatcherPass) or not depth:
        return
    held: Iterable[object] = ()
    if isinstance(value, (list, tuple)):
        held = value
    elif isinstance(value, dict):
        held = list(value.values())
    elif inspect.isfunction(value):
        cells = inspect.getclosurevars(value)
        held = [*cells.nonlocals.values(), *cells.globals.values()]
    elif not inspect.isclass(value) and type(value).__module__.split(".")[0] not in ("torch", "builtins"):
        held = list(getattr(value, "__dict__", {}).values())
    for inner in held:
        yield from _find_tables(inner, depth - 1)


def list_entries(tables: Iterable[PatternMatcherPass]) -> list[PatternEntry]:
    """The entries of tables of patterns, each once: one may stand for many operators."""
    every = (entry for table in tables for entries in table.patterns.values() for entry in entries)
    return list({id(entry): entry for entry in every}.values())
