"""Sources of skeletons: a rule's patterns, or the operators that its code names, combined."""

from __future__ import annotations

import functools
import operator
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.rule_catalogue import KnownRule, list_known_rules
from fuzzcompile.compiler.sdpa_patterns import FAMILY, PatternVariant, read_variants
from fuzzcompile.fuzz.rules.code_mentions import CodeMentions, find_mentions
from fuzzcompile.fuzz.rules.skeleton import (
    ArgumentHole,
    CallResult,
    CallSkeleton,
    FilledSkeleton,
    RuleCall,
    annotate_holes,
)
from fuzzcompile.model.stages import DECOMPOSITION, FREEZING, LOWERING, PARTITION, PRE_GRAD
from fuzzcompile.programs.edits.pattern_program import Operand
from fuzzcompile.programs.ir.tracing import Untranslatable
from fuzzcompile.run.pool.worker import get_current_device

# A registered pattern as calls with holes.

# Of operators on packed weights, and of those that wait for other processes.
_INTERNAL = ("mkldnn", "onednn", "mkl::", "quantized::", "fbgemm", "c10d", "symm_mem")
# What makes the result of an operator that no program calls: another skeleton's last call in its place.
ReplacementProducer = Callable[[CallSkeleton, object, Sequence[object]], CallResult | None]


class PatternReader:
    """Turns one pattern into calls, with choices from ``rng``: of alternative operators, of how often a part repeats.

    ``producer`` writes what an operator gives that only the compiler's own rules put into graphs.
    """

    def __init__(
        self, rng: random.Random, producer: ReplacementProducer | None = None, skeleton: CallSkeleton | None = None
    ) -> None:
        self.rng, self.producer, self.skeleton = rng, producer, skeleton or CallSkeleton()
        self._named: dict[str, ArgumentHole] = {}
        self._shared: dict[int, object] = {}
        self._several: set[int] = set()
        self._repeated: int | None = None

    def read_pattern(self, pattern: Any) -> CallSkeleton:
        """The calls that a pattern describes.

        Raises:
            Untranslatable: some part of it cannot be spelled.
        """
        outputs = getattr(pattern, "outputs", None)
        for part in [pattern] if outputs is None else [part for part in outputs if part is not None]:
            made = self.make_part(part)
            if outputs is not None and isinstance(made, CallResult) and made.index not in self.skeleton.returns:
                self.skeleton.returns.append(made.index)
        if not self.skeleton.calls:
            raise Untranslatable("the pattern calls nothing")
        return self.skeleton.finish()

    def make_part(self, part: Any) -> object:
        """The result, hole or literal that stands for a part of the pattern."""
        if isinstance(part, (list, tuple)):
            return [self.make_part(inner) for inner in part]
        kind = type(part).__name__
        if kind in ("KeywordArg", "ExclusiveKeywordArg"):
            return self._named.setdefault(part.name, ArgumentHole(part.name))
        if kind in ("Arg", "Ignored"):
            return ArgumentHole()
        if kind == "ListOf":
            return self._read_list(part.pattern)
        if kind == "RepeatedExpr":
            return self._read_list(part.inner_pattern)
        if hasattr(part, "fns"):
            return self._read_call(part)
        if hasattr(type(part), "pattern_eq"):
            raise Untranslatable(f"{kind} is no kind of pattern that can be written as a program")
        return part

    def _read_list(self, inner: Any) -> list[object]:
        """Repeated parts; what has several users within them is one node of a graph, and stands once."""
        made, before = [], set(self._shared)
        for index in range(self.rng.choice((2, 3, 4))):
            self._repeated = index
            kept = before | self._several - {id(inner)}
            self._shared = {key: value for key, value in self._shared.items() if key in kept}
            made.append(self.make_part(inner))
        self._repeated = None
        return made

    def _read_call(self, part: Any) -> object:
        key = id(part)
        if key in self._shared:
            return self._shared[key]
        target = self.rng.choice(_select_callable(part.fns))
        if part.op == "call_module":
            raise Untranslatable("dynamo's graphs call no modules")
        repeated, args, kwargs = self._repeated, [], {}
        if hasattr(part, "args"):  # otherwise any arguments will do, which the operator's schema gives
            args = [self.make_part(argument) for argument in part.args]
            kwargs = {name: self.make_part(value) for name, value in part.kwargs.items()}
        if target is operator.getitem and len(args) > 1 and isinstance(args[1], ArgumentHole) and not args[1].name:
            args[1].first = repeated or 0
        made = None
        if is_internal(target):
            made = None if self.producer is None else self.producer(self.skeleton, target, args)
            if made is None:
                raise Untranslatable(f"{target} is called by the compiler alone")
        made = made or self.skeleton.append(RuleCall(target, tuple(args), kwargs, anything=not hasattr(part, "args")))
        self._shared[key] = made
        if part.has_multiple_users() and target is not operator.getitem:
            self._several.add(key)
        return made


def _select_callable(functions: Sequence[Any]) -> Sequence[Any]:
    """Those of a pattern's alternatives that take tensors and write to none; operators without an overload first."""

    def is_functional(function: Any) -> bool:
        schema = function._schema if isinstance(function, torch._ops.OpOverload) else None
        return schema is None or (not schema.is_mutable and any("Tensor" in str(a.type) for a in schema.arguments))

    packets = [function for function in functions if isinstance(function, torch._ops.OpOverloadPacket)]
    return packets or list(filter(is_functional, functions)) or functions


def is_internal(target: object) -> bool:
    """Return whether an operator takes what only the compiler makes: wrong arguments may crash the process."""
    name = target._schema.name if isinstance(target, torch._ops.OpOverload) else str(target)
    return any(part in name for part in _INTERNAL)


# A function that a rule searches for, as the calls that it makes.

_SPECIAL = {
    f"__{name}__": getattr(operator, name)
    for name in ("add", "sub", "mul", "truediv", "floordiv", "matmul", "pow", "mod", "eq", "ne", "lt", "le", "gt", "ge")
} | {"__getitem__": operator.getitem, "__and__": operator.and_, "__or__": operator.or_}
_REFLECTED = {f"__r{name.strip('_')}__": function for name, function in _SPECIAL.items()}


def record_calls(
    function: Callable[..., object], inputs: Sequence[Any], scalars: Mapping[str, object], *, training: bool
) -> FilledSkeleton:
    """The calls of torch that a function makes with these inputs, of which tensors become operands.

    Raises:
        Exception: whatever the function raises.
    """
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    holes = {id(value): ArgumentHole(f"x{at}", "Tensor") for at, value in enumerate(tensors)}
    mode = _Recording(dict(holes))
    with torch.no_grad(), mode:
        result = function(*inputs, **scalars)
    skeleton = mode.skeleton
    made = [mode.known.get(id(leaf)) for leaf in pytree.tree_leaves(result)]
    skeleton.returns = list(dict.fromkeys(leaf.index for leaf in made if isinstance(leaf, CallResult)))
    skeleton.backward = training
    values = dict[ArgumentHole, object]()
    for value in tensors:
        shape, strides = tuple(value.shape), None if value.is_contiguous() else value.stride()
        dtype = str(value.dtype).removeprefix("torch.")
        values[holes[id(value)]] = Operand("", shape, dtype, strides=strides, trainable=value.requires_grad)
    return FilledSkeleton(skeleton.finish(), values)


class _Recording(TorchFunctionMode):
    """Notes each call whose result is a tensor, or holds one."""

    def __init__(self, known: dict[int, ArgumentHole | CallResult]) -> None:
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
        call = RuleCall(target, tuple(given), dict(kwargs or {}))
        made = self.skeleton.append(call.map_leaves(lambda leaf: self.known.get(id(leaf), leaf)))
        if isinstance(result, torch.Tensor):
            self.known[id(result)] = made
        else:
            for index, tensor in enumerate(tensors):
                self.known[id(tensor)] = self.skeleton.append(RuleCall(operator.getitem, (made, index)))
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


# What stands around the operators that a pass looks for.
_PLAIN = (
    torch.relu, torch.tanh, torch.add, torch.mul, torch.sum, torch.cat, torch.permute, torch.reshape, torch.mm,
    torch.full, torch.ones, torch.zeros, torch.where, torch.clone,
)  # fmt: skip


def draw_skeleton(rule: KnownRule, code: CodeMentions, rng: random.Random) -> CallSkeleton:
    """A skeleton for a rule, drawn with ``rng``.

    Raises:
        Untranslatable: nothing is known that the rule looks for.
    """
    named = [target for target in code.operators if not is_internal(target)]
    if has_pattern(rule):
        entries = [part for part in rule.made_of if hasattr(part, "pattern")]
        skeleton = PatternReader(rng, make_producer(rng)).read_pattern(rng.choice(entries).pattern)
        return _put_behind(named, skeleton, rng) if named and rng.random() < 0.3 else skeleton
    if rule.stage in (DECOMPOSITION, LOWERING):
        skeleton = CallSkeleton()
        _append_call(skeleton, functools.reduce(getattr, rule.name.split("."), torch.ops), rng)
        return skeleton.finish()
    operators = [*named, *(code.methods if rule.stage == PRE_GRAD else ())]
    if not rule.made_of:
        raise Untranslatable("the pass runs rules that are registered apart, or none")
    skeleton = _combine_operators(operators or _PLAIN, rng)
    skeleton.backward = rule.stage == PARTITION
    return skeleton


def has_pattern(rule: KnownRule) -> bool:
    """Return whether a rule is an entry of a pattern matcher."""
    return any(hasattr(part, "pattern") for part in rule.made_of)


def draw_variant(rule: KnownRule, rng: random.Random) -> FilledSkeleton | None:
    """A rule's own search function with its example inputs; None where torch lists none such."""
    if not rule.name.startswith(FAMILY):
        return None
    named = [variant for variant in _list_variants(get_current_device()) if variant.name == rule.name]
    if not named:
        return None
    variant = rng.choice(named)
    dtype, own = rng.choice(variant.dtypes), variant.inputs[0].dtype
    # A number for an input without dimensions, which is a scale.
    inputs: list[Any] = [
        torch.empty_strided(given.shape, given.stride(), dtype=dtype if given.dtype == own else given.dtype)
        .fill_(1)
        .requires_grad_(given.requires_grad)
        if given.dim()
        else 2.0
        for given in variant.inputs
    ]
    try:
        return record_calls(variant.function, inputs, variant.scalars, training=variant.training)
    except Exception as error:  # of any kind: some functions name a dtype themselves, and take no other
        raise Untranslatable(f"its search function does not take {dtype}") from error


@functools.cache
def _list_variants(device: str) -> list[PatternVariant]:
    return read_variants(torch.device(device))


def make_producer(rng: random.Random) -> ReplacementProducer:
    """Writes, in the place of an operator on packed weights, what the compiler packs into it."""

    def produce(skeleton: CallSkeleton, target: object, args: Sequence[object]) -> CallResult | None:
        patterns = _find_packing(get_current_device()).get(str(target), [])
        if not patterns:
            return None
        before = len(skeleton.calls)
        reader = PatternReader(rng, None, skeleton)
        made = reader.make_part(rng.choice(patterns))
        skeleton.frozen = True
        tensors = [hole for call in skeleton.calls[before:] for hole in _list_tensor_holes(call, rng)]
        moving = min(tensors, key=lambda hole: hole.parameter != "mat1", default=None)  # a bias may come first
        for hole in tensors:
            hole.weight = hole is not moving
        fed = [given for given in args if isinstance(given, CallResult)]
        for call in skeleton.calls[before:] if fed else ():
            call.args = tuple(fed[0] if given is moving else given for given in call.args)
        return made if isinstance(made, CallResult) else None

    return produce


@functools.cache
def _find_packing(device: str) -> dict[str, list[object]]:
    """The patterns of freezing that make each operator on packed weights, by its name."""
    patterns: dict[str, list[object]] = {}
    for row in list_known_rules(torch.device(device)):
        for entry in row.made_of if row.stage == FREEZING else ():
            if hasattr(entry, "pattern") and not any(map(is_internal, _iter_targets(entry.pattern))):
                for operator_named in filter(is_internal, find_mentions([entry]).operators):
                    patterns.setdefault(str(operator_named), []).append(entry.pattern)
    return patterns


def _iter_targets(pattern: Any) -> Iterator[object]:
    yield from getattr(pattern, "fns", ())
    for part in (*getattr(pattern, "args", ()), *getattr(pattern, "kwargs", {}).values()):
        yield from _iter_targets(part)


def _list_tensor_holes(call: RuleCall, rng: random.Random) -> list[ArgumentHole]:
    annotate_holes(call, rng)
    return [hole for hole in call.list_holes() if hole.kind in ("Tensor", "Optional[Tensor]")]


def _put_behind(operators: Sequence[object], skeleton: CallSkeleton, rng: random.Random) -> CallSkeleton:
    """A pattern of which one input is made by an operator that the rule's code names."""
    before = CallSkeleton()
    made = _append_call(before, rng.choice(operators), rng)
    shift = len(before.calls)
    holes = [hole for call in skeleton.calls for hole in _list_tensor_holes(call, rng)]
    if not holes:
        return skeleton
    fed = holes[0] if rng.random() < 0.7 else rng.choice(holes)

    def move(leaf: object) -> object:
        if leaf is fed:
            return made
        return CallResult(leaf.index + shift) if isinstance(leaf, CallResult) else leaf

    skeleton.calls = [*before.calls, *(call.map_leaves(move) for call in skeleton.calls)]
    skeleton.returns = [index + shift for index in skeleton.returns]
    return skeleton


def _combine_operators(operators: Sequence[object], rng: random.Random) -> CallSkeleton:
    """One to four calls of operators that a pass names: apart, one behind another, or equal ones side by side."""
    shape = rng.choice((*(_chain_operators, _draw_side_by_side) * 2, _draw_rejoined_parts))
    # Those named first are what a pass looks for more often than those that it makes.
    early = operators[: max(2, len(operators) // 2)]
    pools = rng.choices((operators[:1], early, operators), (2, 2, 2), k=3)
    drawn = [rng.choice(pool) for pool in pools]
    skeleton = CallSkeleton()
    shape(skeleton, [target if rng.random() < 0.8 else rng.choice(_PLAIN) for target in drawn], rng)
    return skeleton.finish()


def _chain_operators(skeleton: CallSkeleton, operators: Sequence[object], rng: random.Random) -> None:
    for target in operators[: rng.choice((1, 2, 3))]:
        _append_call(skeleton, target, rng, CallResult(len(skeleton.calls) - 1) if skeleton.calls else None)


def _draw_side_by_side(skeleton: CallSkeleton, operators: Sequence[object], rng: random.Random) -> None:
    """Calls of one operator, over inputs of one shape or over one input, and perhaps joined."""
    count = rng.choice((2, 3, 5))
    first = _append_call(skeleton, operators[0], rng)
    shared = rng.random() < 0.4
    for _ in range(count - 1):
        skeleton.append(_copy_call(skeleton.calls[first.index], shared))
    if rng.random() < 0.5:
        results = [CallResult(index) for index in range(count)]
        skeleton.append(RuleCall(rng.choice((torch.cat, torch.stack)), (results,), {"dim": rng.choice((0, 1, -1))}))


def _draw_rejoined_parts(skeleton: CallSkeleton, operators: Sequence[object], rng: random.Random) -> None:
    """Parts of a tensor, each through an operator, joined again."""
    dim = rng.choice((0, 1, -1))
    whole = skeleton.append(RuleCall(torch.chunk, (ArgumentHole("input", "Tensor"), 2), {"dim": dim}))
    parts = [skeleton.append(RuleCall(operator.getitem, (whole, index))) for index in range(2)]
    made = [_append_call(skeleton, operators[0], rng, part) for part in parts]
    skeleton.append(RuleCall(rng.choice((torch.cat, torch.stack)), (made,), {"dim": dim}))


def _append_call(
    skeleton: CallSkeleton, target: object, rng: random.Random, fed: CallResult | None = None
) -> CallResult:
    """Append a call whose first tensor is ``fed``, and take the first of several results."""
    call = RuleCall(target, anything=True)
    annotate_holes(call, rng)
    holes = [at for at, hole in enumerate(call.args) if isinstance(hole, ArgumentHole) and "Tensor" in hole.kind]
    if fed is not None and holes:
        hole, args = call.args[holes[0]], list(call.args)
        assert isinstance(hole, ArgumentHole)
        args[holes[0]] = [fed, ArgumentHole(hole.name, "Tensor")] if hole.kind.startswith("List") else fed
        call.args = tuple(args)
    made = skeleton.append(call)
    return skeleton.append(RuleCall(operator.getitem, (made, 0))) if _returns_several(target) else made


def _copy_call(call: RuleCall, shared: bool) -> RuleCall:
    """The call over further operands of its own; over the first one's own input where that is ``shared``."""
    copies: dict[ArgumentHole, ArgumentHole] = {}

    def copy(leaf: object) -> object:
        if not isinstance(leaf, ArgumentHole) or "Tensor" not in leaf.kind:
            return leaf
        if shared and not copies:
            copies[leaf] = leaf
        return copies.setdefault(leaf, ArgumentHole(leaf.name, leaf.kind, like=leaf))

    return call.map_leaves(copy)


def _returns_several(target: object) -> bool:
    if isinstance(target, torch._ops.OpOverload):
        returns = target._schema.returns
        return len(returns) > 1 or any(str(value.type).startswith("List") for value in returns)
    return getattr(target, "__name__", "") in ("split", "chunk", "unbind", "tensor_split", "split_with_sizes")
