"""Names in the code of a rule: settings, operators, constants."""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fuzzcompile.compiler.rule_catalogue import KnownRule
from fuzzcompile.compiler.torch_config import get_setting, load_config
from fuzzcompile.model.facts import facts
from fuzzcompile.model.inductor_toggles import solve_switches
from fuzzcompile.model.stages import FREEZING

_DEEPEST = 3
_PASSES = "torch._inductor.fx_passes"
_ENTRY = ("handler", "extra_check")


@dataclass(frozen=True)
class CodeMentions:
    """Names in functions, each once and in order: entries of Inductor's config, operators, constants, methods."""

    settings: tuple[str, ...] = ()
    operators: tuple[object, ...] = ()
    constants: tuple[object, ...] = ()
    methods: tuple[str, ...] = ()


def find_mentions(parts: Iterable[object], deepest: int = _DEEPEST) -> CodeMentions:
    """Collect the names in the code of a rule's parts: entries of patterns, functions, classes, and their callees."""
    settings, methods = dict[str, None](), dict[str, None]()
    operators, constants = dict[object, None](), dict[object, None]()
    found: dict[types.CodeType, types.FunctionType] = {}
    for part in parts:
        _collect_part(part, found, deepest)
    for function in found.values():
        for value in _list_values(function):
            if isinstance(value, _Setting):
                settings[value.name] = None
            elif _is_operator(value):
                operators[value] = None
            elif isinstance(value, (torch.dtype, int, float, str)) and not isinstance(value, bool):
                constants[value] = None
                if isinstance(value, str) and _is_method(value):
                    methods[value] = None
    return CodeMentions(tuple(settings), tuple(operators), tuple(constants), tuple(methods))


def _collect_part(part: Any, found: dict[types.CodeType, types.FunctionType], depth: int) -> None:
    if isinstance(part, functools.partial):
        for inner in (part.func, *part.args, *part.keywords.values()):
            _collect_part(inner, found, depth)
    elif isinstance(part, types.MethodType):
        _collect_part(part.__func__, found, depth)
        _collect_part(type(part.__self__), found, depth)
    elif inspect.isclass(part):
        for base in part.__mro__:
            if base.__module__.startswith("torch._inductor"):
                for value in vars(base).values():
                    _collect_part(getattr(value, "__func__", value), found, depth)
    elif isinstance(part, types.FunctionType):
        _collect_function(part, found, depth)
    elif any(hasattr(part, name) for name in _ENTRY):
        for name in _ENTRY:
            _collect_part(getattr(part, name, None), found, depth)


def _collect_function(
    function: types.FunctionType, found: dict[types.CodeType, types.FunctionType], depth: int
) -> None:
    if function.__code__ in found or depth < 0:
        return
    found[function.__code__] = function
    for cell in function.__closure__ or ():
        held = _read_cell(cell)
        if isinstance(held, functools.partial) or (isinstance(held, types.FunctionType) and _is_rule_function(held)):
            _collect_part(held, found, depth)
    for name in _iter_names(function.__code__):
        helper = function.__globals__.get(name)
        if not str(getattr(helper, "__module__", "")).startswith(_PASSES):
            continue
        if isinstance(helper, types.FunctionType):
            _collect_function(helper, found, depth - 1)
        elif inspect.isclass(helper) and depth > 0:
            for value in vars(helper).values():
                if isinstance(value, types.FunctionType):
                    _collect_function(value, found, depth - 1)


def _is_rule_function(function: types.FunctionType) -> bool:
    """Whether a function is written for rules; what traces their patterns names settings that are none of theirs."""
    return function.__module__.startswith(_PASSES) or not function.__module__.startswith("torch.")


def _iter_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _iter_names(constant)


def _read_cell(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


@dataclass(frozen=True)
class _Setting:
    name: str


@functools.lru_cache(maxsize=512)
def _list_values(function: types.FunctionType) -> tuple[object, ...]:
    """List the values that a function's code names: settings, globals, closure, their attributes, constants."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    names = {**function.__globals__, **{name: _read_cell(cell) for name, cell in cells}}
    values = [*_iter_code_values(function.__code__, names), *map(_read_cell, function.__closure__ or ())]
    return tuple(inner for value in values for inner in _open_collection(value))


@dataclass(frozen=True)
class _Chain:
    """``a.b.c`` as far as it was read: its value, or below Inductor's config the entry's name."""

    value: object
    entry: str | None = None

    def follow(self, name: str) -> _Chain:
        if self.entry is not None:
            return _Chain(None, f"{self.entry}.{name}".removeprefix("."))
        if not isinstance(self.value, (types.ModuleType, torch._ops._OpNamespace, torch._ops.OpOverloadPacket)):
            return _Chain(None)
        try:
            value = getattr(self.value, name, None)
        except Exception:  # torch.ops raises what it likes for what is not there
            value = None
        return _Chain(value, "" if value is load_config("inductor") else None)

    @property
    def meaning(self) -> object:
        return _Setting(self.entry) if self.entry else self.value


def _iter_code_values(code: types.CodeType, names: Mapping[str, object]) -> Iterator[object]:
    """Chains of attributes (``aten.mm.default``) as what they stand for, and constants."""
    chain = _Chain(None)
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            chain = chain.follow(str(instruction.argval))
            continue
        yield chain.meaning
        chain = _Chain(None)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF"):
            value = names.get(str(instruction.argval))
            chain = _Chain(value, "" if value is load_config("inductor") else None)
        elif isinstance(instruction.argval, types.CodeType):
            yield from _iter_code_values(instruction.argval, names)
        elif instruction.opname == "LOAD_CONST":
            yield instruction.argval
    yield chain.meaning


def _open_collection(value: object) -> list[object]:
    """The value, or what a short collection holds: operators that a rule knows, say."""
    if isinstance(value, (list, tuple, set, frozenset)) and len(value) <= 64:
        return [inner for part in value for inner in _open_collection(part)]
    return [] if value is None else [value]


def _is_method(name: str) -> bool:
    """Return whether a text is the name of a tensor's method, as graphs before autograd call them."""
    method = None if name.startswith("_") else getattr(torch.Tensor, name, None)
    return callable(method) and getattr(torch.ops.aten, name, None) is not None


def _is_operator(value: object) -> bool:
    if not isinstance(value, (types.BuiltinFunctionType, types.FunctionType)):
        return isinstance(value, (torch._ops.OpOverload, torch._ops.OpOverloadPacket))
    return value in (getattr(torch, value.__name__, None), getattr(torch.nn.functional, value.__name__, None))


# Settings under which a rule runs, read off the generator's toggles, the conditions around it and its own code.

Settings = Mapping[str, object]
# In force in every watched compile, unless the case says otherwise.
_RANDOM = "fallback_random"


def list_rule_settings(rule: KnownRule) -> list[Settings]:
    """Settings to try, the fewest first: what the condition around the rule asks for, then what its code asks."""
    needed = solve_switches(rule.when, get_setting)
    if rule.stage == FREEZING:
        needed["freezing"] = True
    named = [name for name in find_mentions(rule.made_of).settings if name not in needed]
    if _RANDOM in rule.when or _RANDOM in find_mentions(rule.made_of, deepest=0).settings:
        needed[_RANDOM] = False
    # Switches of which it is known that the rule refuses everything without them.
    for reason in facts().unreachable:
        if reason.setting and reason.covers(rule.stage, rule.name, "cpu") and get_setting(reason.setting) is False:
            needed.setdefault(reason.setting, True)
    asked = [name for name in named if get_setting(name) is False and name != _RANDOM and name not in needed]
    alone: list[Settings] = [{**needed, name: True} for name in asked]
    return [needed, *alone, *([{**needed, **dict.fromkeys(asked, True)}] if len(asked) > 1 else [])]
