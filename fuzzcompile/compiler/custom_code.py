"""A user's own passes and backend in this process: put into the compiler's settings, and named in reports.

What is installed here acts in every compile of this process.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch._inductor import custom_graph_pass
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.pattern_matcher import LoweringPatternEntry, PatternMatcherPass

from fuzzcompile.compiler.custom_imports import get_file_name, hash_modules, import_target, record_examples
from fuzzcompile.compiler.torch_config import load_config
from fuzzcompile.compiler.watch import rule_labels
from fuzzcompile.compiler.watch.ledger import Label
from fuzzcompile.model.custom import Custom, CustomPass, LoadedCustom, ObjectPath
from fuzzcompile.model.errors import UsageError, format_message
from fuzzcompile.model.facts import facts
from fuzzcompile.model.stages import POST_GRAD, PRE_GRAD
from fuzzcompile.run.case import CompileSettings

if TYPE_CHECKING:
    from torch import fx
    from torch._inductor.pattern_matcher import PatternEntry


@dataclass
class _CustomCode:
    passes: tuple[InstalledPass, ...] = ()
    backend: str | Callable[..., object] | None = None
    target: ObjectPath | None = None  # of the backend


_custom_code = _CustomCode()


def install_custom(custom: Custom) -> None:
    """Import what the user named and have every compile of this process use it, in place of what was installed before.

    UsageError says what cannot be imported, is no pass or backend, or leaves open which stage is to run it.
    """
    for each in _custom_code.passes:
        setattr(load_config("inductor"), each.setting, None)
    _custom_code.passes, _custom_code.backend, _custom_code.target = (), None, None
    if custom.passes:
        with record_examples():
            _custom_code.passes = tuple(load_pass(each) for each in custom.passes)
    for setting in dict.fromkeys(each.setting for each in _custom_code.passes):
        held = _make_config_value([each for each in _custom_code.passes if each.setting == setting])
        setattr(load_config("inductor"), setting, held)
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
    if _custom_code.target is None:
        return (*passes, LoadedCustom(str(_custom_code.backend), "backend"))
    return (*passes, LoadedCustom(_custom_code.target.name, "backend", digest=hash_modules(_custom_code.target)))


def apply_backend(settings: CompileSettings) -> CompileSettings:
    """The settings of a case under the backend in force.

    A backend that takes no options or mode gets neither; as entries of Inductor's config they act where it calls
    Inductor.
    """
    backend = _custom_code.backend
    if backend is None:
        return settings
    if backend == "inductor" or _takes_options(backend):
        return replace(settings, backend=backend)
    meant = {**torch._inductor.list_mode_options(settings.mode), **settings.options} if settings.mode else {}
    given = {**settings.inductor, **meant, **settings.options}
    return replace(settings, backend=backend, options={}, mode=None, inductor=given)


def make_backend_label(backend: str | Callable[..., object]) -> Label:
    """The label of a backend; that of the user's own says as what it was named."""
    label = rule_labels.label_backend(backend)
    own = _custom_code.target if backend is _custom_code.backend else None
    return label if own is None else replace(label, pass_name=own.name, rewrite=own.name)


def make_config_without(name: str | None) -> dict[str, object]:
    """The entry of Inductor's config that leaves out the pass called ``name``; empty if there is none such."""
    left_out = next((each for each in _custom_code.passes if each.name == name), None)
    if left_out is None:
        return {}
    rest = [each for each in _custom_code.passes if each.setting == left_out.setting and each is not left_out]
    return {left_out.setting: _make_config_value(rest)}


def _make_config_value(passes: list[InstalledPass]) -> object:
    """Return the value that an entry of the config holds for these passes: torch 2.11 takes one alone."""
    return passes if len(passes) > 1 else passes[0] if passes else None


def _resolve_backend(named: ObjectPath | str) -> str | Callable[..., object]:
    if isinstance(named, ObjectPath):
        given = import_target(named, "--backend")
        if not callable(given):
            raise UsageError(
                f"--backend {named} is a {type(given).__name__}; name a function of a graph and its inputs."
            )
        return given
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
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters) or {"options", "mode"} <= {
        parameter.name for parameter in parameters
    }


# A user's own passes as they stand in Inductor's config (``torch._inductor.config.*custom*``).

# torch 2.11 does not have it.
_AWARE: Any = getattr(custom_graph_pass, "CustomInferenceAwareGraphPass", None)

SETTINGS = facts().custom_passes.stages
"""The entry of Inductor's config that runs a pass at a stage: of two, the one behind torch's own passes."""

_CALL_ENDING = "()"  # follows the name of a class
_DEPTH = 4  # a manager of passes, its list, a pass, its tables


class InstalledPass(CustomGraphPass):
    """A pass of the user's own (a table of patterns, or what is called with a graph) as it stands in Inductor's config.

    ``ending`` is what follows its name in Python that gives it to the config: a call, the method of a table, or
    nothing.
    """

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
        place = source or get_file_name(self.custom.target)
        return Label(stage, self.name, self.name, place, line or 1)

    def list_patterns(self) -> list[tuple[Label, PatternEntry]]:
        """The patterns of its tables, as far as they can be seen from outside, each with its label."""
        entries = list_entries(_find_tables(self.given, _DEPTH))
        return [(rule_labels.make_entry_label(entry, self.place, self.name), entry) for entry in entries]

    def describe(self) -> LoadedCustom:
        """The pass in plain data."""
        names = tuple(label.rewrite for label, _ in self.list_patterns()) or (self.name,)
        return LoadedCustom(self.name, "pass", self.place, self.setting, names, hash_modules(self.custom.target))


class InferenceAwarePass(InstalledPass):
    """A pass that is told whether the graph is for inference."""

    def __call__(self, graph: fx.Graph, is_inference: bool = False) -> None:
        """Run the pass over the graph."""
        assert callable(self.given)
        self.given(graph, is_inference)


if _AWARE is not None:
    _AWARE.register(InferenceAwarePass)  # torch tells those that are of its class


def load_pass(custom: CustomPass) -> InstalledPass:
    """Import a pass and make it one that Inductor's config can hold; UsageError says why it cannot be."""
    given, ending = import_target(custom.target, "--pass"), ""
    if inspect.isclass(given):
        ending = _CALL_ENDING
        try:
            given = given()
        except Exception as error:  # user code: whatever it raises is an error of the class
            raise UsageError(
                f"--pass {custom.target} is a class that cannot be made without arguments "
                f"({type(error).__name__}: {format_message(error, 200)}); name an object of it."
            ) from error
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
    aware = _is_inference_aware(given)
    if aware and at != POST_GRAD:
        raise UsageError(f"--pass {custom.target} takes is_inference, which torch tells passes at {POST_GRAD} alone.")
    return (InferenceAwarePass if aware else InstalledPass)(replace(custom, at=at), given, ending)


def _make_names_unique(given: PatternMatcherPass | Callable[..., object]) -> None:
    """Give patterns that have the same name names of their own, so that reports can tell them apart."""
    names: Counter[str] = Counter()
    for entry in list_entries(_find_tables(given, _DEPTH)):
        name = rule_labels.make_entry_label(entry, POST_GRAD, None).rewrite
        names[name] += 1
        if names[name] > 1:
            entry.pattern_name = f"{name}#{names[name]}"  # type: ignore[attr-defined]  # torch reads it for telemetry


def _find_certain_stage(given: object) -> str | None:
    """The stage that alone can run the pass, where its kind or its patterns show that; else None."""
    if _is_inference_aware(given):
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


def _is_inference_aware(given: object) -> bool:
    return _AWARE is not None and isinstance(given, _AWARE)


def _find_tables(value: object, depth: int) -> Iterator[PatternMatcherPass]:
    """The tables of patterns that an object holds, in lists and objects of the user's too."""
    if isinstance(value, PatternMatcherPass):
        yield value
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
    for inner in held if depth else ():
        yield from _find_tables(inner, depth - 1)


def list_entries(tables: Iterable[PatternMatcherPass]) -> list[PatternEntry]:
    """The entries of tables of patterns, each once: one may stand for many operators."""
    every = (entry for table in tables for entries in table.patterns.values() for entry in entries)
    return list({id(entry): entry for entry in every}.values())
