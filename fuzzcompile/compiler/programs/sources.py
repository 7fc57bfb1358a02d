"""Where skeletons come from: a rule's patterns, or the operators that its code names, combined."""

from __future__ import annotations

import functools
import operator
import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from fuzzcompile.compiler.catalogue import Known, known_to
from fuzzcompile.compiler.programs.code import Named, named_in
from fuzzcompile.compiler.programs.expressions import Producer, Reader, Unwritable, is_internal
from fuzzcompile.compiler.programs.filling import Filled
from fuzzcompile.compiler.programs.parameters import annotate
from fuzzcompile.compiler.programs.recording import recorded
from fuzzcompile.compiler.programs.skeleton import Call, Hole, Made, Skeleton
from fuzzcompile.compiler.sdpa_patterns import FAMILY, Variant, variants
from fuzzcompile.execution.worker import current_device
from fuzzcompile.stage_names import DECOMPOSITION, FREEZING, LOWERING, PARTITION, PRE_GRAD

# What stands around the operators that a pass looks for.
_PLAIN = (
    torch.relu, torch.tanh, torch.add, torch.mul, torch.sum, torch.cat, torch.permute, torch.reshape, torch.mm,
    torch.full, torch.ones, torch.zeros, torch.where, torch.clone,
)  # fmt: skip


def skeleton_of(rule: Known, code: Named, rng: random.Random) -> Skeleton:
    """A skeleton for a rule, drawn with ``rng``.

    Raises:
        Unwritable: nothing is known that the rule looks for.
    """
    named = [target for target in code.operators if not is_internal(target)]
    if has_pattern(rule):
        entries = [part for part in rule.made_of if hasattr(part, "pattern")]
        skeleton = Reader(rng, producer(rng)).read(rng.choice(entries).pattern)
        return _behind(named, skeleton, rng) if named and rng.random() < 0.3 else skeleton
    if rule.stage in (DECOMPOSITION, LOWERING):
        return _alone(rule.name, rng)
    operators = [*named, *(code.methods if rule.stage == PRE_GRAD else ())]
    if not rule.made_of:
        raise Unwritable("the pass runs rules that are registered apart, or none")
    skeleton = _combined(operators or _PLAIN, rng)
    skeleton.backward = rule.stage == PARTITION
    return skeleton


def has_pattern(rule: Known) -> bool:
    """Whether a rule is an entry of a pattern matcher."""
    return any(hasattr(part, "pattern") for part in rule.made_of)


def variant_of(rule: Known, rng: random.Random) -> Filled | None:
    """A rule's own search function with its example inputs; None where torch lists none such."""
    if not rule.name.startswith(FAMILY):
        return None
    named = [variant for variant in _variants(current_device()) if variant.name == rule.name]
    if not named:
        return None
    variant = rng.choice(named)
    dtype, own = rng.choice(variant.dtypes), variant.inputs[0].dtype
    inputs = [_example(given, dtype if given.dtype == own else given.dtype) for given in variant.inputs]
    return recorded(variant.function, inputs, variant.scalars, training=variant.training)


def _example(given: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | float:
    """A tensor like an example; a number for one without dimensions, which is a scale."""
    if not given.dim():
        return 2.0
    made = torch.empty_strided(given.shape, given.stride(), dtype=dtype)
    with torch.no_grad():
        made.copy_(torch.ones(given.shape))
    return made.requires_grad_(given.requires_grad)


@functools.cache
def _variants(device: str) -> list[Variant]:
    return variants(torch.device(device))


def producer(rng: random.Random) -> Producer:
    """Writes, in the place of an operator on packed weights, what the compiler packs into it."""

    def produce(skeleton: Skeleton, target: object, args: Sequence[object]) -> Made | None:
        patterns = _packing(current_device()).get(str(target), [])
        if not patterns:
            return None
        before = len(skeleton.calls)
        reader = Reader(rng, None, skeleton)
        made = reader.made(rng.choice(patterns))
        skeleton.frozen = True
        tensors = [hole for call in skeleton.calls[before:] for hole in _tensors_of(call, rng)]
        moving = min(tensors, key=lambda hole: hole.parameter != "mat1", default=None)  # a bias may come first
        for hole in tensors:
            hole.weight = hole is not moving
        fed = [given for given in args if isinstance(given, Made)]
        for call in skeleton.calls[before:] if fed else ():
            call.args = tuple(fed[0] if given is moving else given for given in call.args)
        return made if isinstance(made, Made) else None

    return produce


@functools.cache
def _packing(device: str) -> dict[str, list[object]]:
    """The patterns of freezing that make each operator on packed weights, by its name."""
    patterns: dict[str, list[object]] = {}
    for row in known_to(torch.device(device)):
        for entry in row.made_of if row.stage == FREEZING else ():
            if hasattr(entry, "pattern") and not any(map(is_internal, _targets(entry.pattern))):
                for operator_named in filter(is_internal, named_in([entry]).operators):
                    patterns.setdefault(str(operator_named), []).append(entry.pattern)
    return patterns


def _targets(pattern: Any) -> Iterator[object]:
    yield from getattr(pattern, "fns", ())
    for part in (*getattr(pattern, "args", ()), *getattr(pattern, "kwargs", {}).values()):
        yield from _targets(part)


def _tensors_of(call: Call, rng: random.Random) -> list[Hole]:
    annotate(call, rng)
    return [hole for hole in call.holes() if hole.kind in ("Tensor", "Optional[Tensor]")]


def _behind(operators: Sequence[object], skeleton: Skeleton, rng: random.Random) -> Skeleton:
    """A pattern of which one input is made by an operator that the rule's code names."""
    before = Skeleton()
    made = _append(before, rng.choice(operators), rng, ())
    shift = len(before.calls)
    for call in skeleton.calls:
        annotate(call, rng)
    holes = [hole for call in skeleton.calls for hole in call.holes() if hole.kind in ("Tensor", "Optional[Tensor]")]
    if not holes:
        return skeleton
    fed = holes[0] if rng.random() < 0.7 else rng.choice(holes)

    def moved(value: object) -> object:
        if isinstance(value, (list, tuple)):
            return type(value)(moved(inner) for inner in value)
        if value is fed:
            return made
        return Made(value.index + shift) if isinstance(value, Made) else value

    for call in skeleton.calls:
        args = moved(call.args)
        call.args = args if isinstance(args, tuple) else ()
        call.kwargs = {name: moved(value) for name, value in call.kwargs.items()}
    skeleton.calls[:0] = before.calls
    skeleton.returns = [index + shift for index in skeleton.returns]
    return skeleton


def _alone(name: str, rng: random.Random) -> Skeleton:
    """One call of the operator that a graph spells so (``aten.mm.default``)."""
    target: object = torch.ops
    for part in name.split("."):
        target = getattr(target, part)
    skeleton = Skeleton()
    _append(skeleton, target, rng, ())
    return skeleton.finish()


def _combined(operators: Sequence[object], rng: random.Random) -> Skeleton:
    """One to four calls of operators that a pass names: apart, one behind another, or equal ones side by side."""
    shape = rng.choice((_chain, _chain, _side_by_side, _side_by_side, _parts_rejoined))
    # Those named first are what a pass looks for more often than those that it makes.
    early = operators[: max(2, len(operators) // 2)]
    pools = rng.choices((operators[:1], early, operators), (2, 2, 2), k=3)
    drawn = [rng.choice(pool) for pool in pools]
    return shape([target if rng.random() < 0.8 else rng.choice(_PLAIN) for target in drawn], rng).finish()


def _chain(operators: Sequence[object], rng: random.Random) -> Skeleton:
    skeleton = Skeleton()
    for target in operators[: rng.choice((1, 2, 3))]:
        _append(skeleton, target, rng, skeleton_results(skeleton))
    return skeleton


def _side_by_side(operators: Sequence[object], rng: random.Random) -> Skeleton:
    """Calls of one operator, over inputs of one shape or over one input, and perhaps joined."""
    skeleton, count = Skeleton(), rng.choice((2, 3, 5))
    first = _append(skeleton, operators[0], rng, ())
    shared = rng.random() < 0.4
    template = skeleton.calls[first.index]
    for _ in range(count - 1):
        copies: dict[Hole, Hole] = {}
        skeleton.add(_copied(template, copies, shared))
    if rng.random() < 0.5:
        results = [Made(index) for index in range(count)]
        skeleton.add(Call(rng.choice((torch.cat, torch.stack)), (results,), {"dim": rng.choice((0, 1, -1))}))
    return skeleton


def _parts_rejoined(operators: Sequence[object], rng: random.Random) -> Skeleton:
    """Parts of a tensor, each through an operator, joined again."""
    skeleton = Skeleton()
    dim = rng.choice((0, 1, -1))
    whole = skeleton.add(Call(torch.chunk, (Hole("input", "Tensor"), 2), {"dim": dim}))
    made = []
    for index in range(2):
        part = skeleton.add(Call(operator.getitem, (whole, index)))
        made.append(_append(skeleton, operators[0], rng, (part,)))
    skeleton.add(Call(rng.choice((torch.cat, torch.stack)), (made,), {"dim": dim}))
    return skeleton


def skeleton_results(skeleton: Skeleton) -> list[Made]:
    """The results so far that are tensors."""
    return [Made(index) for index in range(len(skeleton.calls))][-1:]


def _append(skeleton: Skeleton, target: object, rng: random.Random, results: Sequence[Made]) -> Made:
    """Append a call whose first tensor is one of the ``results``, and take the first of several results."""
    call = Call(target, anything=True)
    annotate(call, rng)
    if results:
        call.args = _fed(call.args, rng.choice(results))
    made = skeleton.add(call)
    return skeleton.add(Call(operator.getitem, (made, 0))) if _gives_several(target) else made


def _fed(args: tuple[object, ...], result: Made) -> tuple[object, ...]:
    for at, value in enumerate(args):
        if isinstance(value, Hole) and "Tensor" in value.kind:
            fed = [result, Hole(value.name, "Tensor")] if value.kind.startswith("List") else result
            return (*args[:at], fed, *args[at + 1 :])
    return args


def _copied(call: Call, copies: dict[Hole, Hole], shared: bool) -> Call:
    """The call over further operands of its own; over the first one's own input where that is ``shared``."""

    def copy(value: object) -> object:
        if isinstance(value, (list, tuple)):
            return type(value)(copy(inner) for inner in value)
        if not isinstance(value, Hole) or "Tensor" not in value.kind:
            return value
        if shared and not copies:
            copies[value] = value
        return copies.setdefault(value, Hole(value.name, value.kind, like=value))

    args = copy(call.args)
    kwargs = {name: copy(value) for name, value in call.kwargs.items()}
    return Call(call.target, args if isinstance(args, tuple) else (), kwargs)


def _gives_several(target: object) -> bool:
    if isinstance(target, torch._ops.OpOverload):
        returns = target._schema.returns
        return len(returns) > 1 or any(str(value.type).startswith("List") for value in returns)
    return getattr(target, "__name__", "") in ("split", "chunk", "unbind", "tensor_split", "split_with_sizes")
