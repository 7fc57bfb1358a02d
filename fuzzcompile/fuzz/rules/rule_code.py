"""The functions behind a rule of the compiler: where they are, what they name, and settings under which it runs."""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.rule_catalogue import KnownRule, get_target_name
from fuzzcompile.compiler.torch_config import get_setting, load_config
from fuzzcompile.model.compiler_toggles import Settings, solve_switches
from fuzzcompile.model.facts import facts
from fuzzcompile.model.stages import FREEZING
from fuzzcompile.run.code_files import shorten_file
from fuzzcompile.run.reachable_state import list_global_names

_DEEPEST = 3
_PASSES = "torch._inductor.fx_passes"
# The attributes of a pattern's entry that hold code, and those of a pattern that hold others.
_CODE = ("handler", "extra_check", "normalize_args")
_INNER = ("args", "kwargs", "outputs", "pattern", "inner_pattern")
_CONSTANTS = (torch.dtype, int, float, str)
# Equal to a cell of a closure that holds nothing.
_EMPTY = types.CellType()


def list_functions(parts: Iterable[object], helpers: int | None = None) -> list[types.FunctionType]:
    """The functions of a rule's parts (entries of patterns, functions, classes) and of their closures, each once.

    With ``helpers`` also the passes' own functions and classes that they call, so many calls deep; of closures then
    only rules' functions, for what traces their patterns names settings that are none of theirs.
    """
    found: dict[types.CodeType, types.FunctionType] = {}

    def collect(part: Any, depth: int) -> None:
        inner: Iterable[object] = ()
        if isinstance(part, types.FunctionType):
            if part.__code__ not in found and depth >= 0:
                found[part.__code__] = part
                held = [cell.cell_contents for cell in part.__closure__ or () if cell != _EMPTY]
                held.append(getattr(part, "__wrapped__", None))
                inner = held if helpers is None else filter(_is_of_rules, held)
                for name in () if helpers is None else list_global_names(part.__code__):
                    helper = part.__globals__.get(name)
                    if str(getattr(helper, "__module__", "")).startswith(_PASSES):
                        collect(helper, depth - 1)
        elif isinstance(part, (list, tuple)):
            inner = part[:32]
        elif isinstance(part, functools.partial):
            inner = (part.func, *part.args, *part.keywords.values())
        elif isinstance(part, types.MethodType):
            inner = (part.__func__, type(part.__self__))
        elif inspect.isclass(part):
            own = [base for base in part.__mro__ if base.__module__.startswith("torch._inductor")]
            methods = [getattr(value, "__func__", value) for base in own for value in vars(base).values()]
            inner = [value for value in methods if isinstance(value, types.FunctionType)]
        elif any(hasattr(part, name) for name in _CODE):
            inner = [getattr(part, name, None) for name in _CODE]
        elif type(part).__module__.startswith(_PASSES) and callable(part):
            inner = (type(part),)
        for each in inner:
            collect(each, depth)

    for part in parts:
        collect(part, helpers or 0)
    return list(found.values())


def _is_of_rules(held: object) -> bool:
    if isinstance(held, types.FunctionType):
        return held.__module__.startswith(_PASSES) or not held.__module__.startswith("torch.")
    return isinstance(held, functools.partial)


def list_code_places(rule: KnownRule) -> list[tuple[str, int]]:
    """File (relative to the folder that holds torch) and first line of each function that makes up the rule."""
    codes = [function.__code__ for function in list_functions(rule.made_of)]
    return sorted({(shorten_file(code.co_filename), code.co_firstlineno) for code in codes})


def iter_alternatives(pattern: object) -> Iterator[Sequence[Any]]:
    """For each call in a pattern, the functions that it may be of."""
    functions = getattr(pattern, "fns", None)
    if isinstance(functions, (list, tuple)):
        yield functions
    for value in pytree.tree_leaves([getattr(pattern, name, None) for name in _INNER]):
        if hasattr(type(value), "pattern_eq"):
            yield from iter_alternatives(value)


def list_pattern_operators(rule: KnownRule) -> list[tuple[str, ...]]:
    """The operators that a rule's first pattern looks for: for each call, the alternatives."""
    patterns = (getattr(entry, "pattern", None) for entry in rule.made_of)
    listed = ([tuple(dict.fromkeys(map(get_target_name, each))) for each in iter_alternatives(p)] for p in patterns)
    return list(dict.fromkeys(next(filter(None, listed), [])))


@dataclass(frozen=True)
class CodeMentions:
    """Names in functions, each once and in order: entries of Inductor's config, operators, constants."""

    settings: tuple[str, ...] = ()
    operators: tuple[object, ...] = ()
    constants: tuple[object, ...] = ()


@dataclass(frozen=True)
class _Setting:
    name: str


def find_mentions(parts: Iterable[object], deepest: int = _DEEPEST) -> CodeMentions:
    """Collect the names in the code of a rule's parts, and of the helpers that these call."""
    values = dict.fromkeys(value for function in list_functions(parts, deepest) for value in _list_values(function))
    return CodeMentions(
        tuple(value.name for value in values if isinstance(value, _Setting)),
        tuple(filter(_is_operator, values)),
        tuple(value for value in values if isinstance(value, _CONSTANTS)),
    )


@functools.lru_cache(maxsize=512)
def _list_values(function: types.FunctionType) -> tuple[Any, ...]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    held = {name: cell.cell_contents for name, cell in cells if cell != _EMPTY}
    values = [*_iter_code_values(function.__code__, {**function.__globals__, **held}), *held.values()]
    opened = [inner for value in values for inner in _open_collection(value) if not isinstance(inner, bool)]
    return tuple(value for value in opened if isinstance(value, (_Setting, *_CONSTANTS)) or _is_operator(value))


def _iter_code_values(code: types.CodeType, names: Mapping[str, object]) -> Iterator[object]:
    """Chains of attributes (``aten.mm.default``) as what they stand for, and constants."""
    chain: list[str] = []
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            chain += [str(instruction.argval)] if chain else []
            continue
        yield _resolve(chain, names)
        chain = []
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF"):
            chain = [str(instruction.argval)]
        elif isinstance(instruction.argval, types.CodeType):
            yield from _iter_code_values(instruction.argval, names)
        elif instruction.opname == "LOAD_CONST":
            yield instruction.argval
    yield _resolve(chain, names)


def _resolve(chain: Sequence[str], names: Mapping[str, object]) -> object:
    """The value of ``a.b.c``, followed through modules and operators; below Inductor's config the entry's name."""
    value = names.get(chain[0]) if chain else None
    for at, name in enumerate(chain[1:], start=1):
        if value is load_config("inductor"):
            return _Setting(".".join(chain[at:]))
        if not isinstance(value, (types.ModuleType, torch._ops._OpNamespace, torch._ops.OpOverloadPacket)):
            return None
        try:
            value = getattr(value, name, None)
        except Exception:  # torch.ops raises what it likes for what is not there
            return None
    return value


def _open_collection(value: object) -> list[object]:
    """The value, or what a short collection holds: operators that a rule knows, say."""
    if isinstance(value, (list, tuple, set, frozenset)) and len(value) <= 64:
        return [inner for part in value for inner in _open_collection(part)]
    return [value]


def _is_operator(value: object) -> bool:
    if not isinstance(value, (types.BuiltinFunctionType, types.FunctionType)):
        return isinstance(value, (torch._ops.OpOverload, torch._ops.OpOverloadPacket))
    return value in (getattr(torch, value.__name__, None), getattr(torch.nn.functional, value.__name__, None))


# Settings under which a rule runs, read off the generator's toggles, the conditions around it and its own code.

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
