"""Productions that create values, cast them, or move their elements: constants, views, copies, parts, joins."""

from __future__ import annotations

from dataclasses import replace

from fuzzcompile.fuzz.generation.spec import Pen
from fuzzcompile.fuzz.operator_programs.production import (
    DTYPES,
    FLOATING,
    INTEGERS,
    WIDTHS,
    Dim,
    ProgramValue,
    Scope,
    Shape,
    count_elements,
    fill_size,
    find_least,
    is_one,
    production,
    promote_dtypes,
)

_FILLS = (1, 0, -1, 2, 0.5, 100, -0.0, 1e-30, float("inf"), float("nan"))


def format_number(number: float) -> str:
    """A number in Python, infinities and NaN included."""
    return f'float("{number}")' if number in (float("inf"), -float("inf")) or number != number else repr(number)


def choose_fill(pen: Pen, dtype: str) -> str:
    """A number that a tensor of this dtype can hold."""
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
    fill = f"torch.full({scope.sizes(shape)}, {choose_fill(pen, dtype)}, {rest})"
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
        return scope.make(f"{of.name}.new_full({scope.sizes(shape)}, {choose_fill(pen, dtype)}{rest})", shape, dtype)
    fill = f", {choose_fill(pen, dtype)}" if how == "full_like" else ""
    return scope.make(f"torch.{how}({of.name}{fill}{rest})", of.shape, dtype)


@production(6)
def cast(pen: Pen, scope: Scope) -> object:
    """One or two casts; what a small integer cannot hold is clamped first, for C++ leaves that cast undefined."""
    of = scope.pick()
    made, dtype, smooth = of.name, of.dtype, True
    for _ in range(1 + pen.chance(25)):
        target = pen.one_of([name for name in DTYPES if name != dtype])
        made, dtype = f"{clamp_cast(made, dtype, target)}.to(torch.{target})", target
        smooth = smooth and target in FLOATING
    return scope.make(made, of.shape, dtype, of, smooth=smooth)


def clamp_cast(expression: str, dtype: str, target: str) -> str:
    """The expression scaled and clamped to what ``target`` holds, where that is an integer and the dtype is not."""
    if dtype not in FLOATING or target not in INTEGERS:
        return expression
    return f"({expression} * 8).nan_to_num(0.0).clamp({0 if target == 'uint8' else -100}, 100)"


def make_integers(pen: Pen, scope: Scope, of: ProgramValue) -> ProgramValue | None:
    """The value as integers: itself if it holds some."""
    if of.is_integral:
        return of
    dtype = pen.one_of(("int64", "int32", "int8", "uint8", "int16"))
    return scope.make(f"{clamp_cast(of.name, of.dtype, dtype)}.to(torch.{dtype})", of.shape, dtype)


@production(2)
def bits(pen: Pen, scope: Scope) -> object:
    """The bits read as another dtype of the same width, or as bytes."""
    of = scope.pick(lambda value: value.dtype != "bool" and value.rank > 0)
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


def swap_axes(shape: Shape, first: int, second: int) -> Shape:
    """The shape with two axes exchanged."""
    sizes = list(shape)
    sizes[first], sizes[second] = sizes[second], sizes[first]
    return tuple(sizes)


def choose_slice(pen: Pen, scope: Scope, of: ProgramValue) -> tuple[str, Shape]:
    """The index of a slice along some axis, and the shape of what it takes; raises as `Scope.pick_axis`."""
    axis = scope.pick_axis(of)
    start, stop, step, wanted = pen.one_of(_SLICES)
    if find_least(of.shape[axis]) < wanted:
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
        moved, shape = f"{of.name}.transpose({first}, {second})", swap_axes(of.shape, first, second)
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
    if how == "unfold" and find_least(of.shape[axis]) >= 2:
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
    if how == "squeeze" and any(map(is_one, of.shape)):
        axis = next(at for at, size in enumerate(of.shape) if is_one(size))
        return scope.view(f"{of.name}.squeeze({axis})", replace_axis(of.shape, axis), of)
    target = scope.some(lambda value: value.rank > 0 and value.elements == of.elements and value.shape != of.shape)
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
        single = of.name if is_one(size) else f"{of.name}.narrow({axis}, 0, 1)"
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
