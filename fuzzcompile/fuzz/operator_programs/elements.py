"""Productions that create values or move their elements: constants, views, copies, joins, indexing, random numbers."""

from __future__ import annotations

from dataclasses import replace

from fuzzcompile.fuzz.generation.spec import Pen
from fuzzcompile.fuzz.operator_programs.production import (
    DTYPES,
    FLOATING,
    INTEGERS,
    WIDTHS,
    Dim,
    NothingFits,
    ProgramValue,
    Scope,
    Shape,
    broadcast_shapes,
    count_elements,
    fill_size,
    find_result_dtype,
    production,
    promote_dtypes,
    rank_category,
)

_FILLS = (1, 0, -1, 2, 0.5, 100, -0.0, 1e-30, float("inf"), float("nan"))


def format_number(number: float) -> str:
    """A number in Python, infinities and NaN included."""
    return f'float("{number}")' if number in (float("inf"), -float("inf")) or number != number else repr(number)


def _choose_fill(pen: Pen, dtype: str) -> str:
    number = pen.one_of(_FILLS)
    if dtype == "bool":
        return str(bool(number))
    if dtype not in FLOATING:
        return str(abs(int(number)) if abs(number) <= 100 else 3)
    return format_number(number)


def choose_shape(pen: Pen, scope: Scope) -> Shape:
    """A shape that broadcasts with some value: all of it, its last axes, or with axes of size one."""
    shape = (scope.some() or scope.values[0]).shape
    kind = pen.one_of(("all", "last", "ones", "scalar"))
    if kind == "last":
        return shape[pen.number(max(0, len(shape) - 1)) :]
    if kind == "ones" and shape:
        at = pen.number(len(shape) - 1)
        return replace_axis(shape, at, fill_size(1, shape[at]))
    return () if kind == "scalar" else shape


@production(6)
def creation(pen: Pen, scope: Scope) -> object:
    """A constant tensor of any dtype: of one number, a range, or an identity."""
    dtype, shape = pen.one_of(("float32", *DTYPES)), choose_shape(pen, scope)
    rest = f"dtype=torch.{dtype}, {scope.device}"
    how = pen.one_of(("full", "arange", "eye", "tril"))
    if how == "arange" and shape and dtype != "bool":
        return scope.make(f"torch.arange({scope.text(shape[-1])}, {rest})", shape[-1:], dtype)
    if how == "eye" and len(shape) > 1:
        return scope.make(f"torch.eye({scope.text(shape[-2])}, {scope.text(shape[-1])}, {rest})", shape[-2:], dtype)
    fill = f"torch.full({scope.sizes(shape)}, {_choose_fill(pen, dtype)}, {rest})"
    return scope.make(f"{fill}.tril()" if how == "tril" and len(shape) > 1 else fill, shape, dtype)


@production(4)
def creation_like(pen: Pen, scope: Scope) -> object:
    """A constant tensor in the form of another, or of its dtype and device."""
    of = scope.pick()
    dtype = pen.one_of((of.dtype, *DTYPES))
    rest = "" if dtype == of.dtype else f", dtype=torch.{dtype}"
    how = pen.one_of(("full_like", "zeros_like", "ones_like", "new_full"))
    if how == "new_full":
        shape = choose_shape(pen, scope)
        return scope.make(f"{of.name}.new_full({scope.sizes(shape)}, {_choose_fill(pen, dtype)}{rest})", shape, dtype)
    fill = f", {_choose_fill(pen, dtype)}" if how == "full_like" else ""
    return scope.make(f"torch.{how}({of.name}{fill}{rest})", of.shape, dtype)


@production(6)
def cast(pen: Pen, scope: Scope) -> object:
    """One or two casts; what a small integer cannot hold is clamped first, for C++ leaves that cast undefined."""
    of = scope.pick()
    made, dtype, smooth = of.name, of.dtype, True
    for _ in range(1 + pen.chance(25)):
        target = pen.one_of([name for name in DTYPES if name != dtype])
        made, dtype = f"{_clamp_cast(made, dtype, target)}.to(torch.{target})", target
        smooth = smooth and target in FLOATING
    return scope.make(made, of.shape, dtype, of, smooth=smooth)


def _clamp_cast(expression: str, dtype: str, target: str) -> str:
    """The expression scaled and clamped to what ``target`` holds, where that is an integer and the dtype is not."""
    if dtype not in FLOATING or target not in INTEGERS:
        return expression
    return f"({expression} * 8).nan_to_num(0.0).clamp({0 if target == 'uint8' else -100}, 100)"


def make_integers(pen: Pen, scope: Scope, of: ProgramValue) -> ProgramValue | None:
    """The value as integers: itself if it holds some."""
    if of.is_integral:
        return of
    dtype = pen.one_of(("int64", "int32", "int8", "uint8", "int16"))
    return scope.make(f"{_clamp_cast(of.name, of.dtype, dtype)}.to(torch.{dtype})", of.shape, dtype)


@production(2)
def bits(pen: Pen, scope: Scope) -> object:
    """The bits read as another dtype of the same width, or as bytes."""
    of = scope.pick(lambda value: value.dtype != "bool" and value.rank > 0 and min(value.shape[-1]) > 1)
    alike = [name for name in DTYPES if WIDTHS[name] == WIDTHS[of.dtype] and name not in (of.dtype, "bool")]
    if alike and not pen.chance(30):
        dtype = pen.one_of(alike)
        made = scope.make(f"{of.name}.view(torch.{dtype})", of.shape, dtype)
    else:
        wide = tuple(size * WIDTHS[of.dtype] for size in of.shape[-1])
        made = scope.make(f"{of.name}.contiguous().view(torch.uint8)", (*of.shape[:-1], wide), "uint8")
    if made is None or not made.is_integral or not pen.chance(50):
        return made
    flipped = scope.make(f"{made.name} ^ 1", made.shape, made.dtype)
    if flipped is None or made.shape != of.shape:
        return flipped
    return scope.make(f"{flipped.name}.view(torch.{of.dtype})", of.shape, of.dtype)


_RANDOM = ("torch.rand_like({x})", "F.dropout({x}, 0.5)", "torch.randn_like({x})",
           "torch.bernoulli(torch.full_like({x}, 0.5))")  # fmt: skip


@production(2)
def random_numbers(pen: Pen, scope: Scope) -> object:
    """Random numbers in the form of a value, or dropout on it."""
    of, form = scope.pick_floating(), pen.one_of(_RANDOM)
    return scope.make_alike(form, of, smooth="dropout" in form)


# Productions that move no element, or move all of them: views, copies in another order, parts, joins.

# start, stop, step: each leaves an element of an axis of at least so many.
_SLICES = (
    ("1", "", "", 2), ("", "-1", "", 2), ("", "", "2", 1), ("1", "", "2", 2), ("-2", "", "", 1), ("", "2", "", 1),
    ("1", "-1", "", 3), ("-3", "-1", "", 3), ("", "", "3", 1),
)  # fmt: skip
# Calls whose result is the value itself, or a view of all of it; a copy in their place shows when either is written to.
_SAME = (
    "{x}.contiguous()", "{x}[:]", "{x}.view_as({x})", "{x}.expand_as({x})", "{x}.to({x}.dtype)",
    "F.dropout({x}, 0.3, training=False)", "{x}.reshape({x}.shape)", "{x}.type_as({x})", "{x}.detach()",
    "nn.Identity()({x})",
)  # fmt: skip
# Elements copied in another order or layout, or as they are.
_REORDERED = (
    "{x}.clone()", "{x}.flip({axis})", "{x}.roll({by}, {axis})", "{x}.tril({lower})", "{x}.triu({upper})",
    "torch.rot90({x}, 2, (-2, -1))", "torch.empty_like({x}.transpose(-1, -2)).transpose(-1, -2).copy_({x})",
    "torch.as_strided({x}.contiguous(), {x}.shape, {x}.contiguous().stride())",
)  # fmt: skip


def replace_axis(shape: Shape, axis: int, *sizes: Dim) -> Shape:
    """The shape with other sizes in the place of one axis."""
    at = axis % len(shape)
    return (*shape[:at], *sizes, *shape[at + 1 :])


def _swap_axes(shape: Shape, first: int, second: int) -> Shape:
    sizes = list(shape)
    sizes[first], sizes[second] = sizes[second], sizes[first]
    return tuple(sizes)


def choose_slice(pen: Pen, scope: Scope, of: ProgramValue) -> tuple[str, Shape]:
    """The index of a slice along some axis, and the shape of what it takes; raises as `Scope.pick_axis`."""
    axis = scope.pick_axis(of)
    start, stop, step, wanted = pen.one_of(_SLICES)
    if min(of.shape[axis]) < wanted:
        start, stop, step = "", "2", ""
    taken = slice(*(int(text) if text else None for text in (start, stop, step)))
    size = tuple(len(range(number)[taken]) for number in of.shape[axis])
    text = f"{start}:{stop}" + (f":{step}" if step else "")
    return (f"..., {text}{', :' * (-axis - 1)}" if axis != -of.rank else text), replace_axis(of.shape, axis, size)


@production(6)
def transposed(pen: Pen, scope: Scope) -> object:
    """Axes exchanged, moved or permuted, as a view or copied."""
    of = scope.pick(lambda value: value.rank > 1)
    if of.rank > 2 and pen.chance(30):
        moved, shape = f"{of.name}.movedim(0, -1)", (*of.shape[1:], of.shape[0])
    else:
        first, second = pen.one_of(((-1, -2), (0, -1), (0, 1)))
        moved, shape = f"{of.name}.transpose({first}, {second})", _swap_axes(of.shape, first, second)
    if pen.chance(35):
        return scope.make(f"{moved}.contiguous()", shape, of.dtype, of)
    return scope.view(moved, shape, of)


@production(6)
def part(pen: Pen, scope: Scope) -> object:
    """A slice, an element of an axis, a diagonal or windows of a value."""
    of, axis = scope.pick_with_axis()
    how = pen.one_of(("slice", "select", "diagonal", "unfold"))
    if how == "select":
        return scope.view(f"{of.name}.select({axis}, {pen.one_of((0, -1))})", replace_axis(of.shape, axis), of)
    if how == "diagonal" and of.rank > 1:
        size = tuple(map(min, of.shape[-1], of.shape[-2]))
        return scope.view(f"{of.name}.diagonal(0, -2, -1)", (*of.shape[:-2], size), of)
    if how == "unfold" and min(of.shape[axis]) >= 2:
        step = pen.one_of((1, 2))
        windows = tuple((number - 2) // step + 1 for number in of.shape[axis])
        shape = (*replace_axis(of.shape, axis, windows), fill_size(2, windows))
        return scope.view(f"{of.name}.unfold({axis}, 2, {step})", shape, of, frozen=step == 1)
    index, shape = choose_slice(pen, scope, of)
    return scope.view(f"{of.name}[{index}]", shape, of)


@production(6)
def reshaped(pen: Pen, scope: Scope) -> object:
    """Axes merged, cut in two, added or removed; or the shape of another value."""
    of = scope.pick(lambda value: value.rank > 0)
    how = pen.one_of(("unsqueeze", "flatten", "unflatten", "squeeze", "as"))
    if how == "flatten" and of.rank > 1:
        first = pen.one_of((-2, 0))
        return scope.view(f"{of.name}.flatten({first}, -1)", (*of.shape[:first], count_elements(of.shape[first:])), of)
    if how == "unflatten":
        factor = pen.one_of((2, 3, 4, 1))
        if all(number % factor == 0 for number in of.shape[-1]):
            sizes = fill_size(factor, of.shape[-1]), tuple(number // factor for number in of.shape[-1])
            return scope.view(f"{of.name}.unflatten(-1, ({factor}, -1))", replace_axis(of.shape, -1, *sizes), of)
    if how == "squeeze" and any(set(size) == {1} for size in of.shape):
        axis = next(at for at, size in enumerate(of.shape) if set(size) == {1})
        return scope.view(f"{of.name}.squeeze({axis})", replace_axis(of.shape, axis), of)
    target = scope.some(
        lambda value: (
            value.rank > 0 and count_elements(value.shape) == count_elements(of.shape) and value.shape != of.shape
        )
    )
    if how == "as" and target is not None:
        return scope.view(f"{of.name}.reshape({scope.sizes(target.shape)})", target.shape, of)
    if of.rank > 4:
        return None
    axis, one = pen.one_of((-1, 0)), fill_size(1, of.shape[0])
    return scope.view(f"{of.name}.unsqueeze({axis})", (one, *of.shape) if axis == 0 else (*of.shape, one), of)


@production(4)
def expanded(pen: Pen, scope: Scope) -> object:
    """A value expanded to the shape of another, or repeated along an axis."""
    of = scope.pick(lambda value: value.rank > 0)
    axis = pen.one_of(range(-1, -of.rank - 1, -1))
    size = of.shape[axis]
    how = pen.one_of(("expand", "repeat_interleave", "repeat"))
    if how == "expand":
        single = of.name if set(size) == {1} else f"{of.name}.narrow({axis}, 0, 1)"
        times = ", ".join("3" if at == of.rank + axis else "-1" for at in range(of.rank))
        return scope.view(
            f"{single}.expand({times})", replace_axis(of.shape, axis, fill_size(3, size)), of, frozen=True
        )
    times = ", ".join("2" if at == of.rank + axis else "1" for at in range(of.rank))
    call = f"repeat({times})" if how == "repeat" else f"repeat_interleave(2, {axis})"
    doubled = tuple(2 * number for number in size)
    return scope.make(f"{of.name}.{call}", replace_axis(of.shape, axis, doubled), of.dtype, of)


@production(5)
def same(pen: Pen, scope: Scope) -> object:
    """Return a tensor unchanged, or a view of all of it."""
    of, form = scope.pick(), pen.one_of(_SAME)
    if ("dropout" in form and not of.is_floating) or ("[" in form and not of.rank):
        form = _SAME[0]
    made = scope.view(form.format(x=of.name), of.shape, of)
    if made is not None and "detach" in form:
        scope.values[-1] = replace(made, gradient=False)
    return made


@production(5)
def reordered(pen: Pen, scope: Scope) -> object:
    """Elements copied in another order or layout: flipped, rolled, a triangle, strided, or as they are."""
    of = scope.pick(lambda value: value.rank > 1)
    axis, by, lower, upper = (pen.one_of(places) for places in ((-1, -2, 0), (1, -1, 2), (0, 1, -1), (0, 1, -1)))
    form = pen.one_of(_REORDERED)
    if "empty_like" in form and of.gradient:
        form = "{x}.transpose(-1, -2).contiguous().transpose(-1, -2)"
    return scope.make_alike(form, of, axis=axis, by=by, lower=lower, upper=upper)


@production(6)
def cut(pen: Pen, scope: Scope) -> object:
    """A value cut into parts along an axis, evenly or not: split, chunk, unbind."""
    of, axis = scope.pick_with_axis(least=2)
    size = of.shape[axis]
    how = pen.one_of(("split", "chunk", "unbind", "tensor_split"))
    parts = size[0] if how == "unbind" and size[0] in (2, 3, 4) and len(set(size)) == 1 else 0
    names = [scope.fresh() for _ in range(parts or 2)]
    if parts:
        shapes, call = [replace_axis(of.shape, axis)] * parts, f"unbind({axis})"
    else:
        halved = how in ("chunk", "tensor_split")
        first = tuple((number + 1) // 2 if halved else 1 for number in size)
        rest = tuple(number - taken for number, taken in zip(size, first, strict=True))
        shapes = [replace_axis(of.shape, axis, part) for part in (first, rest)]
        left = f"{scope.text(size)} - 1" if len(set(size)) > 1 else size[0] - 1
        call = f"{how}(2, {axis})" if halved else f"split([1, {left}], {axis})"
    made = [replace(of, name=name, shape=shape, frozen=True) for name, shape in zip(names, shapes, strict=True)]
    if not scope.say(f"{', '.join(names)} = {of.name}.{call}"):
        return False
    scope.values.extend(made)
    return True


def _find_join_partners(scope: Scope, of: ProgramValue, axis: int) -> list[ProgramValue]:
    """Other values that can be concatenated with this one along an axis, the youngest first."""
    rest = replace_axis(of.shape, axis)
    return [
        value
        for value in reversed(scope.values)
        if (value.name != of.name and value.rank == of.rank and replace_axis(value.shape, axis) == rest)
        and (value.dtype == of.dtype or not value.gradient)
    ]


@production(7)
def join(pen: Pen, scope: Scope) -> object:
    """Two or three values concatenated or stacked, in any order, some of them twice or of other dtypes."""
    of = scope.some(lambda value: any(_find_join_partners(scope, value, axis) for axis in range(-value.rank, 0)))
    of = of or scope.pick(lambda value: value.rank > 0)
    partners = {axis: _find_join_partners(scope, of, axis) for axis in range(-1, -of.rank - 1, -1)}
    axis = pen.one_of([axis for axis, values in partners.items() if values] or list(partners))
    parts = [of] + [pen.one_of([*partners[axis], of]) for _ in range(1 + pen.number(1))]
    if pen.chance(50):
        parts.reverse()
    dtype = promote_dtypes(*(value.dtype for value in parts))
    names = ", ".join(value.name for value in parts)
    if len({value.shape for value in parts}) == 1 and len({value.dtype for value in parts}) == 1 and pen.chance(35):
        at, count = of.rank + axis, fill_size(len(parts), of.shape[axis])
        return scope.make(f"torch.stack([{names}], {axis - 1})", (*of.shape[:at], count, *of.shape[at:]), dtype, *parts)
    size = tuple(sum(numbers) for numbers in zip(*(value.shape[axis] for value in parts), strict=True))
    return scope.make(f"torch.cat([{names}], {axis})", replace_axis(of.shape, axis, size), dtype, *parts)


def choose_places(pen: Pen, scope: Scope, size: Dim, *, distinct: bool = False) -> tuple[str, int]:
    """A tensor of places along an axis of that size, and their number; rarely one that many operators refuse."""
    most = min(size)
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
        return scope.make(f"{of.name}.transpose(0, {axis}).{put}", _swap_axes(of.shape, 0, axis), of.dtype, of)
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
        start = start if min(of.shape[axis]) > 1 else 0
        index = f"..., {start}::{step}{', :' * (-axis - 1)}" if axis < 0 else f"{start}::{step}"
        form = "torch.slice_scatter({x}, {x}.flip({axis})[{index}], {axis}, {start}, step={step})"
        return scope.make_alike(form, of, axis=axis, index=index, start=start, step=step)
    copy = scope.make_alike("{x}.clone()", of)
    if copy is None:
        return None
    _assign(pen, scope, copy)
    return True


def _assign(pen: Pen, scope: Scope, target: ProgramValue) -> None:
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
    apart = 1 + pen.number(min(2, min(size) - 1) - 1)
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

DRAWING = ("random_value", "random_like", "random_mask", "random_write", "random_order", "called_random")
"""Names of the productions whose statements draw."""
_FLOATS = ("float32", "bfloat16", "float64", "float16")
_RANDOM_LIKE = ("torch.rand_like({x})", "torch.randn_like({x})", "torch.randint_like({x}, 7)",
                "torch.bernoulli({x}.sigmoid())", "torch.normal({x}, {x}.abs() + 1)")  # fmt: skip
# Methods that fill a tensor in place, and those of them that integers have too.
_DRAWS: tuple[str, ...] = ("normal_()", "uniform_(-1, 1)", "normal_(1.0, 2.0)", "exponential_(2.0)", "bernoulli_(0.3)",
                           "random_(0, 9)", "log_normal_()", "cauchy_().clamp_(-9, 9)", "geometric_(0.4)")  # fmt: skip
_INTEGER_DRAWS = ("random_(0, 9)", "bernoulli_(0.3)", "geometric_(0.4)")


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
    fill = pen.one_of(_DRAWS if target.dtype in FLOATING else _INTEGER_DRAWS)
    views = [""]
    views += [".transpose(-1, -2)"] if target.rank > 1 else []
    views += ["[..., ::2]", "[..., 1:]"] if target.rank and min(target.shape[-1]) > 1 else []
    return scope.say(f"{target.name}{pen.one_of(views)}.{fill}")


@production(1)
def random_order(pen: Pen, scope: Scope) -> object:
    """The rows of a value in a random order."""
    of = scope.pick(lambda value: value.rank > 0 and min(value.shape[0]) > 0)
    order = f"torch.randperm({scope.text(of.shape[0])}, {scope.device})"
    return scope.make_alike("{x}[{order}]", of, order=order)
