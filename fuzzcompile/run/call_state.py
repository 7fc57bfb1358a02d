"""What a call of a callable may read besides the values of tensors: the Python state around it, as facts by name.

Two calls of a compiled callable run one graph as long as dynamo's guards hold. A fact that changed between them is what
a guard should have noticed. What one call changes of plain values and containers is an effect of it: of numbers and
lengths by how much, else what is there.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import types
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from fuzzcompile.run.case import Arguments, Reachable
from fuzzcompile.run.code_files import is_user_file
from fuzzcompile.run.device import read_float32_matmul
from fuzzcompile.run.reachable_state import (
    HOOK_TABLES,
    MODULE_TABLES,
    ReachedObjects,
    holds_state,
    is_torch_object,
    is_user_class,
    iterate_attributes,
    list_global_names,
    name_arguments,
)
from fuzzcompile.run.tensors import NUMPY

_OfAttributes = Literal["attribute", "class attribute", "function attribute"]
Carrier = Literal[_OfAttributes, "argument", "closure", "default", "global", "item", "code", "mode"]
"""Where a fact is held."""
FactKind = Literal["value", "object", "same", "type", "length", "keys", "tensor", "memory"]
"""What of it is compared: a plain value, which object it is, whether two names are of one tensor, a class, a length,
keys in their order, the layout of a tensor, whether two tensors lie in one memory."""

_PLAIN = (bool, int, float, complex, str, bytes, bytearray, range, type(None), torch.dtype, torch.device, torch.Size)
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_COMPARED_ELSEWHERE = (int, str, type(None), torch.Tensor)
_OF_MODULES = frozenset(vars(nn.Module()))
_MOST_SHOWN = 60
_GRADIENT = ".grad"
# What the compiler and torch note on the program's own objects.
_NOTES = ("_torchdynamo", "_dynamo", "_compiled_call_impl", "_backward_hooks_")


UNTOLD = object()
"""What a fact says of which no effect is told."""


@dataclass(frozen=True)
class StateFact:
    """One thing that a call may read: where it is held, what of it is compared, and how it is shown."""

    carrier: Carrier
    kind: FactKind
    value: object
    shown: str
    plain: object = UNTOLD  # of a value, a length, keys or a name: what it is, for effects of a call


FUNCTION_MODES = "the TorchFunctionModes that are entered"


def is_own_mode(kind: type[object]) -> bool:
    """Return whether a class of modes is neither torch's nor ours."""
    return kind.__module__.partition(".")[0] not in ("torch", __name__.partition(".")[0])


def _name_modes(stack: Callable[[], Sequence[object]]) -> str:
    """The program's own modes of a stack: torch's have facts of their own (the default device)."""
    return ", ".join(kind.__qualname__ for kind in map(type, stack()) if is_own_mode(kind))


def _count_autocast_regions() -> int:
    """How many regions of autocast are entered: what they have cast is forgotten once it is none."""
    entered: int = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return entered


def _set_autocast_regions(count: int) -> None:
    change = torch.autocast_decrement_nesting if count < _count_autocast_regions() else torch.autocast_increment_nesting
    while _count_autocast_regions() != count:
        change()


class _Switch(NamedTuple):
    """A switch of the process: how it is read, and how it is set; None for one that only a block can leave."""

    read: Callable[[], object]
    write: Callable[[Any], object] | None = None


def _warn_as_before(on: bool) -> None:
    torch.use_deterministic_algorithms(on, warn_only=torch.is_deterministic_algorithms_warn_only_enabled())


# Those that a program may read, or that change what its operators do, by what a user calls to read them.
_SWITCHES: Mapping[str, _Switch] = {
    "torch.is_grad_enabled()": _Switch(torch.is_grad_enabled, torch.set_grad_enabled),
    "torch.is_inference_mode_enabled()": _Switch(torch.is_inference_mode_enabled),
    "torch.get_default_dtype()": _Switch(torch.get_default_dtype, torch.set_default_dtype),
    "torch.get_default_device()": _Switch(torch.get_default_device),
    "torch.are_deterministic_algorithms_enabled()": _Switch(
        torch.are_deterministic_algorithms_enabled, _warn_as_before
    ),
    "torch.get_num_threads()": _Switch(torch.get_num_threads, torch.set_num_threads),
    "torch.get_float32_matmul_precision()": _Switch(read_float32_matmul),
    **{
        f"torch.{name}('{device}')": _Switch(partial(read, device), partial(write, device))
        for device in ("cpu", "cuda")
        for name, read, write in (
            ("is_autocast_enabled", torch.is_autocast_enabled, torch.set_autocast_enabled),
            ("get_autocast_dtype", torch.get_autocast_dtype, torch.set_autocast_dtype),
        )
    },
    "the number of autocast regions that are entered": _Switch(_count_autocast_regions, _set_autocast_regions),
    FUNCTION_MODES: _Switch(lambda: _name_modes(_get_current_function_mode_stack)),
    "the TorchDispatchModes that are entered": _Switch(lambda: _name_modes(_get_current_dispatch_mode_stack)),
}


def read_modes() -> dict[str, object]:
    """The switches of the process as they are now, by what a user calls to read them."""
    return {name: switch.read() for name, switch in _SWITCHES.items()}


@contextlib.contextmanager
def preserve_modes() -> Iterator[None]:
    """Set the switches back behind the block to what they were, but for what only a block can leave."""
    earlier = read_modes()
    try:
        yield
    finally:
        for name, switch in _SWITCHES.items():
            if switch.write is not None and switch.read() != earlier[name]:
                switch.write(earlier[name])


class CallState:
    """The facts of what a callable reaches; what they name is kept alive, so that an identity stands for one object.

    Without ``attributes``, those of objects that others compare are left out: whole numbers, text, tensors.
    """

    def __init__(
        self, reached: Reachable, arguments: Mapping[str, object] | None = None, *, attributes: bool = True
    ) -> None:
        self.facts: dict[str, StateFact] = {}
        self._attributes = attributes
        self._tensors: dict[int, str] = {}
        self._kept = reached, arguments
        for name, leaf in (arguments or {}).items():
            self._note("argument", name, leaf)
        for path, value in reached.list_named():
            self._note_object(path, value)

    @classmethod
    def read(cls, target: Callable[..., object], arguments: Arguments) -> CallState:
        """The facts before a call: also its arguments, and the modes of the process."""
        given = _bind_parameters(target, arguments)
        # Keys and lengths of these are facts too, and so is what they hold, under the names that Python has for it.
        containers = {name: value for name, value in given.items() if isinstance(value, dict | list | tuple | set)}
        named = dict(name_arguments({name: value for name, value in given.items() if name not in containers}))
        objects = {name: leaf for name, leaf in named.items() if not isinstance(leaf, torch.Tensor)}
        state = cls(ReachedObjects({"": target, **containers, **objects}), named)
        state._note_shared_memory(dict(name_arguments(given)))
        for name, value in read_modes().items():
            state._add(name, _describe_value("mode", value))
        return state

    def list_changes(self, earlier: CallState) -> list[str]:
        """The names of the facts that are others than before an earlier call, those that tell most first."""
        names = dict.fromkeys((*earlier.facts, *self.facts))
        changed = [name for name in names if not _is_same(self.facts.get(name), earlier.facts.get(name))]

        def rank(name: str) -> tuple[bool, int]:
            late = self.tells_presence(name, earlier) or name.endswith(_GRADIENT)  # which every training step has
            return late, _TELLING.index(self.get_fact(name, earlier).kind)

        return sorted(changed, key=rank)

    def describe_change(self, name: str, earlier: CallState) -> str:
        """A fact before an earlier call, and before this one."""
        before, after = earlier.facts.get(name), self.facts.get(name)
        was, now = ("absent" if fact is None else fact.shown for fact in (before, after))
        return f"{name}: {was}, then {'another that looks the same' if was == now else now}"

    def get_fact(self, name: str, earlier: CallState) -> StateFact:
        """The fact of that name as it was before an earlier call or, if there was none, as it is now."""
        return earlier.facts.get(name) or self.facts[name]

    def tells_presence(self, name: str, earlier: CallState) -> bool:
        """Return whether what a fact is about is there in one of the states alone."""
        return (name in self.facts) != (name in earlier.facts)

    def _add(self, name: str, fact: StateFact) -> None:
        if not any(part.startswith(_NOTES) for part in name.split(".")):
            self.facts.setdefault(name, fact)

    def _note(self, carrier: Carrier, name: str, value: object) -> None:
        """What is held under a name: a plain value, the layout of a tensor and which one it is, or which object."""
        if isinstance(value, _PLAIN) and not isinstance(value, numpy.generic):
            self._add(name, _describe_value(carrier, value))
        elif isinstance(value, torch.Tensor):
            self._add(name, _describe_tensor(carrier, value))
            first = self._tensors.setdefault(id(value), name)
            if first != name:
                self._add(f"{name} is {first}", StateFact(carrier, "same", True, "True"))
            elif value.is_leaf and value.requires_grad:
                self._note("attribute", f"{name}{_GRADIENT}", value.grad)
        else:
            self._add(name, StateFact(carrier, "object", id(value), _shorten(value), _name_object(value)))
            self._add(f"type({name})", _describe_type(carrier, value))
            if isinstance(value, tuple | frozenset):  # an equal one elsewhere may be the same object, or not
                self._note_object(name, value)

    def _note_shared_memory(self, arguments: Mapping[str, object]) -> None:
        """Which arguments lie in the memory of an earlier one."""
        owners: dict[int, str] = {}
        for name, leaf in arguments.items():
            if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided and leaf.numel():
                with contextlib.suppress(RuntimeError, NotImplementedError):  # a tensor without memory of its own
                    first = owners.setdefault(leaf.untyped_storage().data_ptr(), name)
                    if first != name:
                        self._add(f"memory of {name} is that of {first}", StateFact("argument", "memory", True, "True"))

    def _note_object(self, path: str, value: object) -> None:
        if isinstance(value, types.FunctionType):
            if self._attributes or _is_user_function(value):
                self._note_function(path or value.__name__, value)
        elif isinstance(value, type):
            if is_user_class(value):
                for name, held in vars(value).items():
                    if name == "__call__" or not name.startswith("__"):
                        self._note("class attribute", f"{value.__name__}.{name}", held)
        elif path.rpartition(".")[2] in HOOK_TABLES and not self._attributes:
            return
        elif isinstance(value, dict):
            keys, plain = tuple(map(_key, value)), tuple(_word(key) for key in value if isinstance(key, _PLAIN))
            if path.rpartition(".")[2] in HOOK_TABLES:  # their keys are numbers that torch counts through the process
                self._add(path, StateFact("item", "keys", keys, f"{len(keys)} hooks", len(keys)))
            else:
                self._add(f"list({path})", StateFact("item", "keys", keys, _shorten(list(value)), plain))
            for key, held in dict.items(value):
                self._note("item", f"{path}[{_show_key(key)}]", held)
        elif isinstance(value, list | tuple | deque):
            items = tuple(item if isinstance(item, float | complex) else _word(item) for item in value)
            self._add(f"len({path})", StateFact("item", "length", len(value), str(len(value)), items))
            for number, held in enumerate(value):
                self._note("item", f"{path}[{number}]", held)
        elif isinstance(value, set | frozenset):
            members = frozenset(_word(member) for member in value if isinstance(member, _PLAIN))
            held = StateFact("item", "keys", frozenset(map(_key, value)), _shorten(value), members)
            self._add(f"set({path})", held)
        elif holds_state(value) and not self._attributes:
            for name, held in iterate_attributes(value):
                compared = isinstance(held, _COMPARED_ELSEWHERE) or name in _OF_MODULES
                # Of torch's own objects some are what dynamo only stands in for.
                if isinstance(held, float) if is_torch_object(value) else not compared:
                    self._note("attribute", f"{path}.{name}" if path else name, held)
        elif holds_state(value):
            own = dict(iterate_attributes(value))
            if isinstance(value, nn.Module):
                tables = [own.pop(table, None) for table in MODULE_TABLES]
                registered = {name: held for table in tables if isinstance(table, dict) for name, held in table.items()}
                own = registered | own  # as Python looks attributes up
            for name, held in own.items():
                self._note("attribute", f"{path}.{name}" if path else name, held)

    def _note_function(self, name: str, function: types.FunctionType) -> None:
        self._add(f"{name}.__code__", StateFact("code", "object", id(function.__code__), function.__code__.co_name))
        for number, default in enumerate(function.__defaults__ or ()):
            self._note("default", f"{name}.__defaults__[{number}]", default)
        for key, default in (function.__kwdefaults__ or {}).items():
            self._note("default", f"{name}.__kwdefaults__[{key!r}]", default)
        for key, held in vars(function).items():
            self._note("function attribute", f"{name}.{key}", held)
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            with contextlib.suppress(ValueError):  # an empty cell
                self._note("closure", variable, cell.cell_contents)
        if is_user_file(function.__code__.co_filename):
            for variable in list_global_names(function.__code__):
                if variable in function.__globals__ and not isinstance(
                    function.__globals__[variable], types.ModuleType
                ):
                    self._note("global", variable, function.__globals__[variable])


# Of several facts that changed, the plainest comes first, and what is new or gone last: it is often a consequence.
_TELLING: tuple[FactKind, ...] = ("value", "keys", "length", "type", "same", "memory", "tensor", "object")


def _bind_parameters(target: Callable[..., object], arguments: Arguments) -> dict[str, object]:
    """The inputs of a call under the names of its parameters, where these are known."""
    called = target.forward if isinstance(target, nn.Module) else target
    try:
        bound = inspect.signature(called).bind(*arguments.args, **arguments.kwargs).arguments
    except (TypeError, ValueError):  # a callable without a signature, or one that refuses the call
        bound = {}
    by_number = {f"argument{number}": value for number, value in enumerate(arguments.args)}
    return dict(bound) or by_number | dict(arguments.kwargs)


def _describe_value(carrier: Carrier, value: object) -> StateFact:
    # By text, since NaN is not itself, and as it is now.
    plain = bytes(value) if isinstance(value, bytearray) else value
    return StateFact(carrier, "value", (type(value), repr(value)), _shorten(value), plain)


def _describe_type(carrier: Carrier, value: object) -> StateFact:
    if isinstance(value, numpy.generic | numpy.ndarray):
        return StateFact(carrier, "type", NUMPY, NUMPY, NUMPY)
    kind = type(value)
    told = isinstance(value, _CONTAINERS) or holds_state(value)  # an iterator's class is no matter
    return StateFact(carrier, "type", id(kind), kind.__qualname__, kind.__qualname__ if told else UNTOLD)


def _name_object(value: object) -> object:
    """The name of a class or a function; none of a library's functions, which dynamo may make anew."""
    named = isinstance(value, type | types.BuiltinFunctionType) or _is_user_function(value)
    return getattr(value, "__qualname__", UNTOLD) if named else UNTOLD


def _is_user_function(value: object) -> bool:
    called = value.__func__ if isinstance(value, types.MethodType) else value
    return isinstance(called, types.FunctionType) and is_user_file(called.__code__.co_filename)


def _describe_tensor(carrier: Carrier, value: torch.Tensor) -> StateFact:
    strides = value.stride() if value.layout == torch.strided and not value.is_nested else ()
    form = (type(value), value.dtype, value.requires_grad, str(value.device), value.layout)
    shown = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}{' requires_grad' * value.requires_grad}"
    return StateFact(carrier, "tensor", (tuple(value.shape), strides, form), shown)


def _key(key: object) -> object:
    return (type(key), repr(key)) if isinstance(key, _PLAIN) else id(key)


def _show_key(key: object) -> str:
    """A key as it is written, or the kind of object that it is; of a tensor also its layout."""
    if isinstance(key, torch.Tensor):
        return f"{type(key).__name__} {_describe_tensor('item', key).shown}"
    return repr(key) if isinstance(key, _PLAIN) else _shorten(key)


def _word(value: object) -> str:
    """A plain value, or several in a container, as text; a number that rounds without its digits."""
    if isinstance(value, float | complex):
        return f"a {type(value).__name__}"
    if isinstance(value, tuple | list | set | frozenset) and len(value) <= _MOST_SHOWN:
        return f"{type(value).__name__}({', '.join(map(_word, value))})"
    return repr(value) if isinstance(value, _PLAIN) else f"a {type(value).__name__}"


def _shorten(value: object) -> str:
    items = list(value) if isinstance(value, tuple | list | set | frozenset) and len(value) <= _MOST_SHOWN else [value]
    if all(isinstance(item, _PLAIN) for item in items):
        text = repr(value)
        return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."
    return f"a {type(value).__name__}"


def _is_same(left: StateFact | None, right: StateFact | None) -> bool:
    return left is not None and right is not None and (left.kind, left.value) == (right.kind, right.value)


_ROUNDED = (float, complex)


def list_effects(before: CallState, after: CallState, known: Collection[str]) -> dict[str, object]:
    """The effects of a call by name, from the states around it.

    Which class or function is held somewhere is told by its name. What is ``known`` by the path of an attribute is left
    out.
    """
    effects: dict[str, object] = {}
    for name in after.list_changes(before):
        was, now = before.facts.get(name), after.facts.get(name)
        fact = now or was
        assert fact is not None, "it is in one of the states"
        # What is new in a container stands with its length or its keys.
        new = fact.carrier == "item" and after.tells_presence(name, before)
        if fact.plain is UNTOLD or new or ".".join(re.findall(r"\w+", name)) in known:
            continue
        old, held = (None if each is None else each.plain for each in (was, now))
        if isinstance(old, tuple) and isinstance(held, tuple) and fact.kind == "length":
            effects |= _tell_growth(name, old, held)
        elif isinstance(old, tuple | frozenset) and isinstance(held, tuple | frozenset):
            effects[name] = _compare_keys(old, held)
        else:
            effects[name] = _subtract(old, held)
    return effects


def _tell_growth(name: str, before: tuple[object, ...], after: tuple[object, ...]) -> dict[str, object]:
    """How much longer a container is, and what is there from the first item on that is another.

    Numbers that round are effects of their own, by no place: a list that no run restores grows with each.
    """
    pairs = enumerate(zip(before, after, strict=False))
    left = after[next((n for n, (was, now) in pairs if repr(was) != repr(now)), min(len(before), len(after))) :]
    numbers = {f"{name}, new item {n}": item for n, item in enumerate(left) if isinstance(item, _ROUNDED)}
    told = tuple(f"a {type(item).__name__}" if isinstance(item, _ROUNDED) else item for item in left)
    return {name: (len(after) - len(before), told), **numbers}


def _compare_keys(before: Collection[object], after: Collection[object]) -> tuple[list[object], ...]:
    """The keys that are new, those that are gone, and the others where a dict has them in another order.

    New ones have no order: a program may take them out of a set, whose order is anybody's.
    """
    stay = [key for key in before if key in after], [key for key in after if key in before]
    moved = stay[1] if isinstance(after, tuple) and stay[0] != stay[1] else []
    return sorted(set(after) - set(before), key=str), sorted(set(before) - set(after), key=str), moved


def _subtract(before: object, after: object) -> object:
    """How far a call moves a number, else what is there after it."""
    numbers = [value for value in (before, after) if isinstance(value, int | float) and not isinstance(value, bool)]
    return numbers[1] - numbers[0] if len(numbers) == 2 else after
