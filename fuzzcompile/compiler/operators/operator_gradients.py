"""Operators whose own gradient contradicts their own forward pass, in float64.

A float64 run differentiates an operator by the formula that autograd has for it, and no reference computes that
otherwise. Each operator of a forward pass is therefore called once more on its own values, and its gradient is held
against differences of what it computes. A result that has no gradient counts as one whose gradient is 0; many have
none because nothing asks for it, so that only what follows tells whether that is wrong.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.operators.decompositions import get_operator_family
from fuzzcompile.compiler.operators.operator_application import Arguments, name_arguments
from fuzzcompile.compiler.operators.second_reference import ContestedCall, PartedOpinion, has_derivative, is_comparable
from fuzzcompile.model.facts import facts
from fuzzcompile.model.thresholds import DIFFERENCE_STEP
from fuzzcompile.run import differences
from fuzzcompile.run.arithmetic_modes import Float64Mode
from fuzzcompile.run.metrics import rms
from fuzzcompile.run.runs import OperatorWatch
from fuzzcompile.run.tensors import Operator, copy_tree, has_own_elements, is_inexact

_FACTS = facts().operators
# Calls of one forward pass that are kept, with their arguments, and the elements of all of these.
_MOST_CALLS, _MOST_ELEMENTS = 200, 2**22
# Elements of the arguments of a call up to which its gradient is computed by differences, one by one.
_MOST_DIFFERENCES = 2**12
_FAILURES = (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError, AttributeError)


class GradientCheck(Float64Mode):  # type: ignore[no-untyped-call]
    """Keep the calls of a forward pass in float64 that autograd has a formula for, with their arguments."""

    def __init__(self, *, native: torch.dtype) -> None:
        super().__init__(keep_casts=False, native=native)
        self._calls: list[tuple[int, Operator, Arguments]] = []
        self._seen = self._elements = 0

    def compute(self, func: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute an operator by its own kernel; keep its arguments as they were before."""
        self._seen += 1
        size = sum(leaf.numel() for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
        kept = len(self._calls) < _MOST_CALLS and self._elements + size <= _MOST_ELEMENTS
        if kept and _is_differentiated(func, (args, kwargs)) and is_comparable(func, args, kwargs, views=True):
            self._elements += size
            self._calls.append((self._seen, func, copy_tree((args, kwargs))))
        return func(*args, **kwargs)

    @functools.cached_property
    def contradicted(self) -> list[ContestedCall]:
        """The calls whose gradient is not the derivative of what they compute."""
        return list(self._list_missing())

    @functools.cached_property
    def lacking(self) -> list[ContestedCall]:
        """The calls of which a result depends on the arguments and has no gradient."""
        return list(self._list_missing(lacking=True))

    def _list_missing(self, *, lacking: bool = False) -> Iterator[ContestedCall]:
        for number, func, arguments in self._calls:
            miss = measure_gradient_miss(func, arguments, lacking=lacking)
            if miss:
                yield ContestedCall(number, func, arguments, PartedOpinion("differences", miss))


class WithheldGradients(OperatorWatch):  # type: ignore[no-untyped-call]
    """Look for operators that pass on what a tensor that requires a gradient holds, and not its derivative.

    They are meant to give another one, run where no gradients are recorded, or take a number out of the tensor.
    """

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = args, kwargs or {}
        result = func(*given[0], **given[1])
        leaves = pytree.tree_leaves(given)
        if not any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves):
            return result
        withheld = not torch.is_grad_enabled() or func is torch.ops.aten._local_scalar_dense.default
        if withheld and any(map(_is_floating, pytree.tree_leaves(result))):
            self.found = True
        if isinstance(func, torch._ops.OpOverload) and func.namespace == "aten" and has_derivative(func):
            self.found |= not _is_derivative(func, given)
        return result


def _is_floating(value: object) -> bool:
    return value.is_floating_point() if isinstance(value, torch.Tensor) else isinstance(value, float)


def _is_differentiated(func: Operator, arguments: Arguments) -> bool:
    """Return whether autograd has a formula for a call that is meant to be the derivative.

    The gradient of an operator of the user's own may be meant to be another one.
    """
    return func.namespace == "aten" and has_derivative(func) and _is_derivative(func, arguments)


def _is_derivative(func: Operator, arguments: Arguments) -> bool:
    family = get_operator_family(str(func))
    if family in _FACTS.not_derivatives or family in _FACTS.reads_storage:
        return False
    given, defaults = name_arguments(func, arguments), name_arguments(func, ((), {}), defaults=True)
    return not any(
        f"{family}.{name}" in _FACTS.not_derivatives and value != defaults.get(name)
        for name, value in given.items()
        if not isinstance(value, torch.Tensor)
    )


def measure_gradient_miss(func: Operator, arguments: Arguments, *, lacking: bool = False) -> float | None:
    """By which share of its size the gradient of a call misses differences, along at least two directions.

    That of the results that have a gradient, or of those ``lacking`` one. None where there is no such result, and where
    differences have no limit.
    """
    if lacking and (func._schema.is_mutable or func.is_view):
        return None  # a view passes on what it holds: `detach`
    try:
        return differences.weigh_misses(
            _CallAlongDirection(func, arguments, seed).measure_miss(lacking=lacking)
            for seed in differences.DIRECTION_SEEDS
        )
    except _FAILURES:  # it has no derivative there, or says so by raising
        return None


class _CallAlongDirection:
    """A call of an operator as a function of a step along a direction of its floating arguments."""

    def __init__(self, func: Operator, arguments: Arguments, seed: int) -> None:
        self._func, self._generator = func, torch.Generator().manual_seed(seed)
        self._leaves, self._spec = pytree.tree_flatten(arguments)
        self._moved = _list_differentiable(self._leaves)
        drawn = ((at, differences.draw_direction(self._leaves[at], self._generator)) for at in self._moved)
        self._directions = {at: direction.to(self._leaves[at]) for at, direction in drawn}

    def measure_miss(self, *, lacking: bool = False) -> float | None:
        with torch.enable_grad():
            inputs, results = self._call(0.0, grad=True)
            weights = [torch.randn(r.shape, generator=self._generator).to(r) for r in results]
            counted = [result.requires_grad is not lacking for result in results]
            if not any(counted):
                return None
            gradients: Sequence[torch.Tensor | None] = [None] * len(inputs)
            if not lacking:
                gradients = torch.autograd.grad(_weigh(results, weights, counted), inputs, allow_unused=True)
        pairs = zip(gradients, self._directions.values(), strict=True)
        whole = differences.Slope.add(differences.measure_slope(*pair) for pair in pairs)
        with torch.no_grad():
            terms = sum(float((r * w).abs().sum()) for r, w, own in zip(results, weights, counted, strict=True) if own)
            return differences.measure_miss(
                whole, lambda step: float(_weigh(self._call(step)[1], weights, counted)), terms=terms
            )

    def _call(self, step: float, *, grad: bool = False) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The arguments that were moved, and the results that have a derivative."""
        given = list(self._leaves)
        for at in self._moved:
            given[at] = (_copy_layout(self._leaves[at]).add_(step * self._directions[at])).requires_grad_(grad)
        args, kwargs = pytree.tree_unflatten(given, self._spec)
        if self._func._schema.is_mutable:  # a leaf of autograd's graph cannot be written to
            args, kwargs = pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
        return [given[at] for at in self._moved], _list_results(self._func(*args, **kwargs))


def _list_differentiable(leaves: Sequence[object]) -> list[int]:
    """The positions of the tensors that may have a gradient."""
    tensors = [leaf if isinstance(leaf, torch.Tensor) else None for leaf in leaves]
    return [at for at, leaf in enumerate(tensors) if leaf is not None and is_inexact(leaf)]


def _list_results(result: object) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(result)
    return [leaves[at] for at in _list_differentiable(leaves)]


def _copy_layout(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that can be written to: laid out in the same way, unless elements share memory."""
    plain = tensor.detach()
    return copy_tree(plain) if has_own_elements(plain) else plain.clone(memory_format=torch.contiguous_format)


def _weigh(results: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], counted: Sequence[bool]) -> torch.Tensor:
    """The loss Re Σ r · w over the results that have a gradient."""
    triples = zip(results, weights, counted, strict=True)
    terms = [(result * weight).sum() for result, weight, wanted in triples if wanted]
    return torch.stack([term.real if term.is_complex() else term for term in terms]).sum()


# The same formula, computed by differences: an operator whose gradient is right by definition, and slow.


@contextlib.contextmanager
def differentiate_by_differences(operator: Operator, device: torch.device) -> Iterator[None]:
    """In the block, autograd differentiates an operator by differences of what it computes, element by element.

    Raises:
        ValueError: the operator writes to its arguments or returns a view, which no such function may.
    """
    schema = operator._schema
    if any(each.alias_info is not None for each in (*schema.arguments, *schema.returns)):
        raise ValueError(f"{operator} writes in place or returns a view")
    namespace, _, name = schema.name.partition("::")
    below: Callable[[], contextlib.AbstractContextManager[object]] = torch._C._AutoDispatchBelowAutograd

    def call(*args: Any, **kwargs: Any) -> object:
        with below(), torch.no_grad():
            return operator(*args, **kwargs)

    def run(*args: object, **kwargs: object) -> object:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        result_spec: list[pytree.TreeSpec] = []

        def compute(*given: object) -> tuple[object, ...]:
            args, kwargs = pytree.tree_unflatten(given, spec)
            results, structure = pytree.tree_flatten(call(*args, **kwargs))
            result_spec[:] = [structure]
            return tuple(results)

        results = cast("tuple[object, ...]", _ByDifferences.apply(compute, *leaves))  # type: ignore[no-untyped-call]
        return pytree.tree_unflatten(results, result_spec[0])

    make: Callable[..., Any] = torch.library.Library
    library = make(namespace, "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that a kernel is replaced: it is meant to be
            key = f"Autograd{device.type.upper()}"
            library.impl(f"{name}.{schema.overload_name}".rstrip("."), run, key, allow_override=True)
        yield
    finally:
        library._destroy()


class _ByDifferences(torch.autograd.Function):
    """A function of tensors whose backward is made of central differences."""

    @staticmethod
    def forward(ctx: Any, compute: Callable[..., tuple[object, ...]], *leaves: object) -> tuple[object, ...]:
        results = compute(*leaves)
        kept = [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        ctx.compute, ctx.leaves = compute, kept
        plain = [r for r in results if isinstance(r, torch.Tensor)]
        ctx.mark_non_differentiable(*(r for r in plain if not is_inexact(r)))
        return results

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        moved = [at for at in _list_differentiable(ctx.leaves) if ctx.needs_input_grad[at + 1]]
        if sum(ctx.leaves[at].numel() for at in moved) > _MOST_DIFFERENCES:
            raise ValueError("too many elements to be differentiated one by one")

        def weigh(at: int, value: torch.Tensor) -> float:
            given = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in ctx.leaves]
            given[at] = value
            loss = 0.0
            for result, cotangent in zip(ctx.compute(*given), cotangents, strict=True):
                if cotangent is not None and _list_differentiable([result]):
                    loss += differences.measure_slope(cast("torch.Tensor", result), cotangent).value
            return loss

        def differentiate(at: int) -> torch.Tensor:
            leaf = ctx.leaves[at]
            step = DIFFERENCE_STEP * (rms(leaf) or 1.0)
            gradient = torch.zeros_like(leaf, memory_format=torch.contiguous_format)
            for place in range(leaf.numel()):
                for unit in (1, 1j) if leaf.is_complex() else (1,):
                    sides = []
                    for sign in (1, -1):
                        value = leaf.clone(memory_format=torch.contiguous_format)
                        value.view(-1)[place] += sign * step * unit
                        sides.append(weigh(at, value))
                    gradient.view(-1)[place] += unit * (sides[0] - sides[1]) / (2 * step)
            return gradient

        gradients = {at: differentiate(at) for at in moved}
        return (None, *(gradients.get(at) for at in range(len(ctx.leaves))))
