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
    NothingFits,
    ProgramValue,
    Scope,
    broadcast_shapes,
    fill_size,
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


@production(5)
def taken(pen: Pen, scope: Scope) -> object:
    """Elements read by index: index_select, advanced indexing, gather with places made of the values."""
    of, axis = scope.pick_with_axis()
    how = pen.one_of(("index_select", "brackets", "gather", "take_along_dim", "embedding"))
    if how in ("gather", "take_along_dim"):
        order = f"{of.name}.argsort(dim={axis}{pen.one_of(('', ', descending=True', ', stable=True'))})"
        order += " // 2" if pen.chance(40) else ""
        form = "{x}.gather({axis}, {order})" if how == "gather" else "torch.take_along_dim({x}, {order}, {axis})"
        return scope.make_alike(form, of, axis=axis, order=order)
    embeds = how == "embedding" and of.rank == 2 and of.is_floating
    at, count = choose_places(pen, scope, of.shape[0 if embeds else axis])
    counted = fill_size(count, of.shape[axis])
    if embeds:
        return scope.make(f"F.embedding({at}, {of.name})", (counted, of.shape[1]), of.dtype, of)
    brackets = f"{of.name}[..., {at}{', :' * (-axis - 1)}]"
    call = brackets if how == "brackets" else f"torch.index_select({of.name}, {axis}, {at})"
    return scope.make(call, replace_axis(of.shape, axis, counted), of.dtype, of)


@production(6)
def indexed_write(pen: Pen, scope: Scope) -> object:
    """Elements replaced or added to by index in a copy: index_put, index_add, index_copy, index_fill.

    Places that occur twice are drawn only where their order has no effect.
    """
    of, axis = scope.pick_with_axis()
    if of.dtype == "bool":
        return None
    how = pen.one_of(("index_add", "index_fill", "index_copy", "index_put"))
    accumulates = how == "index_add" or (how == "index_put" and pen.chance(60))
    at, count = choose_places(pen, scope, of.shape[axis], distinct=not accumulates)
    if how == "index_fill":
        return scope.make_alike(
            "{x}.index_fill({axis}, {at}, {number})", of, axis=axis, at=at, number=pen.one_of((1, 0))
        )
    if how == "index_put":
        put = f"index_put(({at},), {of.name}.new_ones(()), accumulate={accumulates})"
        return scope.make(f"{of.name}.transpose(0, {axis}).{put}", swap_axes(of.shape, 0, axis), of.dtype, of)
    source = f"{of.name}.narrow({axis}, 0, 1)" + (f".repeat_interleave({count}, {axis})" if count > 1 else "")
    more = f", alpha={pen.one_of((2, -1, 0))}" if how == "index_add" and pen.chance(40) else ""
    return scope.make_alike("torch.{how}({x}, {axis}, {at}, {source}{more})", of, how=how, axis=axis, at=at,
                            source=source, more=more)  # fmt: skip


@production(5)
def scattered(pen: Pen, scope: Scope) -> object:
    """Scattered by places that come from values: sums, extremes, a number, rows of one hot element."""
    of, axis = scope.pick_with_axis(lambda value: value.dtype != "bool")
    how = pen.one_of(("value", "add", "reduce", "permuted"))
    if how == "value":
        target = scope.some(lambda value: value.shape == of.shape) or of
        number = pen.one_of((1, 2, 3)) if target.dtype != "bool" else 1
        at = f"{of.name}.{pen.one_of(('argmax', 'argmin'))}({axis}, keepdim=True)"
        return scope.make_alike("{x}.scatter({axis}, {at}, {number})", target, axis=axis, at=at, number=number)
    at = f"{of.name}.argsort(dim={axis}, stable=True)"
    if how == "permuted":
        return scope.make_alike("{x}.scatter({axis}, {at}, {x}.flip({axis}))", of, axis=axis, at=at)
    if how == "add" or of.gradient:
        return scope.make_alike("{x}.scatter_add({axis}, {at} // 2, {x})", of, axis=axis, at=at)
    kind, include = pen.one_of(("amax", "amin", "sum")), pen.chance(50)
    form = '{x}.scatter_reduce({axis}, {at} // 2, {x}, "{kind}", include_self={include})'
    return scope.make_alike(form, of, axis=axis, at=at, kind=kind, include=include)


@production(6)
def part_replaced(pen: Pen, scope: Scope) -> object:
    """A copy with a slice, a row or the diagonal replaced, by a scatter function or by assignment."""
    of = scope.pick(lambda value: value.rank > 1)
    how = pen.one_of(("assign", "slice_scatter", "select_scatter", "diagonal_scatter"))
    if how == "select_scatter":
        return scope.make_alike("torch.select_scatter({x}, {x}.select(-2, 0), -2, {at})", of, at=pen.one_of((0, -1)))
    if how == "diagonal_scatter":
        return scope.make_alike("torch.diagonal_scatter({x}, {x}.diagonal(0, -2, -1).flip(-1), 0, -2, -1)", of)
    if how == "slice_scatter":
        axis, (start, step) = pen.one_of((-1, -2, 0)), pen.one_of(((0, 1), (1, 1), (0, 2), (-2, 1)))
        start = start if find_least(of.shape[axis]) > 1 else 0
        index = f"..., {start}::{step}{', :' * (-axis - 1)}" if axis < 0 else f"{start}::{step}"
        form = "torch.slice_scatter({x}, {x}.flip({axis})[{index}], {axis}, {start}, step={step})"
        return scope.make_alike(form, of, axis=axis, index=index, start=start, step=step)
    copy = scope.make_alike("{x}.clone()", of)
    if copy is None:
        return None
    _assign(pen, scope, copy)
    return True


def _assign(pen: Pen, scope: Scope, target: ProgramValue) -> None:
    """Write a number, another value or rows of its own to a slice of a value that may be written to."""
    try:
        index, shape = choose_slice(pen, scope, target)
    except NothingFits:
        return
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
    target = scope.pick(scope.writable)
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
    try:
        axis = scope.pick_axis(target, 2)
    except NothingFits:
        scope.say(f"{target.name}.zero_()")
        return
    size, is_bool = target.shape[axis], target.dtype == "bool"
    apart = 1 + pen.number(min(2, find_least(size) - 1) - 1)
    length = str(size[0] - apart) if len(set(size)) == 1 else f"{scope.text(size)} - {apart}"
    to, source = pen.one_of(((apart, 0), (0, apart), (0, 0)))
    made = pen.one_of((".clone()", " * 1", f".flip({axis})", " + 1", ".contiguous().clone()"))
    made = ".clone()" if is_bool and made[0] == " " else made
    window = f"{target.name}.narrow({axis}, {{}}, {length})"
    write = "copy_" if is_bool else pen.one_of(("copy_", "add_"))
    scope.say(f"{window.format(to)}.{write}({window.format(source)}{made})")


def _write_value(pen: Pen, scope: Scope, target: ProgramValue, how: str) -> bool:
    def fits(value: ProgramValue) -> bool:
        same_memory = value.root == target.root and value.name != target.name
        dtype = value.dtype if how == "copy" else find_result_dtype(target, value)
        return (
            not same_memory
            and broadcast_shapes(value.shape, target.shape) == target.shape
            and rank_category(dtype) <= rank_category(target.dtype)
        )

    source = scope.pick(fits)
    call = "copy_" if how == "copy" else "logical_or_" if target.dtype == "bool" else pen.one_of(("add_", "mul_"))
    scope.say(f"{target.name}.{call}({source.name})")
    return True


# Productions that draw random numbers: values of their own, masks of a value, and writes through any view.

DRAWING = ("random_value", "random_like", "random_mask", "random_write", "random_order")
"""Names of the productions whose statements draw."""
_FLOATS = ("float32", "bfloat16", "float64", "float16")
_RANDOM_LIKE = ("torch.rand_like({x})", "torch.randn_like({x})", "torch.randint_like({x}, 7)",
                "torch.bernoulli({x}.sigmoid())", "torch.normal({x}, {x}.abs() + 1)")  # fmt: skip
# Methods that fill a tensor in place, and those of them that integers have too.
_FILLS: tuple[str, ...] = ("normal_()", "uniform_(-1, 1)", "normal_(1.0, 2.0)", "exponential_(2.0)", "bernoulli_(0.3)",
                           "random_(0, 9)", "log_normal_()", "cauchy_().clamp_(-9, 9)", "geometric_(0.4)")  # fmt: skip
_INTEGER_FILLS = ("random_(0, 9)", "bernoulli_(0.3)", "geometric_(0.4)")


@production(3)
def random_value(pen: Pen, scope: Scope) -> object:
    """A tensor of random numbers, of any floating dtype or of integers."""
    shape = choose_shape(pen, scope)
    if pen.chance(25):
        dtype, start = pen.one_of(("int64", "int32", "uint8")), "randint(0, 9, "
    else:
        dtype, start = pen.one_of(_FLOATS), f"{pen.one_of(('rand', 'randn'))}("
    return scope.make(f"torch.{start}{scope.sizes(shape)}, dtype=torch.{dtype}, {scope.device})", shape, dtype)


@production(2)
def random_like(pen: Pen, scope: Scope) -> object:
    """Random numbers in the form of a value, whatever its layout is."""
    of, form = scope.pick_floating(), pen.one_of(_RANDOM_LIKE)
    return scope.make_alike(form, of, smooth="_like" not in form)


@production(3)
def random_mask(pen: Pen, scope: Scope) -> object:
    """A value with some of its elements dropped or scaled at random."""
    of = scope.pick_floating()
    functions = ["dropout", "alpha_dropout"]
    functions += ["rrelu"] if of.dtype in ("float32", "float64") else []  # eager has no kernel for the short ones
    functions += ["dropout1d", "feature_alpha_dropout"] if of.rank == 3 else []
    functions += ["dropout2d"] if of.rank == 4 else []
    function = pen.one_of(functions)
    rest = "training=True" if function == "rrelu" else f"{pen.one_of((0.5, 0.1, 0.0, 1.0))}, training=True"
    return scope.make_alike("torch.nn.functional.{function}({x}, {rest})", of, function=function, rest=rest)


@production(2)
def random_write(pen: Pen, scope: Scope) -> object:
    """Random numbers written over a value, whole or through a view of it."""
    target = scope.pick(lambda value: scope.writable(value) and value.dtype != "bool")
    fill = pen.one_of(_FILLS if target.dtype in FLOATING else _INTEGER_FILLS)
    views = [""]
    views += [".transpose(-1, -2)"] if target.rank > 1 else []
    views += ["[..., ::2]", "[..., 1:]"] if target.rank and find_least(target.shape[-1]) > 1 else []
    return scope.say(f"{target.name}{pen.one_of(views)}.{fill}")


@production(1)
def random_order(pen: Pen, scope: Scope) -> object:
    """The rows of a value in a random order."""
    of = scope.pick(lambda value: value.rank > 0 and find_least(value.shape[0]) > 0)
    order = f"torch.randperm({scope.text(of.shape[0])}, {scope.device})"
    return scope.make_alike("{x}[{order}]", of, order=order)
