"""The second reference: the program in float64 through other code than its own kernels.

A float64 run in eager mode calls the kernels that the program calls, and shares their errors. Here each operator is
also computed on contiguous copies of its arguments, by its definition in NumPy (`fuzzcompile.run.reference.formulas`),
and by torch's decomposition. Where these part, the call is contested, and the opinions are weighed:

- What a kernel makes of copies of its arguments, and a formula, outvote it.
- So does the definition of a function that torch composes of several operators
  (`fuzzcompile.run.reference.definitions`), where none of these is contested.
- A decomposition does not: the compiler uses it, so that it may be what is wrong. Kernel and decomposition are measured
  against the derivative that autograd has for the operator, which is the limit of differences of the one that is right.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import numpy
import numpy.typing
import torch
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.functional_run import OperatorMode
from fuzzcompile.compiler.operators.composed_functions import DefinedCall, DefinedFunctions, make_array
from fuzzcompile.compiler.operators.decompositions import find_decomposition, get_operator_family, leaves_unwritten
from fuzzcompile.compiler.operators.operator_application import (
    Arguments,
    fit_derivatives,
    is_contiguous,
    is_drawing,
    make_contiguous,
    name_arguments,
)
from fuzzcompile.model.facts import facts
from fuzzcompile.model.thresholds import (
    SEMANTIC_STEP,
    VANISHING,
)
from fuzzcompile.run import metrics
from fuzzcompile.run.arithmetic_modes import Float64Mode
from fuzzcompile.run.reference.definitions import DEFINITIONS
from fuzzcompile.run.reference.formulas import PROPAGATING, apply_formula
from fuzzcompile.run.tensors import (
    Operator,
    copy_tree,
    double_dtype,
    is_inexact,
    map_leaves,
    materialize_zeros,
    name_collective,
    share_storage,
)

if TYPE_CHECKING:
    from torch._ops import OpOverload

_FACTS = facts().operators
# Elements of the arguments of one call from which on it is not computed again: what is that large takes too long.
_MOST_ELEMENTS = 2**22
# Operators of a decomposition that compute nothing.
_MOVING = (
    "convert_element_type", "broadcast_in_dim", "clone", "copy_to", "_to_copy", "copy_", "empty_strided",
    "_unsafe_view",
)  # fmt: skip
# A subclass of a tensor may compute in its own way.
_PLAIN = (torch.Tensor, torch.nn.Parameter)
# What a call on other operands than the program's may raise, which says nothing of the kernel.
NO_ANSWER = (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError, AttributeError)
# Elements of a pointwise call that are computed in other places, and the copies of each that vectors fill: a multiple
# of the elements of those that one step of a loop takes, and with all of them too few for several threads.
_MOST_PLACES, _LANES = 2**11, 16
# Contested calls that are kept, with their arguments.
_MOST_CONTESTED = 20

Opinion = Literal[
    "contiguous", "formula", "decomposition", "float64", "differences", "surroundings", "place", "convention"
]
"""How an operator was computed beside its kernel; "differences" are those of the kernel, beside its gradient.

"place": by the kernel itself, on the same elements in other places of a tensor. "convention": by a formula, which parts
on what comes of NaN, or where an infinity leads to NaN or infinity: to which, the order of the steps says.
"""
Compute: TypeAlias = Callable[..., object]


@dataclass(frozen=True, eq=False)
class PartedOpinion:
    """Values of a call that part with its kernel's by ``step`` of their size, and how they were computed.

    ``by_layout``: on contiguous copies of its arguments the kernel agrees with them. ``elsewhere``: what a kernel that
    contradicts itself gives for elements in the other of the two places.
    """

    by: Opinion
    step: float
    values: tuple[torch.Tensor | None, ...] = ()
    by_layout: bool = False
    elsewhere: tuple[torch.Tensor | None, ...] = ()
    compute: Compute | None = None  # the decomposition


@dataclass(frozen=True, eq=False)
class ContestedCall:
    """A call of an operator on which its kernel and another opinion part; ``number`` of those that were compared.

    ``elsewhere``: a repair takes the opinion's second values.
    """

    number: int
    operator: Operator
    arguments: Arguments
    opinion: PartedOpinion
    elsewhere: bool = False

    @functools.cached_property
    def kernel_is_wrong(self) -> bool | None:
        """Return whether the kernel is wrong; None if no opinion outvotes the other.

        One that contradicts itself is wrong in one place or the other: what depends on it may be right.
        """
        if self.opinion.by in {"place", "convention"}:
            return None
        if self.opinion.compute is None:
            return True
        if not has_derivative(self.operator):
            return None
        with contextlib.suppress(RuntimeError, TypeError, ValueError, NotImplementedError):  # it has no derivative
            fits = fit_derivatives([self.operator, self.opinion.compute], self.arguments)
            return None if fits is None or fits[0] == fits[1] else fits[1]
        return None

    @functools.cached_property
    def misread(self) -> list[str]:
        """The arguments that a kernel misreads by their layout: without the others' copies, theirs repair it."""
        named = name_arguments(self.operator, self.arguments)
        strided = [name for name, value in named.items() if not is_contiguous(value)]

        def copied(names: Collection[str]) -> list[torch.Tensor | None]:
            given = copy_operands(copy_tree(named), names)
            return list_computed(self.operator, self.operator(**given), ((), given))

        try:
            right = copied(strided)
            alone = [name for name in strided if measure_change(self.arguments, copied([name]), right) <= SEMANTIC_STEP]
        except (RuntimeError, TypeError, ValueError, NotImplementedError):  # it refuses some combination
            return strided
        return alone[:1] or strided

    def describe_inputs(self) -> str:
        """The dtype, sizes and strides of each tensor among the arguments."""
        return ", ".join(map(_describe_tensor, _list_tensors(self.arguments)))


@dataclass(frozen=True, eq=False)
class UnopposedCall:
    """A call of an operator on which there is no other opinion: both references share its kernel."""

    operator: Operator
    arguments: Arguments

    @functools.cached_property
    def fits_derivative(self) -> bool:
        """Return whether the kernel has the derivative that autograd computes by other kernels."""
        if not has_derivative(self.operator):
            return False
        with contextlib.suppress(RuntimeError, TypeError, ValueError, NotImplementedError):  # it has none
            return fit_derivatives([self.operator], self.arguments) == [True]
        return False


def _describe_tensor(tensor: torch.Tensor) -> str:
    text = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    return text if is_contiguous(tensor) else f"{text} with strides {list(tensor.stride())}"


class SecondReference(Float64Mode):  # type: ignore[no-untyped-call]
    """Compare every operator of a float64 run with other opinions.

    Calls are numbered: those in ``repaired`` get another opinion's values, or where it says so those of ``elsewhere``,
    and values that calls in ``moved`` compute are changed at random, which shows what depends on them. ``alone`` are
    calls of which there is one opinion only: no formula and no decomposition, or they could not be computed again.
    ``conventions`` are those on which a formula parts by convention alone, which contests nothing (`Opinion`).
    """

    def __init__(
        self, *, native: torch.dtype, repaired: Mapping[int, bool] | None = None, moved: Collection[int] = ()
    ) -> None:
        super().__init__(keep_casts=True, native=native)
        self.contested: list[ContestedCall] = []
        self.conventions: list[ContestedCall] = []
        self.alone: dict[int, Operator] = {}
        self.unopposed: dict[str, UnopposedCall] = {}
        self._repaired, self._moved, self._calls, self._composed = repaired or {}, moved, 0, 0
        self._functions = DefinedFunctions(self._compare_function)

    def __enter__(self) -> SecondReference:
        self._functions.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._functions.__exit__(*error)  # type: ignore[no-untyped-call]

    def _compare_function(self, call: DefinedCall) -> object:
        """Hold what a function of several operators gives against its definition; their calls are compared before."""
        self._composed += 1
        number, contested = -self._composed, len(self.contested)
        with call.aside():
            before = copy_tree((call.args, call.kwargs))
        result = call.run()
        if len(self.contested) > contested or not _is_plain(before):
            return result
        with call.aside():
            own: list[torch.Tensor | None] = [result.detach()] if isinstance(result, torch.Tensor) else []
            try:
                opinions = _weigh_opinions(call.define(before), own)
            except (RuntimeError, TypeError, ValueError):  # a tensor that NumPy does not read: its calls are compared
                return result
            values = None if opinions is None else _leave_conventions(opinions, before, own)
            step = 0.0 if values is None else measure_change(before, own, values)
            if values is None or step <= SEMANTIC_STEP:
                return result
            if number in self._repaired:
                repair_values([own[0].data if own[0] is not None else None], values)
            elif len(self.contested) < _MOST_CONTESTED:
                self.contested.append(ContestedCall(number, call.operator, before, PartedOpinion("formula", step)))
        return result

    def compute(self, func: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute an operator by its kernel, and otherwise; return the kernel's values unless they are repaired."""
        # A collective is called once, by all processes: compiled code calls the same one.
        if name_collective(func) is not None or not _computes_values(func, args, kwargs):
            return func(*args, **kwargs)
        self._calls += 1
        number = self._calls
        if not is_comparable(func, args, kwargs):
            result = func(*args, **kwargs)
            self._leave_alone(number, func, list_computed(func, result, (args, kwargs)))
            return result
        args, kwargs = map_leaves(materialize_zeros, (args, kwargs))
        before = copy_tree((args, kwargs))
        result = func(*args, **kwargs)
        own = list_computed(func, result, (args, kwargs))
        try:
            parted = _find_parted_opinion(func, before, own)
        except NO_ANSWER:
            self._leave_alone(number, func, own)  # an operator that cannot be called on copies shows nothing
            return result
        if parted is None:
            return result
        if isinstance(parted, UnopposedCall):
            self.unopposed.setdefault(str(func), parted)
            self._leave_alone(number, func, own)
            return result
        if number in self._repaired:
            repair_values(own, parted.elsewhere if self._repaired[number] else parted.values)
        else:
            kept = self.conventions if parted.by == "convention" else self.contested
            if len(kept) < _MOST_CONTESTED:
                kept.append(ContestedCall(number, func, before, replace(parted, values=(), elsewhere=())))
        return result

    def _leave_alone(self, number: int, func: Operator, own: Sequence[torch.Tensor | None]) -> None:
        """Keep a call of which there is one opinion; what it computes is changed if the run is to show that."""
        computed = [tensor for tensor in own if tensor is not None]
        # A number, or whether two tensors are equal, is Python's from there on.
        if not computed or _is_moving(func) or _is_filling(func):
            return
        self.alone[number] = func
        if number in self._moved:
            for tensor in computed:
                _move_at_random(tensor, number)


def _move_at_random(tensor: torch.Tensor, seed: int) -> None:
    """Change values by about their size, each by another factor: a norm or a softmax hides less of that."""
    if not is_inexact(tensor):
        tensor.copy_(tensor.logical_not() if tensor.dtype == torch.bool else tensor + 1)
        return
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.device)
    tensor.add_((drawn * (metrics.rms(tensor) or 1.0)).to(tensor.dtype))


def repair_values(own: Sequence[torch.Tensor | None], values: Sequence[torch.Tensor | None]) -> None:
    """Put another opinion's values in the place of those that a call computed."""
    for mine, other in zip(own, values, strict=False):
        if mine is not None and other is not None and mine.shape == other.shape:
            mine.copy_(other)


def widen_arguments(arguments: Arguments) -> Arguments:
    """Copies of the arguments, floating ones in float64."""
    copied = copy_tree(arguments)
    widened: Arguments = pytree.tree_map_only(torch.Tensor, lambda x: x.to(double_dtype(x.dtype)), copied)
    return widened


def copy_operands(named: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The arguments of a call by name, those in ``names`` as contiguous copies."""
    return {name: make_contiguous(value) if name in names else value for name, value in named.items()}


def _find_parted_opinion(
    func: Operator, given: Arguments, own: Sequence[torch.Tensor | None]
) -> PartedOpinion | UnopposedCall | None:
    """The opinion that parts with the kernel's values, the most telling of them; None if they agree."""
    copies: Arguments | None = None
    if not reads_storage(func) and not all(map(is_contiguous, _list_tensors(given))):
        copies = make_contiguous(copy_tree(given))
    plain = None if copies is None else list_computed(func, func(*copies[0], **copies[1]), copies)
    formula = _apply_formula(func, given, own)
    parted: PartedOpinion | UnopposedCall = UnopposedCall(func, given)
    if formula is not None:
        settled = _leave_conventions(formula, given, own, of_nan=get_operator_family(str(func)) not in PROPAGATING)
        step = measure_change(given, own, settled)
        by_layout = plain is not None and measure_change(given, plain, settled) <= SEMANTIC_STEP
        if step > SEMANTIC_STEP:
            return PartedOpinion("formula", step, tuple(settled), by_layout)
        if (step := measure_change(given, own, formula)) <= SEMANTIC_STEP:
            return None
        parted = PartedOpinion("convention", step, tuple(formula))
    if plain is not None and (step := measure_change(given, own, plain)) > SEMANTIC_STEP:
        return PartedOpinion("contiguous", step, tuple(plain), by_layout=True)
    if _is_pointwise(func) and (contradiction := _find_contradiction(func, given, own)) is not None:
        return contradiction
    composed = _find_composition(func)
    if composed is None or func._schema.is_mutable:
        return parted
    args, kwargs = copy_tree(given)
    called, pointwise = list[Operator](), True

    def hear(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        nonlocal pointwise
        called.append(operator)
        pointwise &= _is_pointwise(operator) or _is_moving(operator) or not _list_tensors((args, kwargs))
        return operator(*args, **kwargs)

    with OperatorMode(hear):
        result = composed(*args, **kwargs)
    if result is NotImplemented or func in called or (composed != func.decompose and not _is_independent(called)):
        return parted
    values = list_computed(func, result, (args, kwargs))
    step = measure_change(given, own, values)
    if step <= SEMANTIC_STEP:
        return parted if isinstance(parted, PartedOpinion) else None
    contradiction = _find_contradiction(func, given, own) if pointwise else None
    return contradiction or PartedOpinion("decomposition", step, tuple(values), compute=composed)


def _find_contradiction(func: Operator, given: Arguments, own: Sequence[torch.Tensor | None]) -> PartedOpinion | None:
    """A pointwise kernel's own opinion, where it gives other values for the same elements in other places.

    A loop over vectors of elements and one over the elements that are left may part: each element is computed in a row
    of its own that vectors fill, and where every second element of memory is another one's.
    """
    tensors, result = _list_tensors(given), own[0] if len(own) == 1 else None
    if func._schema.is_mutable or result is None or not result.dim() or not 0 < result.numel() <= _MOST_PLACES:
        return None
    if result.shape != torch.broadcast_tensors(*tensors)[0].shape:  # type: ignore[no-untyped-call]
        return None

    def compute(place: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        def lay(tensor: torch.Tensor) -> torch.Tensor:
            return place(tensor.broadcast_to(result.shape).flatten()) if tensor.dim() else tensor.clone()

        args, kwargs = pytree.tree_map_only(torch.Tensor, lay, given)
        computed: torch.Tensor = func(*args, **kwargs)
        return computed.reshape(result.numel(), -1)[:, 0].reshape(result.shape)

    filled = compute(lambda row: row.repeat_interleave(_LANES))
    apart = compute(lambda row: row.repeat_interleave(2)[::2])
    step = measure_change(given, [filled], [apart])
    return PartedOpinion("place", step, (filled,), elsewhere=(apart,)) if step > SEMANTIC_STEP else None


def _is_pointwise(func: Operator) -> bool:
    """Return whether an operator is pointwise by the tag of one of its overloads: not all have it."""
    packet = func.overloadpacket
    return any(torch.Tag.pointwise in getattr(packet, name).tags for name in packet.overloads())


def _find_composition(func: Operator) -> Compute | None:
    """How torch composes an operator of others: its decomposition, or what it does where a device has no kernel."""
    found = find_decomposition(func, cast("Mapping[OpOverload, Compute]", torch._decomp.decomposition_table))
    if found is not None:
        return found[1]
    return func.decompose if _has_kernel(func, "CompositeImplicitAutograd") else None


def compute_otherwise(func: Operator, arguments: Arguments) -> list[torch.Tensor | None] | None:
    """What a call computes by an opinion that parts with its kernel's, tensor by tensor; None if they agree.

    The call runs in float64, on copies; a None among the values has no opinion.
    """
    parted = find_opinion(func, widen_arguments(arguments))
    return list(parted.values) if isinstance(parted, PartedOpinion) and parted.by != "convention" else None


def find_opinion(func: Operator, given: Arguments) -> PartedOpinion | UnopposedCall | None:
    """The opinion that parts with what the kernel computes; None if they agree. The call writes to its arguments."""
    before = copy_tree(given)
    return _find_parted_opinion(func, before, list_computed(func, func(*given[0], **given[1]), given))


def _is_independent(called: Sequence[Operator]) -> bool:
    """Return whether a decomposition computes its operator by others: a primitive alone calls the operator's kernel."""
    return sum(not _is_moving(each) for each in called) > 1


def _is_moving(func: Operator) -> bool:
    """Return whether an operator moves values, or makes views of them, and computes none."""
    return func._schema.name.rsplit("::")[-1] in _MOVING or func.is_view


def _is_filling(func: Operator) -> bool:
    """Return whether an operator makes a tensor of a constant, in the form of another one."""
    name = func._schema.name.rsplit("::")[-1]
    return name.endswith("_like") or name.startswith("new_")


def _computes_values(func: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], *, views: bool = False) -> bool:
    """Return whether an operator computes values, or ``views``, that depend on those of its arguments alone."""
    if not _list_tensors((args, kwargs)) or is_drawing(func, args, kwargs) or leaves_unwritten(func):
        return False
    aliases = (returned.alias_info for returned in func._schema.returns)
    return views or not any(alias is not None and not alias.is_write for alias in aliases)


def is_comparable(func: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], *, views: bool = False) -> bool:
    """Return whether an operator computes values, or ``views``, and can be called again on copies of its arguments."""
    tensors = _list_tensors((args, kwargs))
    if not _computes_values(func, args, kwargs, views=views):
        return False
    if any(type(tensor) not in _PLAIN or tensor.layout != torch.strided for tensor in tensors):
        return False
    if sum(tensor.numel() for tensor in tensors) > _MOST_ELEMENTS or any(tensor.is_meta for tensor in tensors):
        return False
    if not func._schema.is_mutable:
        return True
    pairs = ((a, b) for index, a in enumerate(tensors) for b in tensors[:index])
    return not any(a.numel() and b.numel() and share_storage(a, b) for a, b in pairs)


def reads_storage(func: Operator) -> bool:
    """Return whether an operator gives other values on contiguous copies of its arguments by definition."""
    return get_operator_family(str(func)) in _FACTS.reads_storage


def _list_tensors(arguments: Arguments) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]


def list_computed(func: Operator, result: object, arguments: Arguments) -> list[torch.Tensor | None]:
    """The tensors that a call computed: its results, and the arguments that it wrote to."""
    leaves = result if isinstance(result, tuple | list) else (result,)
    computed = [leaf if isinstance(leaf, torch.Tensor) else None for leaf in pytree.tree_leaves(leaves)]
    named = name_arguments(func, arguments)
    written = [argument.name for argument in func._schema.arguments if argument.is_write]
    held = [named[name] for name in written if isinstance(named.get(name), torch.Tensor)]
    return computed + [tensor for tensor in held if all(tensor is not mine for mine in computed)]


def measure_change(given: Arguments, own: Sequence[torch.Tensor | None], other: Sequence[torch.Tensor | None]) -> float:
    """The largest change of a value in units of its size; 0 where the shapes differ, which is no opinion on values.

    What vanishes beside the arguments is rounding of terms that cancel.
    """
    floating = [leaf for leaf in _list_tensors(given) if is_inexact(leaf)]
    least = VANISHING * max((metrics.rms(leaf) for leaf in floating), default=0.0)
    steps = [0.0]
    for mine, theirs in zip(own, other, strict=False):
        if mine is None or theirs is None or mine.shape != theirs.shape or not mine.numel():
            continue
        scale = max(metrics.rms(mine), metrics.rms(theirs))
        change = metrics.largest_distance(mine, theirs)
        if math.isinf(change):  # there may be no finite value that gives a size
            return math.inf
        steps.append(change / scale if scale and change > least else 0.0)
    return max(steps)


def _apply_formula(
    func: Operator, arguments: Arguments, own: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None] | None:
    """The values of the operator's formula, one for each of ``own``; None if there is no formula for the call."""
    family = get_operator_family(str(func))
    if func.namespace != "aten" or _rests_on_convention(arguments):
        return None
    arrays = pytree.tree_map_only(torch.Tensor, make_array, name_arguments(func, arguments, defaults=True))
    results = apply_formula(family, arrays) or apply_formula(family, arrays, DEFINITIONS)
    return _weigh_opinions(results, own)


def _weigh_opinions(results: Sequence[Any], own: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None] | None:
    """The results of a formula as tensors like ``own``, None for one without an opinion; None if there is none."""
    opinions: list[torch.Tensor | None] = []
    for mine, value in zip(own, (*results, *[None] * len(own)), strict=False):
        fits = mine is not None and value is not None and numpy.shape(value) == tuple(mine.shape)
        # NumPy makes floats of bools in half precision, which is no opinion.
        fits = fits and numpy.asarray(value).dtype not in (numpy.float16, numpy.float32)
        if mine is None or not fits:
            opinions.append(None)
            continue
        opinions.append(torch.as_tensor(numpy.array(value, order="C")).to(mine.dtype))
    return opinions if any(opinion is not None for opinion in opinions) else None


def _leave_conventions(
    opinions: Sequence[torch.Tensor | None],
    arguments: Arguments,
    own: Sequence[torch.Tensor | None],
    *,
    of_nan: bool = True,
) -> list[torch.Tensor | None]:
    """The opinions, with the kernel's values where torch chooses (`Opinion`); ``of_nan``: of NaN too."""
    tensors = _list_tensors(arguments)
    if of_nan and any(map(_has_nan, tensors)):
        return list(own)
    if not any(bool(tensor.isinf().any()) for tensor in tensors):
        return list(opinions)
    pairs = zip(opinions, own, strict=False)
    return [o if o is None or m is None else torch.where(o.isfinite() & m.isfinite(), o, m) for o, m in pairs]


def _has_nan(tensor: torch.Tensor) -> bool:
    return bool(tensor.isnan().any())


def _rests_on_convention(arguments: Arguments) -> bool:
    """Return whether a result is torch's own choice: of uint64, and of what an unsigned dtype cannot hold."""
    leaves = pytree.tree_leaves(arguments)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if any(tensor.dtype == torch.uint64 for tensor in tensors):
        return True
    unsigned = any(not tensor.dtype.is_signed and tensor.dtype != torch.bool for tensor in tensors)
    return unsigned and any(isinstance(leaf, int | float) and leaf < 0 for leaf in leaves)


def _is_plain(arguments: Arguments) -> bool:
    """Return whether all tensors are such as NumPy computes with in the way torch does, and their values tell."""
    tensors = _list_tensors(arguments)
    plain = (type(x) in _PLAIN and x.layout == torch.strided and not x.is_meta for x in tensors)
    wide = (not x.is_floating_point() or x.dtype == torch.float64 for x in tensors)
    few = sum(x.numel() for x in tensors) <= _MOST_ELEMENTS
    return few and all(plain) and all(wide) and not _rests_on_convention(arguments)


def has_derivative(operator: Operator) -> bool:
    """Return whether autograd has a formula for an operator; others are differentiated through their kernels."""
    return _has_kernel(operator, "Autograd")


def _has_kernel(operator: Operator, key: str) -> bool:
    schema = operator._schema
    name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)
