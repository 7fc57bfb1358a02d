"""What a rule looks for, as calls with holes: made of a pattern, of a function, or of operators' names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch.utils import _pytree as pytree


@dataclass(eq=False)
class Hole:
    """An argument that the rule leaves open; the same hole in several places stands for one value.

    ``kind`` is what a schema calls its type (``Tensor``, ``int[]``; empty if nothing says), ``first`` a value to try
    before all others, ``like`` the hole whose value has the same form; a
    ``parameter`` is the schema's own name where the rule has another; a
    ``weight`` has to be a constant of the graph, as freezing makes it of parameters.
    """

    name: str = ""
    kind: str = ""
    first: object = None
    like: Hole | None = None
    weight: bool = False
    parameter: str = ""


@dataclass(frozen=True)
class Made:
    """The result of an earlier call, by its place among the calls."""

    index: int


@dataclass
class Call:
    """One call: of a function, or with a string as its target of a method of the first argument.

    With ``anything`` the rule leaves all arguments open, and the operator's own schema says what it takes.
    """

    target: object
    args: tuple[object, ...] = ()
    kwargs: dict[str, object] = field(default_factory=dict)
    anything: bool = False

    def leaves(self) -> Iterator[object]:
        """The arguments, lists and dictionaries opened."""
        yield from pytree.tree_leaves((self.args, self.kwargs))

    def holes(self) -> list[Hole]:
        """The holes among the arguments, each once."""
        return list(dict.fromkeys(leaf for leaf in self.leaves() if isinstance(leaf, Hole)))


@dataclass
class Skeleton:
    """Calls in order; ``returns`` are the results that nothing else reads, or that have a further user.

    ``frozen`` asks for weights that are constants, ``backward`` for gradients.
    """

    calls: list[Call] = field(default_factory=list)
    returns: list[int] = field(default_factory=list)
    backward: bool = False
    frozen: bool = False

    def add(self, call: Call) -> Made:
        """Append a call."""
        self.calls.append(call)
        return Made(len(self.calls) - 1)

    @property
    def draws(self) -> bool:
        """Whether some call draws random numbers."""
        return any(_draws(call.target) for call in self.calls)

    def finish(self) -> Skeleton:
        """Return what is read by no call, if nothing is returned yet."""
        read = {leaf.index for call in self.calls for leaf in call.leaves() if isinstance(leaf, Made)}
        self.returns = self.returns or [index for index in range(len(self.calls)) if index not in read]
        return self


def _draws(target: object) -> bool:
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    seeded = torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
    return seeded or any(part in name for part in ("dropout", "rand", "bernoulli", "normal_", "uniform"))
