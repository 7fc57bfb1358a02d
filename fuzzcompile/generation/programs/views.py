"""Productions that move no element, or move all of them: views, copies in another order, parts, joins."""

from __future__ import annotations

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.programs.production import production
from fuzzcompile.generation.programs.scope import Scope
from fuzzcompile.generation.programs.values import Dim, Shape, Value, elements, least, ones, promoted

# start, stop, step: each leaves an element of an axis of at least so many.
_SLICES = (
    ("1", "", "", 2), ("", "-1", "", 2), ("", "", "2", 1), ("1", "", "2", 2), ("-2", "", "", 1), ("", "2", "", 1),
    ("1", "-1", "", 3), ("-3", "-1", "", 3), ("", "", "3", 1),
)  # fmt: skip
# Calls whose result is the value itself, or a view of all of it; a copy in their place shows when either is written to.
_SAME = (
    "{x}.contiguous()",
    "{x}[:]",
    "{x}.view_as({x})",
    "{x}.expand_as({x})",
    "{x}.to({x}.dtype)",
    "F.dropout({x}, 0.3, training=False)",
    "{x}.reshape({x}.shape)",
    "{x}.type_as({x})",
    "{x}.detach()",
    "nn.Identity()({x})",
)


def replaced(shape: Shape, axis: int, *sizes: Dim) -> Shape:
    """The shape with other sizes in the place of one axis."""
    at = axis % len(shape)
    return (*shape[:at], *sizes, *shape[at + 1 :])


def swapped(shape: Shape, first: int, second: int) -> Shape:
    """The shape with two axes exchanged."""
    sizes = list(shape)
    sizes[first], sizes[second] = sizes[second], sizes[first]
    return tuple(sizes)


def sliced(pen: Pen, scope: Scope, of: Value) -> tuple[str, Shape] | None:
    """The index of a slice along some axis, and the shape of what it takes."""
    axis = scope.axis(of)
    if axis is None:
        return None
    start, stop, step, wanted = pen.one_of(_SLICES)
    if least(of.shape[axis]) < wanted:
        start, stop, step = "", "2", ""
    taken = slice(*(int(text) if text else None for text in (start, stop, step)))
    size = tuple(len(range(number)[taken]) for number in of.shape[axis])
    text = f"{start}:{stop}" + (f":{step}" if step else "")
    after = ", :" * (-axis - 1)
    return (f"..., {text}{after}" if axis != -of.rank else text), replaced(of.shape, axis, size)


@production(6)
def transposed(pen: Pen, scope: Scope) -> object:
    """Axes exchanged, moved or permuted, as a view or copied."""
    of = scope.some(lambda value: value.rank > 1)
    if of is None:
        return None
    if of.rank > 2 and pen.chance(30):
        moved = f"{of.name}.movedim(0, -1)"
        shape = (*of.shape[1:], of.shape[0])
    else:
        first, second = pen.one_of(((-1, -2), (0, -1), (0, 1)))
        moved, shape = f"{of.name}.transpose({first}, {second})", swapped(of.shape, first, second)
    if pen.chance(35):
        return scope.make(f"{moved}.contiguous()", shape, of.dtype, of)
    return scope.view(moved, shape, of)


@production(6)
def part(pen: Pen, scope: Scope) -> object:
    """A slice, an element of an axis, a diagonal or windows of a value."""
    of = scope.some(lambda value: value.rank > 0)
    axis = None if of is None else scope.axis(of)
    if of is None or axis is None:
        return None
    how = pen.one_of(("slice", "select", "diagonal", "unfold"))
    if how == "select":
        return scope.view(f"{of.name}.select({axis}, {pen.one_of((0, -1))})", replaced(of.shape, axis), of)
    if how == "diagonal" and of.rank > 1:
        size = tuple(min(pair) for pair in zip(of.shape[-1], of.shape[-2], strict=True))
        return scope.view(f"{of.name}.diagonal(0, -2, -1)", (*of.shape[:-2], size), of)
    if how == "unfold" and least(of.shape[axis]) >= 2:
        step = pen.one_of((1, 2))
        windows = tuple((number - 2) // step + 1 for number in of.shape[axis])
        shape = (*replaced(of.shape, axis, windows), tuple(2 for _ in windows))
        return scope.view(f"{of.name}.unfold({axis}, 2, {step})", shape, of, frozen=step == 1)
    index = sliced(pen, scope, of)
    return scope.view(f"{of.name}[{index[0]}]", index[1], of) if index else None


@production(6)
def reshaped(pen: Pen, scope: Scope) -> object:
    """Axes merged, cut in two, added or removed; or the shape of another value."""
    of = scope.some(lambda value: value.rank > 0)
    if of is None:
        return None
    how = pen.one_of(("unsqueeze", "flatten", "unflatten", "squeeze", "as"))
    if how == "flatten" and of.rank > 1:
        first = pen.one_of((-2, 0))
        return scope.view(f"{of.name}.flatten({first}, -1)", (*of.shape[:first], elements(of.shape[first:])), of)
    if how == "unflatten":
        factor = pen.one_of((2, 3, 4, 1))
        if all(number % factor == 0 for number in of.shape[-1]):
            sizes = tuple(factor for _ in of.shape[-1]), tuple(number // factor for number in of.shape[-1])
            return scope.view(f"{of.name}.unflatten(-1, ({factor}, -1))", replaced(of.shape, -1, *sizes), of)
    if how == "squeeze" and any(map(ones, of.shape)):
        axis = next(at for at, size in enumerate(of.shape) if ones(size))
        return scope.view(f"{of.name}.squeeze({axis})", replaced(of.shape, axis), of)
    target = scope.some(lambda value: value.rank > 0 and value.elements == of.elements and value.shape != of.shape)
    if how == "as" and target is not None:
        return scope.view(f"{of.name}.reshape({scope.sizes(target.shape)})", target.shape, of)
    if of.rank > 4:
        return None
    axis = pen.one_of((-1, 0))
    one = tuple(1 for _ in of.shape[0])
    return scope.view(f"{of.name}.unsqueeze({axis})", (one, *of.shape) if axis == 0 else (*of.shape, one), of)


@production(4)
def expanded(pen: Pen, scope: Scope) -> object:
    """A value expanded to the shape of another, or repeated along an axis."""
    of = scope.some(lambda value: value.rank > 0)
    if of is None:
        return None
    axis = pen.one_of(range(-1, -of.rank - 1, -1))
    single = f"{of.name}.narrow({axis}, 0, 1)" if not ones(of.shape[axis]) else of.name
    sizes = tuple(3 for _ in of.shape[axis])
    times = ", ".join("3" if at == of.rank + axis else "-1" for at in range(of.rank))
    how = pen.one_of(("expand", "repeat_interleave", "repeat"))
    if how == "expand":
        return scope.view(f"{single}.expand({times})", replaced(of.shape, axis, sizes), of, frozen=True)
    doubled = tuple(2 * number for number in of.shape[axis])
    if how == "repeat_interleave":
        return scope.make(f"{of.name}.repeat_interleave(2, {axis})", replaced(of.shape, axis, doubled), of.dtype, of)
    copies = times.replace("-1", "1").replace("3", "2")
    return scope.make(f"{of.name}.repeat({copies})", replaced(of.shape, axis, doubled), of.dtype, of)


@production(5)
def same(pen: Pen, scope: Scope) -> object:
    """What eager mode returns unchanged, or as a view of all of it."""
    of = scope.some()
    if of is None:
        return None
    expression = pen.one_of(_SAME)
    if ("dropout" in expression and not of.floating) or ("[" in expression and not of.rank):
        expression = _SAME[0]
    made = scope.view(expression.replace("{x}", of.name), of.shape, of)
    if made is not None and "detach" in expression:
        scope.values[-1] = Value(made.name, made.shape, made.dtype, made.root, gradient=False, frozen=made.frozen)
    return made


@production(5)
def reordered(pen: Pen, scope: Scope) -> object:
    """Elements copied in another order or layout: flipped, rolled, a triangle, strided, or as they are."""
    of = scope.some(lambda value: value.rank > 1)
    if of is None:
        return None
    axis = pen.one_of((-1, -2, 0))
    how = pen.one_of(
        (
            "{x}.clone()",
            f"{{x}}.flip({axis})",
            f"{{x}}.roll({pen.one_of((1, -1, 2))}, {axis})",
            f"{{x}}.tril({pen.one_of((0, 1, -1))})",
            f"{{x}}.triu({pen.one_of((0, 1, -1))})",
            "torch.rot90({x}, 2, (-2, -1))",
            "torch.empty_like({x}.transpose(-1, -2)).transpose(-1, -2).copy_({x})",
            "torch.as_strided({x}.contiguous(), {x}.shape, {x}.contiguous().stride())",
        )
    )
    if "empty_like" in how and of.gradient:
        how = "{x}.transpose(-1, -2).contiguous().transpose(-1, -2)"
    return scope.make(how.replace("{x}", of.name), of.shape, of.dtype, of)


@production(6)
def cut(pen: Pen, scope: Scope) -> object:
    """A value cut into parts along an axis, evenly or not: split, chunk, unbind."""
    of = scope.some(lambda value: value.rank > 0)
    axis = None if of is None else scope.axis(of, 2)
    if of is None or axis is None:
        return None
    size = of.shape[axis]
    how = pen.one_of(("split", "chunk", "unbind", "tensor_split"))
    names = [scope.fresh(), scope.fresh()]
    if how == "unbind" and set(size) <= {2, 3, 4} and len(set(size)) == 1:
        names += [scope.fresh() for _ in range(size[0] - 2)]
        shapes = [replaced(of.shape, axis)] * size[0]
        call = f"unbind({axis})"
    elif how in ("chunk", "tensor_split"):
        first = tuple((number + 1) // 2 for number in size)
        shapes = [replaced(of.shape, axis, part) for part in (first, _rest(size, first))]
        call = f"{how}(2, {axis})"
    else:
        first = tuple(1 for _ in size)
        shapes = [replaced(of.shape, axis, part) for part in (first, _rest(size, first))]
        call = (
            f"split([1, {scope.text(size)} - 1], {axis})"
            if len(set(size)) > 1
            else f"split([1, {size[0] - 1}], {axis})"
        )
    scope.say(f"{', '.join(names)} = {of.name}.{call}")
    for name, shape in zip(names, shapes, strict=True):
        scope.add(Value(name, shape, of.dtype, of.root, of.gradient, frozen=True))
    return True


def _rest(size: Dim, first: Dim) -> Dim:
    return tuple(number - taken for number, taken in zip(size, first, strict=True))


def _partners(scope: Scope, of: Value, axis: int) -> list[Value]:
    """Other values that can be concatenated with this one along an axis, the youngest first."""
    rest = replaced(of.shape, axis)
    return [
        value
        for value in reversed(scope.values)
        if value.name != of.name
        and value.rank == of.rank
        and replaced(value.shape, axis) == rest
        and (value.dtype == of.dtype or not value.gradient)
    ]


@production(7)
def join(pen: Pen, scope: Scope) -> object:
    """Two or three values concatenated or stacked, in any order, some of them twice or of other dtypes."""
    of = scope.some(lambda value: any(_partners(scope, value, axis) for axis in range(-value.rank, 0)))
    of = of or scope.some(lambda value: value.rank > 0)
    if of is None:
        return None
    partners = {axis: _partners(scope, of, axis) for axis in range(-1, -of.rank - 1, -1)}
    axis = pen.one_of([axis for axis, values in partners.items() if values] or list(partners))
    parts = [of] + [pen.one_of([*partners[axis], of]) for _ in range(1 + pen.number(1))]
    if pen.chance(50):
        parts.reverse()
    dtype = parts[0].dtype
    for value in parts:
        dtype = promoted(dtype, value.dtype)
    names = ", ".join(value.name for value in parts)
    if len({value.shape for value in parts}) == 1 and len({value.dtype for value in parts}) == 1 and pen.chance(35):
        count = tuple(len(parts) for _ in of.shape[axis])
        at = of.rank + axis
        return scope.make(f"torch.stack([{names}], {axis - 1})", (*of.shape[:at], count, *of.shape[at:]), dtype, *parts)
    size = tuple(sum(numbers) for numbers in zip(*(value.shape[axis] for value in parts), strict=True))
    return scope.make(f"torch.cat([{names}], {axis})", replaced(of.shape, axis, size), dtype, *parts)
