"""The reference of ``DTensor``s: what an operator gives on the whole tensors that the parts make up.

Compiled programs and eager mode share DTensor's Python: the rules that choose the placements of an operator, and the
redistribution between them. What is wrong there is wrong on both sides alike. Here every operator of a float64 run in
eager mode is computed a second time, by each process alone, on the whole tensors, and every redistribution has to leave
the whole as it was. The parts travel as bytes, and are put together by the meaning of their placements alone: of
DTensor's code and of functional collectives nothing is used.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from fuzzcompile.compiler.collectives import REDUCTIONS
from fuzzcompile.compiler.operators.decompositions import leaves_unwritten
from fuzzcompile.compiler.operators.operator_application import Arguments, is_drawing
from fuzzcompile.compiler.operators.second_reference import NO_ANSWER, list_computed, measure_change
from fuzzcompile.compiler.watch.rule_labels import find_source
from fuzzcompile.model.thresholds import SEMANTIC_STEP
from fuzzcompile.run import runs
from fuzzcompile.run.arithmetic_modes import Float64Mode
from fuzzcompile.run.case import Case
from fuzzcompile.run.case_program import build
from fuzzcompile.run.metrics import have_same_values
from fuzzcompile.run.observation import Observation
from fuzzcompile.run.ranks import merge_ranks, on_all_ranks
from fuzzcompile.run.sharded_tensors import is_in_group, is_sharded, read_own
from fuzzcompile.run.tensors import Operator, is_higher_order
from fuzzcompile.run.torch_attributes import ReplacedAttribute

REDISTRIBUTION = ReplacedAttribute(
    "torch.distributed.tensor._redistribute",
    "redistribute_local_tensor",
    optional=True,
    unprobed="Where a torch redistributes elsewhere, redistribution is not held against its meaning.",
)
REDISTRIBUTE = "redistribute"
# By the class of a placement: those derived from it mean something else (the parts of a masked embedding).
_KNOWN = ("Replicate", "Shard", "Partial")
# Elements of the whole tensors of one call from which on it is not computed again.
_MOST_ELEMENTS = 2**20


@dataclass(frozen=True)
class ShardingFault:
    """An operator, or ``redistribute``, whose parts do not make up what it gives on whole tensors.

    ``layouts`` has the sizes and placements of its operands, and of what it gave; ``step`` is the largest difference in
    units of the values' size, infinite where processes differ that should hold the same. ``source`` and ``line`` are
    where the rule for the operator's placements is defined.
    """

    operator: str
    layouts: str
    step: float
    source: str | None
    line: int | None

    def __str__(self) -> str:
        if math.isinf(self.step):
            return f"eager's {self.operator} gives processes that should hold the same other values ({self.layouts})"
        return f"eager's {self.operator} contradicts itself on the whole tensors ({self.layouts})"


def may_shard() -> bool:
    """Return whether programs here can have ``DTensor``s in parts: this process is one of several, all of them real."""
    if not is_in_group() or REDISTRIBUTION.module not in sys.modules:
        return False
    return torch.distributed.get_world_size() > 1 and torch.distributed.get_backend() != "fake"


def run_beside_wholes(
    case: Case, device: torch.device, *, repaired: str | None = None
) -> tuple[Observation, ShardingFault | None]:
    """Run the case in float64 on all ranks, each call on ``DTensor``s held against the same on whole tensors.

    Results of the operator that is ``repaired`` are those on whole tensors.

    Returns:
        What all ranks saw, and the first fault of another operator; None if there is none.

    Raises:
        RankLost: another process is gone.
    """
    with on_all_ranks(f"{__name__}:{run_beside_wholes.__name__}", case, repaired=repaired):
        program = build(case, device, double=True, streamed=True)
        mode = _WholeTensors(native=program.dtype, repaired=repaired)
        with runs.interpret_compiled_operators(), REDISTRIBUTION.replace_if_loaded(mode.redistribute):
            seen = runs.observe(case, program, program.model, around=mode)
    return merge_ranks(seen), mode.fault


class _WholeTensors(Float64Mode):  # type: ignore[no-untyped-call]
    """Compare each operator on ``DTensor``s of a float64 run with the same on whole tensors, up to the first fault."""

    def __init__(self, *, native: torch.dtype, repaired: str | None) -> None:
        super().__init__(keep_casts=True, native=native)
        self.fault: ShardingFault | None = None
        self._repaired = repaired
        self._original = getattr(REDISTRIBUTION.find_owner(), REDISTRIBUTION.leaf)
        self._is_inside = False

    def __torch_dispatch__(
        self, func: Operator, types: Collection[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        given = (args, kwargs or {})
        tensors = [leaf for leaf in pytree.tree_leaves(given) if is_sharded(leaf)]
        if not tensors or self._is_inside or is_higher_order(func):
            return super().__torch_dispatch__(func, types, args, kwargs)
        is_comparable = not is_drawing(func, *given) and not leaves_unwritten(func)
        wholes = _make_wholes(tensors) if is_comparable else None
        replaced = None if wholes is None else _replace(given, dict(zip(map(id, tensors), wholes, strict=True)))
        self._is_inside = True
        try:
            with self:
                result = func(*given[0], **given[1])
        finally:
            self._is_inside = False
        if replaced is None:
            return result
        try:
            computed = super().__torch_dispatch__(func, (), *replaced)
        except NO_ANSWER:  # it cannot be called on whole tensors
            return result
        self._compare(func, tensors, replaced, list_computed(func, result, given), computed)
        return result

    def _compare(
        self,
        func: Operator,
        operands: Sequence[Any],
        wholes: Arguments,
        own: Sequence[torch.Tensor | None],
        computed: object,
    ) -> None:
        expected = list_computed(func, computed, wholes)
        pairs: list[tuple[Any, torch.Tensor]] = [
            (mine, right) for mine, right in zip(own, expected, strict=False) if is_sharded(mine) and right is not None
        ]
        if not pairs:
            return
        parts = _gather([mine._local_tensor for mine, _ in pairs], pairs[0][0].device_mesh)
        for index, (mine, right) in enumerate(pairs):
            step = _measure(parts, index, mine, right, wholes)
            if step is not None and str(func) == self._repaired:
                mine._local_tensor.copy_(_cut(right, parts, index, mine))
            elif step is not None and self.fault is None:
                layouts = f"{_describe(operands)} -> {_describe([mine])}"
                self.fault = ShardingFault(str(func), layouts, step, *_find_rule(func))

    def redistribute(self, part: torch.Tensor, current: Any, target: Any, **options: Any) -> torch.Tensor:
        """Redistribute as torch does, and hold the whole behind it against the whole before."""
        made: torch.Tensor = self._original(part, current, target, **options)
        is_made_partial = any(
            after.is_partial() and not before.is_partial()
            for before, after in zip(current.placements, target.placements, strict=True)
        )  # in a backward pass of some releases such parts are left as they are
        mine = current.mesh.get_coordinate() is not None and _is_readable(current) and _is_readable(target)
        if not mine or is_made_partial or current.shape.numel() > _MOST_ELEMENTS:
            return made
        parts = _gather([part, made], current.mesh)
        before = _make_whole(parts, 0, current)
        if before is None or not before.agree:
            return made
        step = _measure(parts, 1, target, before.value, ((before.value,), {}))
        if step is not None and self._repaired == REDISTRIBUTE:
            return _cut(before.value, parts, 1, target)
        if step is not None and self.fault is None:
            layouts = f"{_describe([current])} -> {_describe([target])}"
            self.fault = ShardingFault(REDISTRIBUTE, layouts, step, *find_source(self._original))
        return made


def _measure(parts: Any, index: int, spec: Any, right: torch.Tensor, given: Arguments) -> float | None:
    """How far the whole that parts make up is from the right one, if it is; infinite where its copies differ."""
    whole = _make_whole(parts, index, spec) if _is_readable(spec) else None
    if whole is None:
        return None
    step = measure_change(given, [whole.value], [right]) if whole.agree else math.inf
    return step if step > SEMANTIC_STEP else None


def _replace(given: Arguments, wholes: Mapping[int, torch.Tensor]) -> Arguments:
    """The arguments with whole tensors in the place of sharded ones, and copies in that of others."""

    def change(leaf: torch.Tensor) -> torch.Tensor:
        return wholes[id(leaf)] if id(leaf) in wholes else leaf.clone()

    replaced: Arguments = pytree.tree_map_only(torch.Tensor, change, given)
    return replaced


def _make_wholes(tensors: Sequence[Any]) -> list[torch.Tensor] | None:
    """The whole tensors; None unless all can be had, of one mesh, and say what they are on every process alike."""
    meshes = {tensor.device_mesh for tensor in tensors}
    large = sum(tensor.numel() for tensor in tensors) > _MOST_ELEMENTS
    if len(meshes) > 1 or large or not all(_is_readable(tensor) for tensor in tensors):
        return None
    if tensors[0].device_mesh.get_coordinate() is None:  # this process holds nothing of it
        return None
    parts = _gather([tensor._local_tensor for tensor in tensors], tensors[0].device_mesh)
    wholes = [_make_whole(parts, index, tensor) for index, tensor in enumerate(tensors)]
    values = [whole.value for whole in wholes if whole is not None and whole.agree]
    return values if len(values) == len(tensors) else None


@dataclass(frozen=True)
class _Whole:
    """A tensor that parts make up; ``agree`` says whether processes that should hold the same do."""

    value: torch.Tensor
    agree: bool = True


def _is_readable(spec: Any) -> bool:
    """Return whether placements, those of a ``DTensorSpec`` or a ``DTensor``, say what the parts are to the whole."""
    return all(
        type(placed).__name__ in _KNOWN and getattr(placed, "reduce_op", "sum") in REDUCTIONS
        for placed in spec.placements
    )


def _gather(own: Sequence[torch.Tensor], mesh: Any) -> Any:
    """These tensors of all processes of a mesh, in lists that are nested as deep as it has dimensions."""
    with _disable_current_modes(), torch.no_grad():
        held: Any = [read_own(part) for part in own]
        for dimension in reversed(range(mesh.ndim)):
            gathered: list[Any] = [None] * mesh.size(dimension)
            torch.distributed.all_gather_object(gathered, held, group=mesh.get_group(dimension))
            held = gathered
    return held


def _make_whole(parts: Any, index: int, spec: Any) -> _Whole | None:
    """The whole that tensors with that index among the parts make up; None if it has another shape."""
    whole = _join(parts, index, spec.placements)
    return whole if whole is not None and whole.value.shape == spec.shape else None


def _join(parts: Any, index: int, placements: Sequence[Any]) -> _Whole | None:
    if not placements:
        return _Whole(parts[index].clone())
    joined = [_join(part, index, placements[1:]) for part in parts]
    wholes = [whole for whole in joined if whole is not None]
    if len(wholes) < len(joined):
        return None
    agree, values = all(whole.agree for whole in wholes), [whole.value for whole in wholes]
    try:
        if placements[0].is_replicate():
            return _Whole(values[0], agree and all(have_same_values(values[0], value) for value in values[1:]))
        if placements[0].is_shard():
            return _Whole(torch.cat(values, placements[0].dim), agree)
        return _Whole(REDUCTIONS[placements[0].reduce_op](torch.stack(values)), agree)
    except (RuntimeError, IndexError):  # shapes that do not fit each other
        return None


def _cut(whole: torch.Tensor, parts: Any, index: int, spec: Any) -> torch.Tensor:
    """The part of a whole tensor that this process holds, in the sizes that the parts have."""
    places = zip(spec.placements, (getattr(spec, "device_mesh", None) or spec.mesh).get_coordinate(), strict=True)
    for number, (placed, mine) in enumerate(places, 1):
        if placed.is_shard():
            joined = [_join(part, index, spec.placements[number:]) for part in parts]
            sizes = [0 if each is None else each.value.shape[placed.dim] for each in joined]
            whole = whole.narrow(placed.dim, sum(sizes[:mine]), sizes[mine])
        elif placed.is_partial() and mine and placed.reduce_op in ("sum", "product"):  # the first process has all of it
            whole = torch.full_like(whole, placed.reduce_op == "product")
        parts = parts[mine]
    return whole.clone()


def _describe(specs: Sequence[Any]) -> str:
    return ", ".join(f"{list(spec.shape)} {' '.join(map(repr, spec.placements))}" for spec in specs)


def _find_rule(func: Operator) -> tuple[str | None, int | None]:
    """File and line of the function that chooses the placements of an operator's operands and results."""
    propagator = sys.modules["torch.distributed.tensor"].DTensor._op_dispatcher.sharding_propagator
    for name in ("op_single_dim_strategy_funcs", "op_strategy_funcs", "op_to_rules"):
        rule = getattr(propagator, name, {}).get(func)
        if rule is not None:
            return find_source(getattr(rule, "func", rule))
    return None, None
