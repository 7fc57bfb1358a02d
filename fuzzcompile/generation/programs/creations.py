"""Productions that make values from nothing but sizes, change their dtype, or read their bits."""

from __future__ import annotations

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.programs.production import production
from fuzzcompile.generation.programs.scope import Scope
from fuzzcompile.generation.programs.values import DTYPES, FLOATING, INTEGERS, WIDTHS, Shape, Value

_FILLS = (1, 0, -1, 2, 0.5, 100, -0.0, 1e-30, float("inf"), float("nan"))


def literal(number: float) -> str:
    """A number in Python, infinities and NaN included."""
    return f'float("{number}")' if number in (float("inf"), -float("inf")) or number != number else repr(number)


def fill_of(pen: Pen, dtype: str) -> str:
    """A number that a tensor of this dtype can hold."""
    number = pen.one_of(_FILLS)
    if dtype == "bool":
        return str(bool(number))
    if dtype not in FLOATING:
        return str(abs(int(number)) if abs(number) <= 100 else 3)
    return literal(number)


def shape_of(pen: Pen, scope: Scope) -> Shape:
    """A shape that broadcasts with some value: all of it, its last axes, or with axes of size one."""
    shape = (scope.some() or scope.values[0]).shape
    kind = pen.one_of(("all", "last", "ones", "scalar"))
    if kind == "last":
        return shape[pen.number(max(0, len(shape) - 1)) :]
    if kind == "ones" and shape:
        at = pen.number(len(shape) - 1)
        return (*shape[:at], tuple(1 for _ in shape[at]), *shape[at + 1 :])
    return () if kind == "scalar" else shape


@production(6)
def creation(pen: Pen, scope: Scope) -> object:
    """A constant tensor of any dtype: of one number, a range, or an identity."""
    dtype, shape = pen.one_of(("float32", *DTYPES)), shape_of(pen, scope)
    rest = f"dtype=torch.{dtype}, {scope.device}"
    how = pen.one_of(("full", "arange", "eye", "tril"))
    if how == "arange" and shape and dtype != "bool":
        return scope.make(f"torch.arange({scope.text(shape[-1])}, {rest})", shape[-1:], dtype)
    if how == "eye" and len(shape) > 1:
        return scope.make(f"torch.eye({scope.text(shape[-2])}, {scope.text(shape[-1])}, {rest})", shape[-2:], dtype)
    fill = f"torch.full({scope.sizes(shape)}, {fill_of(pen, dtype)}, {rest})"
    return scope.make(f"{fill}.tril()" if how == "tril" and len(shape) > 1 else fill, shape, dtype)


@production(4)
def creation_like(pen: Pen, scope: Scope) -> object:
    """A constant tensor in the form of another, or of its dtype and device."""
    of = scope.some()
    if of is None:
        return None
    dtype = pen.one_of((of.dtype, *DTYPES))
    rest = "" if dtype == of.dtype else f", dtype=torch.{dtype}"
    how = pen.one_of(("full_like", "zeros_like", "ones_like", "new_full"))
    if how == "new_full":
        shape = shape_of(pen, scope)
        return scope.make(f"{of.name}.new_full({scope.sizes(shape)}, {fill_of(pen, dtype)}{rest})", shape, dtype)
    fill = f", {fill_of(pen, dtype)}" if how == "full_like" else ""
    return scope.make(f"torch.{how}({of.name}{fill}{rest})", of.shape, dtype)


@production(6)
def cast(pen: Pen, scope: Scope) -> object:
    """One or two casts; what a small integer cannot hold is clamped first, for C++ leaves that cast undefined."""
    of = scope.some()
    if of is None:
        return None
    made, dtype, smooth = of.name, of.dtype, True
    for _ in range(1 + pen.chance(25)):
        target = pen.one_of([name for name in DTYPES if name != dtype])
        made, dtype = f"{bounded(made, dtype, target)}.to(torch.{target})", target
        smooth = smooth and target in FLOATING
    return scope.make(made, of.shape, dtype, of, smooth=smooth)


def bounded(expression: str, dtype: str, target: str) -> str:
    """The expression scaled and clamped to what ``target`` holds, where that is an integer and the dtype is not."""
    if dtype not in FLOATING or target not in INTEGERS:
        return expression
    return f"({expression} * 8).nan_to_num(0.0).clamp({0 if target == 'uint8' else -100}, 100)"


def integers(pen: Pen, scope: Scope, of: Value) -> Value | None:
    """The value as integers: itself if it holds some."""
    if of.integral:
        return of
    dtype = pen.one_of(("int64", "int32", "int8", "uint8", "int16"))
    return scope.make(f"{bounded(of.name, of.dtype, dtype)}.to(torch.{dtype})", of.shape, dtype)


@production(2)
def bits(pen: Pen, scope: Scope) -> object:
    """The bits read as another dtype of the same width, or as bytes."""
    of = scope.some(lambda value: value.dtype != "bool" and value.rank > 0)
    if of is None:
        return None
    alike = [name for name in DTYPES if WIDTHS[name] == WIDTHS[of.dtype] and name not in (of.dtype, "bool")]
    if alike and not pen.chance(30):
        dtype = pen.one_of(alike)
        made = scope.make(f"{of.name}.view(torch.{dtype})", of.shape, dtype)
    else:
        wide = tuple(size * WIDTHS[of.dtype] for size in of.shape[-1])
        made = scope.make(f"{of.name}.contiguous().view(torch.uint8)", (*of.shape[:-1], wide), "uint8")
    if made is None or not made.integral or not pen.chance(50):
        return made
    flipped = scope.make(f"{made.name} ^ 1", made.shape, made.dtype)
    if flipped is None or made.shape != of.shape:
        return flipped
    return scope.make(f"{flipped.name}.view(torch.{of.dtype})", of.shape, of.dtype)


@production(2)
def random_numbers(pen: Pen, scope: Scope) -> object:
    """Random numbers in the form of a value, or dropout on it."""
    of = scope.floating()
    if of is None:
        return None
    how = pen.one_of(
        (
            "torch.rand_like({x})",
            "F.dropout({x}, 0.5)",
            "torch.randn_like({x})",
            "torch.bernoulli(torch.full_like({x}, 0.5))",
        )
    )
    return scope.make(how.replace("{x}", of.name), of.shape, of.dtype, of, smooth="dropout" in how)
