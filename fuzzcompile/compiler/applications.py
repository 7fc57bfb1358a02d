"""One application of an operator, computed in several ways on copies of its real arguments."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.execution.device import seed_everything
from fuzzcompile.execution.float64 import Float64Mode
from fuzzcompile.execution.tensors import copy_tree, map_tensors

if TYPE_CHECKING:
    from torch._ops import OpOverload

_EPS = torch.finfo(torch.float64).eps
_SEED = 11
# The other ways: Inductor's table, the Python dispatcher, fake tensors.
WAYS = ("decomposition", "dispatcher", "fake")


@dataclass(frozen=True)
class Outcome:
    """Result of one way of computing an operator: leaves of its result, its arguments afterwards, or an error.

    ``aliases`` are pairs of a result and an argument, by position, that share memory.
    """

    results: tuple[Any, ...] = ()
    arguments: tuple[Any, ...] = ()
    aliases: frozenset[tuple[int, int]] = frozenset()
    error: Exception | None = None


@dataclass(frozen=True)
class Place:
    """Place of an operator in dynamo's graph: the node (of the forward pass, for gradients too) and its source line.

    ``ordinal`` counts the operators of this name on the line. ``inside`` are the decompositions around it.
    """

    node: str | None = None
    location: str | None = None
    ordinal: int = 1
    backward: bool = False
    inside: tuple[str, ...] = ()


@dataclass(frozen=True)
class Application:
    """One operator on its real arguments, computed by its own kernel and in another way (one of ``WAYS``)."""

    operator: OpOverload
    way: str
    function: Callable[..., object] | None
    place: Place
    kernel: Outcome
    other: Outcome
    draws: bool = False
    _arguments: tuple[tuple[object, ...], dict[str, object]] = field(default=((), {}), repr=False)

    @property
    def given(self) -> tuple[tuple[object, ...], dict[str, object]]:
        """The arguments, as they were before any way ran."""
        return self._arguments

    def refuses_always(self) -> bool:
        """Return whether the kernel raises the same on other values, so that no values are needed to see the fault."""
        message = str(self.kernel.error)
        for fill in (0, 1):
            given = map_tensors(functools.partial(torch.full_like, fill_value=fill), copy_tree(self._arguments))
            again = outcome_of(self.operator, *given)
            if again.error is None or str(again.error) != message:
                return False
        return True

    def arguments_around(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The tensors among the arguments before and after the kernel ran."""
        before = pytree.tree_leaves(self._arguments)
        pairs = zip(before, self.kernel.arguments, strict=False)
        return [(a, b) for a, b in pairs if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)]

    def exact(self, *, noise: int | None = None) -> tuple[Outcome, Outcome] | None:
        """Both ways in float64; with ``noise``, on arguments moved by one ulp of float64. None if it cannot be run."""
        if self.function is None or self.draws:
            return None
        given = copy_tree(self._arguments, double=True)
        if noise is not None:
            generator = torch.Generator().manual_seed(noise)
            given = map_tensors(lambda tensor: _moved(tensor, generator), given)
        one = outcome_of(self.operator, *given, double=True)
        other = outcome_of(self.function, *given, double=True, dispatcher=True)
        return None if one.error is not None or other.error is not None else (one, other)


def outcome_of(
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    *,
    double: bool = False,
    dispatcher: bool = False,
    inside: contextlib.AbstractContextManager[object] | None = None,
) -> Outcome:
    """Run ``function`` on copies of its arguments, natively or in float64, with Python's dispatcher or without."""
    copies, named = copy_tree((args, dict(kwargs)), double=double)
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(python_dispatcher(dispatcher))
        if inside is not None:
            stack.enter_context(inside)
        if double:
            stack.enter_context(Float64Mode(keep_casts=False))
        try:
            result = function(*copies, **named)
        except (KeyboardInterrupt, MemoryError):
            raise
        except Exception as error:  # of the operator: it is the answer
            return Outcome(error=error)
    results = tuple(pytree.tree_leaves(result)) if result is not NotImplemented else (NotImplemented,)
    arguments = tuple(pytree.tree_leaves((copies, named)))
    return Outcome(results, arguments, aliases_of(results, arguments))


def aliases_of(results: Sequence[object], arguments: Sequence[object]) -> frozenset[tuple[int, int]]:
    """Pairs of a result and an argument, by position, that lie in one storage."""
    held = [(position, _storage(value)) for position, value in enumerate(arguments)]
    found = [(position, _storage(value)) for position, value in enumerate(results)]
    return frozenset((i, j) for i, one in found for j, other in held if one is not None and one == other)


def python_dispatcher(enabled: bool) -> contextlib.AbstractContextManager[object]:
    """Python's dispatcher in force or not; as it is, where this torch has no such switch."""
    switch = getattr(torch._C, "_EnablePythonDispatcher" if enabled else "_DisablePythonDispatcher", None)
    return switch() if switch is not None else contextlib.nullcontext()


def _moved(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if not tensor.is_floating_point() or tensor.layout != torch.strided or not tensor.numel():
        return tensor
    draw = torch.randint(-1, 2, tensor.shape, generator=generator).to(tensor.device, tensor.dtype)
    moved = tensor.detach() * (1 + _EPS * draw)
    if 0 in tensor.stride():  # one element for many: each is moved on its own
        return moved
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(moved)


def _storage(value: object) -> int | None:
    if not isinstance(value, torch.Tensor):
        return None
    with contextlib.suppress(NotImplementedError, RuntimeError):
        return value.untyped_storage()._cdata if value.numel() else None
    return None


@contextlib.contextmanager
def same_stream(operator: OpOverload) -> Iterator[bool]:
    """Have an operator that draws random numbers draw the same again, and leave the stream as it was."""
    draws = torch.Tag.nondeterministic_seeded in operator.tags
    if not draws:
        yield False
        return
    with torch.random.fork_rng():
        seed_everything(_SEED)
        yield True
