"""Skeletons: a rule's pattern as calls with holes, made of a pattern, a function, or operators' names."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree


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


@dataclass(frozen=True)
class CallResult:
    """The result of an earlier call, by its place among the calls."""

    index: int


@dataclass
class RuleCall:
    """One call: of a function, or with a string as its target of a method of the first argument.

    With ``anything`` the rule leaves all arguments open, and the operator's own schema says what it takes.
    """

    target: object
    args: tuple[object, ...] = ()
    kwargs: dict[str, object] = field(default_factory=dict)
    anything: bool = False

    def iter_leaves(self) -> Iterator[object]:
        """The arguments, lists and dictionaries opened."""
        yield from pytree.tree_leaves((self.args, self.kwargs))

    def list_holes(self) -> list[ArgumentHole]:
        """The holes among the arguments, each once."""
        return list(dict.fromkeys(leaf for leaf in self.iter_leaves() if isinstance(leaf, ArgumentHole)))

    def map_leaves(self, change: Callable[[object], object]) -> RuleCall:
        """The call with other arguments."""
        return RuleCall(self.target, *pytree.tree_map(change, (self.args, self.kwargs)))


@dataclass
class CallSkeleton:
    """Calls in order; ``returns`` are the results that nothing else reads, or that have a further user.

    ``frozen`` asks for weights that are constants, ``backward`` for gradients.
    """

    calls: list[RuleCall] = field(default_factory=list)
    returns: list[int] = field(default_factory=list)
    backward: bool = False
    frozen: bool = False

    def append(self, call: RuleCall) -> CallResult:
        """Append a call."""
        self.calls.append(call)
        return CallResult(len(self.calls) - 1)

    @property
    def draws(self) -> bool:
        """Return whether some call draws random numbers."""
        parts = ("dropout", "rand", "bernoulli", "normal_", "uniform")
        targets: list[Any] = [call.target for call in self.calls]
        names = [target if isinstance(target, str) else getattr(target, "__name__", "") for target in targets]
        seeded = (torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()) for target in targets)
        return any(seeded) or any(part in name for name in names for part in parts)

    def finish(self) -> CallSkeleton:
        """Return what is read by no call, if nothing is returned yet."""
        read = {leaf.index for call in self.calls for leaf in call.iter_leaves() if isinstance(leaf, CallResult)}
        self.returns = self.returns or [index for index in range(len(self.calls)) if index not in read]
        return self


# What a call takes: names and types of its arguments, from the operator's schema or the function's signature.


@dataclass(frozen=True)
class CallParameter:
    """One parameter: its type as a schema spells it (empty if unknown), and whether it may be left out."""

    name: str
    kind: str
    optional: bool
    keyword: bool = False


def list_parameters(target: object, given: int | None, rng: random.Random) -> list[CallParameter]:
    """The parameters of an operator, function or method, in order; those of any overload that takes ``given`` of them.

    A function of torch without a signature of its own takes what ATen's operator of that name takes.
    """
    overloads = [_read_schema(overload) for overload in _list_overloads(target)]
    if overloads:
        return rng.choice([parameters for parameters in overloads if _can_take(parameters, given)] or overloads)
    try:
        signature = inspect.signature(target) if callable(target) else inspect.Signature()
    except (TypeError, ValueError):
        return []
    return [
        CallParameter(name, _read_annotation(own), own.default is not own.empty, own.kind is own.KEYWORD_ONLY)
        for name, own in signature.parameters.items()
        if own.kind not in (own.VAR_POSITIONAL, own.VAR_KEYWORD)
    ]


def annotate_holes(call: RuleCall, rng: random.Random) -> None:
    """Give the holes of a call the names and types of the parameters that they stand for; add those that must be."""
    parameters = list_parameters(call.target, None if call.anything else len(call.args), rng)
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


def _read_schema(overload: torch._ops.OpOverload) -> list[CallParameter]:
    return [
        CallParameter(own.name, str(getattr(own, "real_type", own.type)), own.has_default_value(), own.kwarg_only)
        for own in overload._schema.arguments
    ]


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


def _can_take(parameters: list[CallParameter], given: int | None) -> bool:
    needed = [parameter for parameter in parameters if not parameter.optional]
    if any(parameter.name in ("out", "generator") or "Dimname" in parameter.kind for parameter in parameters):
        return False
    return given is None or len(needed) <= given <= len(parameters)
