"""Productions that read or write by index, in values of their own or in place."""

from __future__ import annotations

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.programs.creations import literal
from fuzzcompile.generation.programs.production import production
from fuzzcompile.generation.programs.scope import Scope
from fuzzcompile.generation.programs.values import Dim, Value, broadcast, category, least, result_dtype
from fuzzcompile.generation.programs.views import replaced, sliced, swapped


def places(pen: Pen, scope: Scope, size: Dim, *, distinct: bool = False) -> tuple[str, int]:
    """A tensor of places along an axis of that size, and their number; rarely one that many operators refuse."""
    most = least(size)
    if pen.chance(2):
        scope.refusable = True
        chosen = [pen.one_of((-1, most, -2))]
    else:
        chosen = [pen.number(most - 1) for _ in range(1 + pen.number(2))]
        chosen = list(dict.fromkeys(chosen)) if distinct else chosen
    return scope.name(f"torch.tensor({chosen}, {scope.device})"), len(chosen)


def _picked(pen: Pen, scope: Scope) -> tuple[Value, int] | None:
    of = scope.some(lambda value: value.rank > 0)
    axis = None if of is None else scope.axis(of)
    return None if of is None or axis is None else (of, axis)


@production(5)
def taken(pen: Pen, scope: Scope) -> object:
    """Elements read by index: index_select, advanced indexing, gather with places made of the values."""
    picked = _picked(pen, scope)
    if picked is None:
        return None
    of, axis = picked
    how = pen.one_of(("index_select", "brackets", "gather", "take_along_dim", "embedding"))
    if how in ("gather", "take_along_dim"):
        order = f"{of.name}.argsort(dim={axis}{pen.one_of(('', ', descending=True', ', stable=True'))})"
        half = " // 2" if pen.chance(40) else ""
        call = (
            f"{of.name}.gather({axis}, {order}{half})"
            if how == "gather"
            else f"torch.take_along_dim({of.name}, {order}{half}, {axis})"
        )
        return scope.make(call, of.shape, of.dtype, of)
    embeds = how == "embedding" and of.rank == 2 and of.floating
    at, count = places(pen, scope, of.shape[0 if embeds else axis])
    counted = tuple(count for _ in of.shape[axis])
    if embeds:
        return scope.make(f"F.embedding({at}, {of.name})", (counted, of.shape[1]), of.dtype, of)
    shape = replaced(of.shape, axis, counted)
    if how == "brackets":
        return scope.make(f"{of.name}[..., {at}{', :' * (-axis - 1)}]", shape, of.dtype, of)
    return scope.make(f"torch.index_select({of.name}, {axis}, {at})", shape, of.dtype, of)


@production(6)
def indexed_write(pen: Pen, scope: Scope) -> object:
    """Elements replaced or added to by index in a copy: index_put, index_add, index_copy, index_fill.

    Places that occur twice are drawn only where their order has no effect.
    """
    picked = _picked(pen, scope)
    if picked is None or picked[0].dtype == "bool":
        return None
    of, axis = picked
    how = pen.one_of(("index_add", "index_fill", "index_copy", "index_put"))
    accumulates = how == "index_add" or (how == "index_put" and pen.chance(60))
    at, count = places(pen, scope, of.shape[axis], distinct=not accumulates)
    if how == "index_fill":
        return scope.make(f"{of.name}.index_fill({axis}, {at}, {pen.one_of((1, 0))})", of.shape, of.dtype, of)
    if how == "index_put":
        rows = f"{of.name}.transpose(0, {axis})"
        value = f"{of.name}.new_ones(())"
        made = f"{rows}.index_put(({at},), {value}, accumulate={accumulates})"
        return scope.make(made, swapped(of.shape, 0, axis), of.dtype, of)
    source = f"{of.name}.narrow({axis}, 0, 1)"
    if count > 1:
        source += f".repeat_interleave({count}, {axis})"
    more = f", alpha={pen.one_of((2, -1, 0))}" if how == "index_add" and pen.chance(40) else ""
    return scope.make(f"torch.{how}({of.name}, {axis}, {at}, {source}{more})", of.shape, of.dtype, of)


@production(5)
def scattered(pen: Pen, scope: Scope) -> object:
    """Scattered by places that come from values: sums, extremes, a number, rows of one hot element."""
    of = scope.some(lambda value: value.rank > 0 and value.dtype != "bool")
    axis = None if of is None else scope.axis(of)
    if of is None or axis is None:
        return None
    how = pen.one_of(("value", "add", "reduce", "permuted"))
    if how == "value":
        target = scope.some(lambda value: value.shape == of.shape) or of
        number = pen.one_of((1, 2, 3)) if target.dtype != "bool" else 1
        at = f"{of.name}.{pen.one_of(('argmax', 'argmin'))}({axis}, keepdim=True)"
        return scope.make(f"{target.name}.scatter({axis}, {at}, {number})", target.shape, target.dtype, target)
    at = f"{of.name}.argsort(dim={axis}, stable=True)"
    if how == "permuted":
        return scope.make(f"{of.name}.scatter({axis}, {at}, {of.name}.flip({axis}))", of.shape, of.dtype, of)
    if how == "add" or of.gradient:
        return scope.make(f"{of.name}.scatter_add({axis}, {at} // 2, {of.name})", of.shape, of.dtype, of)
    kind, include = pen.one_of(("amax", "amin", "sum")), pen.chance(50)
    made = f'{of.name}.scatter_reduce({axis}, {at} // 2, {of.name}, "{kind}", include_self={include})'
    return scope.make(made, of.shape, of.dtype, of)


@production(6)
def part_replaced(pen: Pen, scope: Scope) -> object:
    """A copy with a slice, a row or the diagonal replaced, by a scatter function or by assignment."""
    of = scope.some(lambda value: value.rank > 1)
    if of is None:
        return None
    how = pen.one_of(("assign", "slice_scatter", "select_scatter", "diagonal_scatter"))
    if how == "select_scatter":
        at = pen.one_of((0, -1))
        row = f"{of.name}.select(-2, 0)"
        return scope.make(f"torch.select_scatter({of.name}, {row}, -2, {at})", of.shape, of.dtype, of)
    if how == "diagonal_scatter":
        diagonal = f"{of.name}.diagonal(0, -2, -1).flip(-1)"
        return scope.make(f"torch.diagonal_scatter({of.name}, {diagonal}, 0, -2, -1)", of.shape, of.dtype, of)
    if how == "slice_scatter":
        axis, (start, step) = pen.one_of((-1, -2, 0)), pen.one_of(((0, 1), (1, 1), (0, 2), (-2, 1)))
        if least(of.shape[axis]) < 2:
            start = 0
        index = f"..., {start}::{step}{', :' * (-axis - 1)}" if axis < 0 else f"{start}::{step}"
        part = f"{of.name}.flip({axis})[{index}]"
        more = f", {start}, step={step}"
        return scope.make(f"torch.slice_scatter({of.name}, {part}, {axis}{more})", of.shape, of.dtype, of)
    copy = scope.make(f"{of.name}.clone()", of.shape, of.dtype, of)
    if copy is None:
        return None
    _assign(pen, scope, copy)
    return True


def _assign(pen: Pen, scope: Scope, target: Value) -> None:
    """Write a number, another value or rows of its own to a slice of a value that may be written to."""
    taken = sliced(pen, scope, target)
    if taken is None:
        return
    index, shape = taken
    source = scope.some(
        lambda value: (
            broadcast(value.shape, shape) == shape
            and category(value.dtype) <= category(target.dtype)
            and value.root != target.root
        )
    )
    how = pen.one_of(("number", "value", "own", "add"))
    if how == "value" and source is not None:
        scope.say(f"{target.name}[{index}] = {source.name}")
    elif how == "own":
        scope.say(f"{target.name}[{index}] = {target.name}.flip(-1)[{index}]")
    elif how == "add" and target.dtype != "bool":
        scope.say(f"{target.name}[{index}] += {pen.one_of((1, 2))}")
    else:
        scope.say(f"{target.name}[{index}] = {int(pen.one_of((0, 1))) if target.dtype != 'bool' else True}")


@production(9)
def write(pen: Pen, scope: Scope) -> object:
    """A value, perhaps an input or one that others share memory with, changed in place, whole or through a view."""
    target = scope.some(scope.writable)
    if target is None:
        return None
    how = pen.one_of(("number", "value", "slice", "view", "copy", "fill", "move"))
    if how == "slice" and target.rank:
        _assign(pen, scope, target)
    elif how == "view" and target.rank > 1 and target.dtype != "bool":
        scope.say(f"{target.name}.transpose(-1, -2).mul_({pen.one_of((2, -1, 0))})")
    elif how == "move" and target.rank:
        _move(pen, scope, target)
    elif how in ("value", "copy"):
        return _write_value(pen, scope, target, how)
    elif target.dtype == "bool" or how == "fill":
        scope.say(f"{target.name}.{pen.one_of(('zero_()', 'fill_(1)', 'logical_not_()'))}")
    else:
        number = pen.one_of((2, 0.5, -1) if target.floating else (2, 3))
        scope.say(f"{target.name}.{pen.one_of(('add_', 'mul_', 'sub_'))}({literal(number)})")
    return True


def _move(pen: Pen, scope: Scope, target: Value) -> None:
    """Write one window of a value's memory to another, perhaps overlapping one, through a copy or a computation.

    Without either the result would depend on the order of the elements, which eager mode leaves undefined.
    """
    axis = scope.axis(target, 2)
    if axis is None:
        scope.say(f"{target.name}.zero_()")
        return
    apart = 1 + pen.number(min(2, least(target.shape[axis]) - 1) - 1)
    length = scope.text(target.shape[axis]) + f" - {apart}"
    if len(set(target.shape[axis])) == 1:
        length = str(target.shape[axis][0] - apart)
    to, source = pen.one_of(((apart, 0), (0, apart), (0, 0)))
    made = pen.one_of((".clone()", " * 1", f".flip({axis})", " + 1", ".contiguous().clone()"))
    made = ".clone()" if target.dtype == "bool" and made[0] == " " else made
    window = f"{target.name}.narrow({axis}, {{}}, {length})"
    write = "copy_" if target.dtype == "bool" else pen.one_of(("copy_", "add_"))
    scope.say(f"{window.format(to)}.{write}({window.format(source)}{made})")


def _write_value(pen: Pen, scope: Scope, target: Value, how: str) -> object:
    def fits(value: Value) -> bool:
        same_memory = value.root == target.root and value.name != target.name
        dtype = value.dtype if how == "copy" else result_dtype(target, value)
        return (
            not same_memory
            and broadcast(value.shape, target.shape) == target.shape
            and category(dtype) <= category(target.dtype)
        )

    source = scope.some(fits)
    if source is None:
        return None
    if how == "copy":
        scope.say(f"{target.name}.copy_({source.name})")
    elif target.dtype == "bool":
        scope.say(f"{target.name}.logical_or_({source.name})")
    else:
        scope.say(f"{target.name}.{pen.one_of(('add_', 'mul_'))}({source.name})")
    return True
