"""A registered pattern as calls with holes."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from fuzzcompile.compiler.programs.skeleton import Call, Hole, Made, Skeleton

if TYPE_CHECKING:
    from torch._inductor.pattern_matcher import PatternExpr

# Of operators on packed weights, and of those that wait for other processes.
_INTERNAL = ("mkldnn", "onednn", "mkl::", "quantized::", "fbgemm", "c10d", "symm_mem")
# What makes the result of an operator that no program calls: another skeleton's last call in its place.
Producer = Callable[[Skeleton, object, Sequence[object]], Made | None]


class Unwritable(Exception):
    """A pattern has a part that no program can spell: a module called, a kind of expression that is not known."""


class Reader:
    """Turns one pattern into calls, with choices from ``rng``: of alternative operators, of how often a part repeats.

    Args:
        rng: the choices.
        producer: writes what an operator gives that only the compiler's own rules put into graphs.
        skeleton: where the calls go.
    """

    def __init__(self, rng: random.Random, producer: Producer | None = None, skeleton: Skeleton | None = None) -> None:
        self.rng, self.producer = rng, producer
        self.skeleton = Skeleton() if skeleton is None else skeleton
        self._named: dict[str, Hole] = {}
        self._shared: dict[int, object] = {}
        self._several: set[int] = set()
        self._repeated: int | None = None

    def read(self, pattern: PatternExpr) -> Skeleton:
        """The calls that a pattern describes.

        Raises:
            Unwritable: some part of it cannot be spelled.
        """
        outputs = getattr(pattern, "outputs", None)
        for part in [pattern] if outputs is None else [part for part in outputs if part is not None]:
            made = self.made(part)
            if outputs is not None and isinstance(made, Made) and made.index not in self.skeleton.returns:
                self.skeleton.returns.append(made.index)
        if not self.skeleton.calls:
            raise Unwritable("the pattern calls nothing")
        return self.skeleton.finish()

    def made(self, part: Any) -> object:
        """The result, hole or literal that stands for a part of the pattern."""
        if isinstance(part, (list, tuple)):
            return [self.made(inner) for inner in part]
        kind = type(part).__name__
        if kind in ("KeywordArg", "ExclusiveKeywordArg"):
            return self._named.setdefault(part.name, Hole(part.name))
        if kind in ("Arg", "Ignored"):
            return Hole()
        if kind == "ListOf":
            return self._list_of(part.pattern)
        if kind == "RepeatedExpr":
            return self._list_of(part.inner_pattern)
        if hasattr(part, "fns"):
            return self._called(part)
        if hasattr(type(part), "pattern_eq"):
            raise Unwritable(f"{kind} is no kind of pattern that can be written as a program")
        return part

    def _list_of(self, inner: Any) -> list[object]:
        """Repeated parts; what has several users within them is one node of a graph, and stands once."""
        made, before = [], set(self._shared)
        for index in range(self.rng.choice((2, 3, 4))):
            self._repeated = index
            kept = before | self._several - {id(inner)}
            self._shared = {key: value for key, value in self._shared.items() if key in kept}
            made.append(self.made(inner))
        self._repeated = None
        return made

    def _called(self, part: Any) -> object:
        key = id(part)
        if key in self._shared:
            return self._shared[key]
        target = self.rng.choice(_callable_here(part.fns))
        if part.op == "call_module":
            raise Unwritable("dynamo's graphs call no modules")
        repeated, args, kwargs = self._repeated, [], {}
        if hasattr(part, "args"):  # otherwise any arguments will do, which the operator's schema gives
            args = [self.made(argument) for argument in part.args]
            kwargs = {name: self.made(value) for name, value in part.kwargs.items()}
        if target is operator.getitem and len(args) > 1 and isinstance(args[1], Hole) and not args[1].name:
            args[1].first = repeated or 0
        made = self._produced(target, args) or self.skeleton.add(
            Call(target, tuple(args), kwargs, anything=not hasattr(part, "args"))
        )
        self._shared[key] = made
        if part.has_multiple_users() and target is not operator.getitem:
            self._several.add(key)
        return made

    def _produced(self, target: object, args: list[object]) -> Made | None:
        """What stands for a call that no program makes."""
        if not is_internal(target):
            return None
        made = None if self.producer is None else self.producer(self.skeleton, target, args)
        if made is None:
            raise Unwritable(f"{target} is called by the compiler alone")
        return made


def _callable_here(functions: Sequence[Any]) -> Sequence[Any]:
    """Those of a pattern's alternatives that take tensors and write to none; operators without an overload first."""
    packets = [function for function in functions if isinstance(function, torch._ops.OpOverloadPacket)]
    if packets:
        return packets
    return [
        function for function in functions if not isinstance(function, torch._ops.OpOverload) or _is_plain(function)
    ] or functions


def _is_plain(overload: torch._ops.OpOverload) -> bool:
    arguments = overload._schema.arguments
    return not overload._schema.is_mutable and any("Tensor" in str(argument.type) for argument in arguments)


def is_internal(target: object) -> bool:
    """Whether an operator takes what only the compiler makes: wrong arguments may crash the process."""
    name = target._schema.name if isinstance(target, torch._ops.OpOverload) else str(target)
    return any(part in name for part in _INTERNAL)
