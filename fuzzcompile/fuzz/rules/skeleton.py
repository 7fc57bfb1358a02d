"""Skeletons: a rule's pattern as calls with holes, and values for the holes with which the calls run."""

from __future__ import annotations

import inspect
import itertools
import math
import operator
import random
import re
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from fuzzcompile.programs.edits.pattern_program import Operand
from fuzzcompile.run.tensors import is_inexact


@dataclass(eq=False)
class ArgumentHole:
    """An argument that the rule leaves open; the same hole in several places stands for one value.

    ``kind`` is what a schema calls its type (``Tensor``, ``int[]``; empty if nothing says), ``first`` a value to try
    before all others, ``like`` the hole whose value has the same form, ``parameter`` the schema's own name where the
    rule has another. A ``weight`` has to be a constant of the graph, as freezing makes it of parameters.
    """

    name: str = ""
    kind: str = ""
    first: object = None
    like: ArgumentHole | None = None
    weight: bool = False
    parameter: str = ""


@dataclass(eq=False)
class RuleCall:
    """One call: of a function, or with a string as its target of a method of the first argument.

    Its arguments are literals, holes, and earlier calls in the place of their results. With ``anything`` the rule
    leaves all of them open, and the operator's own schema says what it takes.
    """

    target: Any
    args: tuple[object, ...] = ()
    kwargs: dict[str, object] = field(default_factory=dict)
    anything: bool = False

    def list_leaves(self) -> list[object]:
        """The arguments, lists and dictionaries opened."""
        return pytree.tree_leaves((self.args, self.kwargs))

    def list_holes(self) -> list[ArgumentHole]:
        """The holes among the arguments, each once."""
        return list(dict.fromkeys(leaf for leaf in self.list_leaves() if isinstance(leaf, ArgumentHole)))

    def replace_leaves(self, change: Callable[[object], object]) -> None:
        """Take other arguments."""
        self.args, self.kwargs = pytree.tree_map(change, (self.args, self.kwargs))


@dataclass
class CallSkeleton:
    """Calls in order, and the values of holes that are filled: an operand for a tensor, else the value itself.

    ``returns`` are the calls whose results nothing else reads, or that have a further user. ``frozen`` asks for weights
    that are constants, ``backward`` for gradients.
    """

    calls: list[RuleCall] = field(default_factory=list)
    returns: list[RuleCall] = field(default_factory=list)
    backward: bool = False
    frozen: bool = False
    values: dict[ArgumentHole, object] = field(default_factory=dict)

    def append(self, target: object, /, *args: object, **kwargs: object) -> RuleCall:
        """Append a call."""
        self.calls.append(RuleCall(target, args, kwargs))
        return self.calls[-1]

    @property
    def draws(self) -> bool:
        """Return whether some call draws random numbers."""
        parts = ("dropout", "rand", "bernoulli", "normal_", "uniform")
        targets = [call.target for call in self.calls]
        names = [target if isinstance(target, str) else getattr(target, "__name__", "") for target in targets]
        seeded = (torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()) for target in targets)
        return any(seeded) or any(part in name for name in names for part in parts)

    @property
    def names(self) -> dict[RuleCall, str]:
        """What the statements of a program call the results."""
        return {call: f"t{index}" for index, call in enumerate(self.calls)}

    def finish(self) -> CallSkeleton:
        """Return what is read by no call, if nothing is returned yet."""
        read = {leaf for call in self.calls for leaf in call.list_leaves() if isinstance(leaf, RuleCall)}
        self.returns = self.returns or [call for call in self.calls if call not in read]
        return self

    def map_operands(self, change: Callable[[Operand], Operand]) -> CallSkeleton:
        """The same calls on other operands."""
        return replace(self, values=pytree.tree_map_only(Operand, change, self.values))

    def name_operands(self) -> CallSkeleton:
        """The same with names for the operands, in the order in which they are used."""
        names = (f"x{number}" for number in itertools.count())
        return self.map_operands(lambda operand: replace(operand, name=next(names)))

    def list_operands(self) -> list[Operand]:
        """The operands that calls take, in the order of their names, each once."""
        values = [self.values[hole] for call in self.calls for hole in call.list_holes()]
        found = {leaf.name: leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Operand)}
        return sorted(found.values(), key=lambda operand: int(operand.name[1:]))


_SPECIAL = {
    f"__{name}__": getattr(operator, name)
    for name in ("add", "sub", "mul", "truediv", "floordiv", "matmul", "pow", "mod", "eq", "ne", "lt", "le", "gt", "ge")
} | {"__getitem__": operator.getitem, "__and__": operator.and_, "__or__": operator.or_}
_REFLECTED = {f"__r{name.strip('_')}__": function for name, function in _SPECIAL.items()}


def record_calls(
    function: Callable[..., object], inputs: Sequence[Any], scalars: Mapping[str, object], *, training: bool
) -> CallSkeleton:
    """The calls of torch that a function makes with these inputs, of which tensors become operands."""
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    holes = {id(value): ArgumentHole(f"x{at}", "Tensor") for at, value in enumerate(tensors)}
    mode = _Recording(dict(holes))
    with torch.no_grad(), mode:
        result = function(*inputs, **scalars)
    skeleton = mode.skeleton
    made = [mode.known.get(id(leaf)) for leaf in pytree.tree_leaves(result)]
    skeleton.returns = list(dict.fromkeys(leaf for leaf in made if isinstance(leaf, RuleCall)))
    skeleton.backward = training
    for value in tensors:
        shape, strides = tuple(value.shape), None if value.is_contiguous() else value.stride()
        dtype = str(value.dtype).removeprefix("torch.")
        skeleton.values[holes[id(value)]] = Operand("", shape, dtype, strides=strides, trainable=value.requires_grad)
    return skeleton.finish()


class _Recording(TorchFunctionMode):
    """Notes each call whose result is a tensor, or holds one."""

    def __init__(self, known: dict[int, ArgumentHole | RuleCall]) -> None:
        super().__init__()
        self.known, self.skeleton = known, CallSkeleton()
        self._alive: list[object] = []  # an id means nothing once its object is gone

    def __torch_function__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        self._alive.append(result)
        tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if not tensors or (isinstance(result, torch.Tensor) and id(result) in self.known):
            return result
        target, given = _find_call_target(func, args)
        made = self.skeleton.append(target, *given, **(kwargs or {}))
        made.replace_leaves(lambda leaf: self.known.get(id(leaf), leaf))
        if isinstance(result, torch.Tensor):
            self.known[id(result)] = made
        else:
            for index, tensor in enumerate(tensors):
                self.known[id(tensor)] = self.skeleton.append(operator.getitem, made, index)
        return result


def _find_call_target(function: Any, args: Sequence[Any]) -> tuple[object, Sequence[Any]]:
    name, kind = getattr(function, "__name__", ""), type(function).__name__
    if name == "__get__":  # a property such as ``T``
        return getattr, (args[0], function.__self__.__name__)
    if name in _SPECIAL:
        return _SPECIAL[name], args
    if name in _REFLECTED:
        return _REFLECTED[name], (args[1], args[0])
    is_method = kind in ("method_descriptor", "wrapper_descriptor")
    return name if is_method or "Tensor." in getattr(function, "__qualname__", "") else function, args


# What a call takes: names and types of its arguments, from the operator's schema or the function's signature.


@dataclass(frozen=True)
class _CallParameter:
    """One parameter: its type as a schema spells it (empty if unknown), and whether it may be left out."""

    name: str
    kind: str
    optional: bool
    keyword: bool = False


def _list_parameters(target: object, given: int | None, rng: random.Random) -> list[_CallParameter]:
    """The parameters of an operator, function or method, in order; those of any overload that takes ``given`` of them.

    A function of torch without a signature of its own takes what ATen's operator of that name takes.
    """
    overloads = [
        [
            _CallParameter(own.name, str(getattr(own, "real_type", own.type)), own.has_default_value(), own.kwarg_only)
            for own in overload._schema.arguments
        ]
        for overload in _list_overloads(target)
    ]
    if overloads:
        taking = []
        for own in overloads:
            usual = not any(p.name in ("out", "generator") or "Dimname" in p.kind for p in own)
            if usual and (given is None or sum(not p.optional for p in own) <= given <= len(own)):
                taking.append(own)
        return rng.choice(taking or overloads)
    try:
        signature = inspect.signature(target) if callable(target) else inspect.Signature()
    except (TypeError, ValueError):
        return []
    return [
        _CallParameter(name, _read_annotation(own), own.default is not own.empty, own.kind is own.KEYWORD_ONLY)
        for name, own in signature.parameters.items()
        if own.kind not in (own.VAR_POSITIONAL, own.VAR_KEYWORD)
    ]


def annotate_holes(call: RuleCall, rng: random.Random) -> None:
    """Give the holes of a call the names and types of the parameters that they stand for; add those that must be."""
    parameters = _list_parameters(call.target, None if call.anything else len(call.args), rng)
    if call.anything:
        # Holes for what it needs and, in half of the calls, for some of what it may leave out.
        positional = [parameter for parameter in parameters if not parameter.keyword]
        needed = sum(not parameter.optional for parameter in positional)
        given = positional[: needed if rng.random() < 0.5 else rng.randint(needed, len(positional))]
        call.args = tuple(ArgumentHole(p.name, p.kind) for p in given)
        call.kwargs = {p.name: ArgumentHole(p.name, p.kind) for p in parameters if p.keyword and not p.optional}
        call.anything = False
        return
    # The arguments of (de)quantising operators belong together.
    name = call.target._schema.name if isinstance(call.target, torch._ops.OpOverload) else ""
    prefix = next((f"{what}." for what in ("dequantize", "quantize") if f"::{what}_" in name), "")
    by_name = {parameter.name: parameter for parameter in parameters}
    pairs = [*zip(call.args, parameters, strict=False)]
    pairs += [(value, by_name[name]) for name, value in call.kwargs.items() if name in by_name]
    for value, parameter in pairs:
        element = parameter.kind.removeprefix("Optional[").removeprefix("List[").rstrip("]")
        for inner in pytree.tree_leaves(value):
            if isinstance(inner, ArgumentHole):
                inner.kind = inner.kind or (parameter.kind if inner is value else element)
                inner.parameter = inner.parameter or prefix + parameter.name
                inner.name = parameter.name if inner.name in ("", "arg") else inner.name


def _read_annotation(parameter: inspect.Parameter) -> str:
    annotation, default = str(parameter.annotation), parameter.default
    if "Tensor" in annotation:
        return "Optional[Tensor]" if "None" in annotation or "Optional" in annotation else "Tensor"
    for kind in ("bool", "float", "int", "str"):
        if kind in annotation:
            return kind
    return type(default).__name__ if isinstance(default, (bool, int, float, str)) else ""


def _list_overloads(target: object) -> list[torch._ops.OpOverload]:
    if isinstance(target, torch._ops.OpOverload):
        return [target]
    packet: Any = target
    if not isinstance(target, torch._ops.OpOverloadPacket):
        name = target if isinstance(target, str) else getattr(target, "__name__", "")
        module = "" if isinstance(target, str) else str(getattr(target, "__module__", "") or "")
        if not name or module.startswith(("torch.nn", "_operator")):
            return []
        packet = getattr(torch.ops.aten, name, None)
    overloads = [getattr(packet, name) for name in getattr(packet, "_overload_names", ())]
    return [overload for overload in overloads if packet is target or "out" not in str(overload)]


# Values to try for the arguments that a rule leaves open.

# The sizes that the shapes of one attempt are made of: distinct ones first, which tell dimensions apart; with one size
# alone almost every operator finds its operands to agree.
PALETTES: tuple[tuple[int, ...], ...] = ((4, 8), (4, 8), (2, 4, 8), (8,), (3, 4, 5), (16, 32), (1, 4, 8), (1, 8))
_RANKS = (0, 1, 1, 2, 2, 2, 2, 2, 3, 3, 4, 4)
# What arguments of these names usually are in ATen's schemas: the plainest values, for one and for two dimensions.
_NAMED_VALUES: dict[str, tuple[object, ...]] = {
    "stride": ([1, 1], [1], [2, 2]),
    "padding": ([0, 0], [0], [1, 1], [1]),
    "dilation": ([1, 1], [1]),
    "output_padding": ([0, 0], [0]),
    "kernel_size": ([2, 2], [2], [3, 3]),
    "output_size": ([2, 2], [2], [4, 4]),
    "normalized_shape": ([8], [4]),
    "groups": (1, 2),
    "eps": (1e-5,),
    "beta": (1, 1, 2),
    "alpha": (1, 1, 2),
    "reduction": (1, 0, 2),
    "transposed": (False,),
    "quant_min": (0, -128),
    "quant_max": (255, 127),
    "qmin": (0, -128),
    "qmax": (255, 127),
    "scale": (0.1, 1.0, 2.0),
    "zp": (0, 10),
    "zero_point": (0, 10),
    "p": (0.5, 2.0),
    "negative_slope": (0.01,),
    "min_value": (0.0, -1.0, -0.5),
    "max_value": (6.0, 1.0, 0.5),
    "correction": (1, 0),
    "equation": ("ij,jk->ik", "bij,bjk->bik", "bij,bijk->bik", "ij,ijk->ik"),
    "approximate": ("none", "tanh"),
    "pin_memory": (False, None),
}
# Kinds of an argument of which the name is all that is known, by what is in that.
_KINDS_BY_NAME = {
    "dim": ("int",),
    "section|shape|size|perm": ("List[int]", "List[int]", "int"),
    "dtype|^to_": ("ScalarType",),
    "scale|value": ("Tensor", "number"),
    "": (*("Tensor",) * 8, "int", "List[int]", "number", "ScalarType"),
}
_INDICES = ("index", "indices", "selector", "target", "batch1_idx", "idx", "offsets")
_MASKS = ("mask", "condition", "cond")
_INTEGERS = (0, 1, 2, -1, 4, 8, 3)
_SCALARS = (2, 0.5, 1.0, 2.0, 0.125, -1.0, 0, 1)


class Candidates:
    """Draws values for holes; tensors are drawn as operands.

    ``dtype`` is that of floating tensors, ``constants`` are the numbers, strings and dtypes in the code of the rule.
    """

    def __init__(self, rng: random.Random, dtype: str, constants: Sequence[object] = ()) -> None:
        self.rng, self.dtype = rng, dtype
        self.palette = rng.choice(PALETTES)
        self.quantised = rng.choice((("uint8", 0, 255), ("int8", -128, 127)))
        self.numbers = [c for c in constants if type(c) in (int, float)]
        self.strings = [c for c in constants if isinstance(c, str)]
        self.dtypes = [c for c in constants if isinstance(c, torch.dtype)]
        self.shapes: list[tuple[int, ...]] = []
        self.dim: int | None = None

    def draw_value(self, hole: ArgumentHole, operands: Sequence[torch.Tensor]) -> object:
        """A value for a hole of a call whose tensors so far are ``operands``."""
        if hole.first is not None and self.rng.random() < 0.9:
            return hole.first
        kind = hole.kind
        if kind.startswith("Optional["):
            kind = kind.removeprefix("Optional[").removesuffix("]")
            if self.rng.random() < 0.4:
                return None
        if hole.parameter.startswith(("quantize.", "dequantize.")):
            return self._draw_quantisation(*hole.parameter.split("."))
        name = hole.parameter or hole.name
        alike = (key for key in _NAMED_VALUES if name == key or (len(key) > 2 and name.endswith(f"_{key}")))
        if (key := next(alike, None)) is not None and self.rng.random() < 0.85 and "Tensor" not in kind:
            return self.rng.choice(_NAMED_VALUES[key])
        if not kind:
            kind = self.rng.choice(
                next(kinds for words, kinds in _KINDS_BY_NAME.items() if re.search(words, hole.name))
            )
        return self._draw_kind(kind, hole.name, operands)

    def _draw_kind(self, kind: str, name: str, operands: Sequence[torch.Tensor]) -> object:
        rng = self.rng
        if kind.startswith("List["):
            inner = kind.removeprefix("List[").removesuffix("]").removeprefix("Optional[")
            if inner in ("int", "SymInt"):
                return self._draw_sizes(name, operands)
            return [self._draw_kind(inner, name, operands) for _ in range(rng.choice((1, 2, 2, 3)))]
        match kind.rstrip("]"):
            case "Tensor" if name == "other" and operands and rng.random() < 0.2:
                return rng.choice(_SCALARS)  # of two operands, the second may be a number
            case "Tensor":
                return self._draw_operand(name, operands)
            case "int" | "SymInt":
                rank = operands[0].dim() if operands else 0
                if "dim" in name and rank:
                    if self.dim is None or rng.random() < 0.4:
                        self.dim = rng.randrange(-rank, rank)
                    return self.dim  # calls along one dimension are what most rules look for
                return rng.choice(tuple(operands[0].shape) if rank and rng.random() < 0.3 else _INTEGERS)
            case "float" | "number":
                return rng.choice((self.numbers if rng.random() < 0.3 else ()) or _SCALARS)
            case "bool":
                return rng.random() < 0.5
            case "str":
                return rng.choice(self.strings or ["none"])
            case "ScalarType":
                if operands and rng.random() < 0.3:
                    return operands[0].dtype
                return rng.choice(self.dtypes or [torch.float32, torch.bfloat16, torch.float16, torch.int64])
            case single:
                only = {"Device": torch.device("cpu"), "MemoryFormat": torch.contiguous_format, "Layout": torch.strided}
                return only.get(single)

    def _draw_operand(self, name: str, beside: Sequence[torch.Tensor] = ()) -> Operand:
        """An operand, of a shape that others have or of a new one, and often of the dtype of what stands ``beside``."""
        rng = self.rng
        if self.shapes and rng.random() < 0.4:
            shape = rng.choice(self.shapes)
        else:
            shape = tuple(rng.choice(self.palette) for _ in range(rng.choice(_RANKS)))
        self.shapes.append(shape)
        dtype = self.dtype if rng.random() < 0.9 else rng.choice(("int64", "bool", "float32", "int8"))
        if any(part in name for part in _INDICES) and rng.random() < 0.9:
            dtype = "int64"
        elif any(part in name for part in _MASKS) and rng.random() < 0.9:
            dtype = "bool"
        elif beside and rng.random() < 0.5:
            dtype = str(beside[0].dtype)
        elif self.dtypes and rng.random() < 0.3:
            dtype = str(rng.choice(self.dtypes))
        return Operand("", shape, dtype.removeprefix("torch."))

    def _draw_quantisation(self, operator: str, parameter: str) -> object:
        dtype, least, most = self.quantised
        if parameter == "input":
            operand = self._draw_operand("")
            return replace(operand, dtype=dtype if operator == "dequantize" else "float32", high=100)
        if parameter in ("scale", "scales"):
            return 0.1
        own = {"quant_min": least, "quant_max": most, "dtype": getattr(torch, dtype), "zero_point": 10}
        return own.get(parameter)

    def _draw_sizes(self, name: str, operands: Sequence[torch.Tensor]) -> list[int]:
        """Whole numbers: dimensions, a permutation, parts of a size, or another shape of the first operand."""
        rng, shape = self.rng, list(operands[0].shape) if operands else []
        if not shape:
            return [rng.choice(self.palette) for _ in range(rng.choice((1, 2, 2, 3)))]
        if "perm" in name or name == "dims":
            return rng.sample(range(len(shape)), len(shape))
        if "dim" in name:
            return rng.sample(range(-len(shape), 0), rng.choice((1, min(2, len(shape)))))
        if "section" in name or "split" in name:
            parts = [given[self.dim or 0] for given in self.shapes if -len(given) <= (self.dim or 0) < len(given)]
            if parts and rng.random() < 0.3:
                return parts
            size = rng.choice(shape)
            count = rng.choice([n for n in (2, 3, 4, size) if 0 < n <= max(size, 2)])
            if size % count == 0 and rng.random() < 0.7:
                return [size // count] * count
            return [1, size - 1] if count == 2 else [*[1] * (count - 1), max(size - count + 1, 0)]
        # A shape with as many elements, or an expansion.
        joined = [[*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]] for at in range(len(shape) - 1)]
        cut = [[*shape[:at], 2, size // 2, *shape[at + 1 :]] for at, size in enumerate(shape) if size % 2 == 0]
        return rng.choice([shape, *joined, *cut, [math.prod(shape)], [-1, shape[-1]], [1, *shape], [*shape, 1]])


# Values for the holes of a skeleton, found by running it eagerly on tiny tensors.

# Values that are tried for one call before an earlier one is given others, and calls that one filling may try.
_WIDTH, _MOST_CALLS = 40, 800
_SECONDS = 1.5
# Results of more elements than this are no tiny program's.
_MOST_ELEMENTS = 1 << 16


def fill_skeleton(
    skeleton: CallSkeleton, rng: random.Random, dtype: str, constants: Sequence[object] = ()
) -> CallSkeleton | None:
    """The skeleton with values with which all calls run in eager mode; None if none were found."""
    for call in skeleton.calls:
        annotate_holes(call, rng)
    return _FillSearch(skeleton, Candidates(rng, dtype, constants)).run()


def recast_operands(filled: CallSkeleton, dtype: str) -> CallSkeleton | None:
    """The same with all floating operands of another dtype; None where the calls do not take it."""
    cast = filled.map_operands(lambda operand: replace(operand, dtype=dtype) if operand.floating else operand)
    return _FillSearch(cast, Candidates(random.Random(0), dtype)).run()


class _FillSearch:
    def __init__(self, skeleton: CallSkeleton, candidates: Candidates) -> None:
        self.skeleton, self.candidates, self.values = skeleton, candidates, dict(skeleton.values)
        # What holes and calls stand for, as tensors.
        self.made: dict[object, object] = {hole: _make_tensors(value) for hole, value in self.values.items()}
        self.left, self.until = _MOST_CALLS, time.monotonic() + _SECONDS

    def run(self) -> CallSkeleton | None:
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            return replace(self.skeleton, values=self.values) if self._fill_from(0) else None

    def _fill_from(self, index: int) -> bool:
        if index == len(self.skeleton.calls):
            return True
        call = self.skeleton.calls[index]
        open_holes = [hole for hole in call.list_holes() if hole not in self.values]
        for _ in range(_WIDTH if open_holes else 1):
            if self.left <= 0 or time.monotonic() > self.until:
                return False
            self.left -= 1
            known = _list_tensors(list(map(self._resolve, call.list_leaves())))
            for hole in open_holes:
                value = self.candidates.draw_value(hole, known) if hole.like is None else self.values.get(hole.like)
                self.values[hole], self.made[hole] = value, _make_tensors(value)
                known += _list_tensors(self.made[hole])
            if self._run_call(call) and self._fill_from(index + 1):
                return True
            for hole in open_holes:
                del self.values[hole], self.made[hole]
        return False

    def _run_call(self, call: RuleCall) -> bool:
        args, kwargs = pytree.tree_map(self._resolve, (call.args, call.kwargs))
        try:
            if isinstance(call.target, torch._ops.OpOverload) and "::_" in call.target._schema.name:
                # Meant for torch's own use: its kernel may crash on wrong arguments, which its meta function checks.
                _call_target(call.target, *pytree.tree_map_only(torch.Tensor, lambda x: x.to("meta"), (args, kwargs)))
            result = _call_target(call.target, args, kwargs)
        except Exception:  # of any kind: these are not the values that the operator takes
            return False
        self.made[call] = result
        tensors = _list_tensors(result)
        return bool(tensors) and all(tensor.numel() <= _MOST_ELEMENTS for tensor in tensors)

    def _resolve(self, leaf: object) -> object:
        return self.made.get(leaf) if isinstance(leaf, (ArgumentHole, RuleCall)) else leaf


def _call_target(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> object:
    if isinstance(target, str):
        return getattr(args[0], target)(*args[1:], **kwargs)
    return target(*args, **kwargs)


def _list_tensors(tree: object) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _make_tensors(value: object) -> object:
    def make(operand: Operand) -> torch.Tensor:
        dtype = getattr(torch, operand.dtype)
        if operand.dtype == "bool":
            return torch.rand(operand.shape) > 0.5
        if is_inexact(dtype):
            return torch.randn(operand.shape).to(dtype)
        return torch.randint(0, operand.high, operand.shape, dtype=dtype)

    return pytree.tree_map_only(Operand, make, value)
