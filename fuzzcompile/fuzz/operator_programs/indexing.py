"""Productions that read or write by index, and productions that draw random numbers."""

from __future__ import annotations

from fuzzcompile.fuzz.generation.spec import Pen
from fuzzcompile.fuzz.operator_programs.creations import (
    choose_shape,
    choose_slice,
    format_number,
    replace_axis,
    swap_axes,
)
from fuzzcompile.fuzz.operator_programs.production import (
    FLOATING,
    Dim,
    ProgramValue,
    Scope,
    broadcast_shapes,
    find_least,
    find_result_dtype,
    production,
    rank_category,
)


def choose_places(pen: Pen, scope: Scope, size: Dim, *, distinct: bool = False) -> tuple[str, int]:
    """A tensor of places along an axis of that size, and their number; rarely one that many operators refuse."""
    most = find_least(size)
    if pen.chance(2):
        scope.refusable = True
        chosen = [pen.one_of((-1, most, -2))]
    else:
        chosen = [pen.number(most - 1) for _ in range(1 + pen.number(2))]
        chosen = list(dict.fromkeys(chosen)) if distinct else chosen
    return scope.name(f"torch.tensor({chosen}, {scope.device})"), len(chosen)


def _pick_axis(pen: Pen, scope: Scope) -> tuple[ProgramValue, int] | None:
    of = scope.some(lambda value: value.rank > 0)
    axis = None if of is None else scope.axis(of)
    return None if of is None or axis is None else (of, axis)


@production(5)
def taken(pen: Pen, scope: Scope) -> object:
    """Elements read by index: index_select, advanced indexing, gather with places made of the values."""
    picked = _pick_axis(pen, scope)
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
    embeds = how == "embedding" and of.rank == 2 and of.is_floating
    at, count = choose_places(pen, scope, of.shape[0 if embeds else axis])
    counted = tuple(count for _ in of.shape[axis])
    if embeds:
        return scope.make(f"F.embedding({at}, {of.name})", (counted, of.shape[1]), of.dtype, of)
    shape = replace_axis(of.shape, axis, counted)
    if how == "brackets":
        return scope.make(f"{of.name}[..., {at}{', :' * (-axis - 1)}]", shape, of.dtype, of)
    return scope.make(f"torch.index_select({of.name}, {axis}, {at})", shape, of.dtype, of)


@production(6)
def indexed_write(pen: Pen, scope: Scope) -> object:
    """Elements replaced or added to by index in a copy: index_put, index_add, index_copy, index_fill.

    Places that occur twice are drawn only where their order has no effect.
    """
    picked = _pick_axis(pen, scope)
    if picked is None or picked[0].dtype == "bool":
        return None
    of, axis = picked
    how = pen.one_of(("index_add", "index_fill", "index_copy", "index_put"))
    accumulates = how == "index_add" or (how == "index_put" and pen.chance(60))
    at, count = choose_places(pen, scope, of.shape[axis], distinct=not accumulates)
    if how == "index_fill":
        return scope.make(f"{of.name}.index_fill({axis}, {at}, {pen.one_of((1, 0))})", of.shape, of.dtype, of)
    if how == "index_put":
        rows = f"{of.name}.transpose(0, {axis})"
        value = f"{of.name}.new_ones(())"
        made = f"{rows}.index_put(({at},), {value}, accumulate={accumulates})"
        return scope.make(made, swap_axes(of.shape, 0, axis), of.dtype, of)
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
        if find_least(of.shape[axis]) < 2:
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


def _assign(pen: Pen, scope: Scope, target: ProgramValue) -> None:
    """Write a number, another value or rows of its own to a slice of a value that may be written to."""
    taken = choose_slice(pen, scope, target)
    if taken is None:
        return
    index, shape = taken
    source = scope.some(
        lambda value: (
            broadcast_shapes(value.shape, shape) == shape
            and rank_category(value.dtype) <= rank_category(target.dtype)
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
        number = pen.one_of((2, 0.5, -1) if target.is_floating else (2, 3))
        scope.say(f"{target.name}.{pen.one_of(('add_', 'mul_', 'sub_'))}({format_number(number)})")
    return True


def _move(pen: Pen, scope: Scope, target: ProgramValue) -> None:
    """Write one window of a value's memory to another, perhaps overlapping one, through a copy or a computation.

    Without either the result would depend on the order of the elements, which eager mode leaves undefined.
    """
    axis = scope.axis(target, 2)
    if axis is None:
        scope.say(f"{target.name}.zero_()")
        return
    apart = 1 + pen.number(min(2, find_least(target.shape[axis]) - 1) - 1)
    length = scope.text(target.shape[axis]) + f" - {apart}"
    if len(set(target.shape[axis])) == 1:
        length = str(target.shape[axis][0] - apart)
    to, source = pen.one_of(((apart, 0), (0, apart), (0, 0)))
    made = pen.one_of((".clone()", " * 1", f".flip({axis})", " + 1", ".contiguous().clone()"))
    made = ".clone()" if target.dtype == "bool" and made[0] == " " else made
    window = f"{target.name}.narrow({axis}, {{}}, {length})"
    write = "copy_" if target.dtype == "bool" else pen.one_of(("copy_", "add_"))
    scope.say(f"{window.format(to)}.{write}({window.format(source)}{made})")


def _write_value(pen: Pen, scope: Scope, target: ProgramValue, how: str) -> object:
    def fits(value: ProgramValue) -> bool:
        same_memory = value.root == target.root and value.name != target.name
        dtype = value.dtype if how == "copy" else find_result_dtype(target, value)
        return (
            not same_memory
            and broadcast_shapes(value.shape, target.shape) == target.shape
            and rank_category(dtype) <= rank_category(target.dtype)
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


# Productions that draw random numbers: values of their own, masks of a value, and writes through any view.

DRAWING = ("random_value", "random_like", "random_mask", "random_write", "random_order")
"""Names of the productions whose statements draw."""
_FLOATS = ("float32", "bfloat16", "float64", "float16")
# Methods that fill a tensor in place, and those of them that integers have too.
_FILLS: tuple[str, ...] = (
    "normal_()",
    "uniform_(-1, 1)",
    "normal_(1.0, 2.0)",
    "exponential_(2.0)",
    "bernoulli_(0.3)",
    "random_(0, 9)",
)
_FILLS += ("log_normal_()", "cauchy_().clamp_(-9, 9)", "geometric_(0.4)")
_INTEGER_FILLS = ("random_(0, 9)", "bernoulli_(0.3)", "geometric_(0.4)")


@production(3)
def random_value(pen: Pen, scope: Scope) -> object:
    """A tensor of random numbers, of any floating dtype or of integers."""
    shape = choose_shape(pen, scope)
    if pen.chance(25):
        dtype = pen.one_of(("int64", "int32", "uint8"))
        drawn = f"torch.randint(0, 9, {scope.sizes(shape)}, dtype=torch.{dtype}, {scope.device})"
        return scope.make(drawn, shape, dtype, smooth=False)
    dtype, function = pen.one_of(_FLOATS), pen.one_of(("rand", "randn"))
    drawn = f"torch.{function}({scope.sizes(shape)}, dtype=torch.{dtype}, {scope.device})"
    return scope.make(drawn, shape, dtype)


@production(2)
def random_like(pen: Pen, scope: Scope) -> object:
    """Random numbers in the form of a value, whatever its layout is."""
    of = scope.pick_floating()
    if of is None:
        return None
    function = pen.one_of(("rand_like", "randn_like", "randint_like", "bernoulli", "normal"))
    drawn = {
        "randint_like": f"torch.randint_like({of.name}, 7)",
        "bernoulli": f"torch.bernoulli({of.name}.sigmoid())",
        "normal": f"torch.normal({of.name}, {of.name}.abs() + 1)",
    }.get(function, f"torch.{function}({of.name})")
    return scope.make(drawn, of.shape, of.dtype, of, smooth=function in ("bernoulli", "normal"))


@production(3)
def random_mask(pen: Pen, scope: Scope) -> object:
    """A value with some of its elements dropped or scaled at random."""
    of = scope.pick_floating()
    if of is None:
        return None
    functions = ["dropout", "alpha_dropout"]
    functions += ["rrelu"] if of.dtype in ("float32", "float64") else []  # eager has no kernel for the short ones
    functions += ["dropout1d", "feature_alpha_dropout"] if of.rank == 3 else []
    functions += ["dropout2d"] if of.rank == 4 else []
    function = pen.one_of(functions)
    rest = "training=True" if function == "rrelu" else f"{pen.one_of((0.5, 0.1, 0.0, 1.0))}, training=True"
    return scope.make(f"torch.nn.functional.{function}({of.name}, {rest})", of.shape, of.dtype, of)


@production(2)
def random_write(pen: Pen, scope: Scope) -> object:
    """Random numbers written over a value, whole or through a view of it."""
    target = scope.some(lambda value: scope.writable(value) and value.dtype != "bool")
    if target is None:
        return None
    fill = pen.one_of(_FILLS if target.dtype in FLOATING else _INTEGER_FILLS)
    views = [""]
    views += [".transpose(-1, -2)"] if target.rank > 1 else []
    views += ["[..., ::2]", "[..., 1:]"] if target.rank and find_least(target.shape[-1]) > 1 else []
    scope.say(f"{target.name}{pen.one_of(views)}.{fill}")
    return True


@production(1)
def random_order(pen: Pen, scope: Scope) -> object:
    """The rows of a value in a random order."""
    of = scope.some(lambda value: value.rank > 0 and find_least(value.shape[0]) > 0)
    if of is None:
        return None
    order = f"torch.randperm({scope.text(of.shape[0])}, {scope.device})"
    return scope.make(f"{of.name}[{order}]", of.shape, of.dtype, of)
