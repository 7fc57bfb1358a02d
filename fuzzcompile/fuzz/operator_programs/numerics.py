"""Productions that compute: pointwise functions, matrix products, reductions, scans, norms."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import TypeVar

import msgspec

from fuzzcompile.fuzz.generation.spec import Pen
from fuzzcompile.fuzz.operator_programs.elements import format_number, make_integers, replace_axis
from fuzzcompile.fuzz.operator_programs.production import (
    FLOATING,
    INTEGERS,
    ProgramValue,
    Scope,
    Shape,
    broadcast_shapes,
    fill_size,
    find_result_dtype,
    production,
    promote_number,
    rank_category,
)
from fuzzcompile.model.package_files import read_table

# Torch's operators that keep the form of an activation or whose result has another, and calls that eager refuses:
# ``tools/operator_table.py`` makes ``operators.json`` from torch's own tables; ``composed.json`` adds calls of several
# functions that keep the form of whole rows together; ``calls.toml`` has the forms that arguments take.
_TABLES = ("operators.json", "composed.json", "calls.toml")


@dataclass(frozen=True)
class TableOperator:
    """An operator and calls of it."""

    name: str  # the function as it is called: ``torch.lerp``, ``F.celu``, ``Tensor.expand_as``
    # Expressions; ``{x}`` is the activation, ``{y}`` a tensor of its shape, ``{rows}`` the activation as (N, C, L),
    # ``{a}`` a parameter.
    calls: tuple[str, ...]
    gradient: bool = True  # a gradient flows
    alike: bool = False  # both operands must have one dtype
    cast: bool = False  # the result may have another dtype than the activation


# A size of a result: the product of the sizes of these axes of the operand, times a factor, plus a number, divided.
SizeFormula = tuple[tuple[int, ...], int, int, int]


@dataclass(frozen=True)
class ReformingOperator:
    """An operator whose result has another form than its operand, and calls of it that give the same form."""

    name: str
    calls: tuple[str, ...]
    rank: int  # how many axes ``{x}`` has
    sizes: tuple[SizeFormula, ...]  # of the result
    dtype: str | None  # of the result; None for the operand's
    view: bool  # the result is a view
    least: tuple[int, ...]  # the least size of each axis of the operand
    gradient: bool

    def takes(self, of: Shape) -> bool:
        """Return whether it runs on an operand of this shape."""
        return all(min(size) >= least for size, least in zip(of, self.least, strict=True))

    def find_shape(self, of: Shape) -> Shape:
        """The shape of the result, in each call of the case."""
        calls = list(zip(*of, strict=True))
        return tuple(
            tuple((math.prod(sizes[axis] for axis in axes) * factor + more) // parts for sizes in calls)
            for axes, factor, more, parts in self.sizes
        )


@dataclass(frozen=True)
class OperatorTable:
    """All operators, by what they are: of each element alone, of two tensors, of whole rows, of other form, refused."""

    elementwise: tuple[TableOperator, ...]
    of_two: tuple[TableOperator, ...]
    along: tuple[TableOperator, ...]
    reforming: tuple[ReformingOperator, ...]
    refused: tuple[TableOperator, ...]
    torch: str  # the version whose tables it was made from
    version: str = ""  # identifies the text

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each operator, once."""
        alike = (*self.elementwise, *self.of_two, *self.along, *self.refused)
        return tuple(sorted({operator.name for operator in alike} | {operator.name for operator in self.reforming}))


@cache
def load_operator_table() -> OperatorTable:
    """The table that comes with the package."""
    text, composed, calls = (resources.files(__package__).joinpath(name).read_bytes() for name in _TABLES)
    table = msgspec.json.decode(text, type=OperatorTable)
    along = (*table.along, *msgspec.json.decode(composed, type=tuple[TableOperator, ...]))
    return replace(table, along=along, version=hashlib.sha256(text + composed + calls).hexdigest()[:8])


# Numbers for which rules have special cases, or at which kernels overflow or vanish.
_NUMBERS: tuple[float, ...] = (2, 1, 0, -1, 0.5, 1.0, 0.0, -2.0, 3, 100, 1e-30, 3e4, -0.5, float("inf"), True)
_PARAMETERS = (1.0, 0.5, -1.0, 1e-3, 2.0, 0.0)
_SCALES = (1.0, -1.0, 4.0, 1e-4, 30.0, 89.0, 3e4, 1e-30)
_OPERATORS = ("+", "*", "-", "/", "//", "%")
_COMPARISONS = (">", "<=", "==", "!=", ">=", "<")
_PROPERTIES = ("isnan", "isfinite", "isinf", "signbit")
_CHOICES = ("torch.where({m}, {x}, {n})", "{x}.masked_fill({m}, {n})", "torch.where({m}, {n}, {x})", "{x} * ({m})",
            "torch.where({m}, {x}, -{x})")  # fmt: skip
_OF_WHOLE_NUMBERS = ("{x} + {n}", "{x} * {n}", "{x} // {n}", "{x} % {n}", "{x} >> 2", "~{x}", "{x} & 5", "{x} << 3",
                     "{x} * {x}", "-{x}", "{x} ^ {n}", "{x}.abs()", "{x}.clamp(-3, {n})")  # fmt: skip
_BOUNDS = ("torch.clamp({x}, max={y})", "torch.minimum({x}, {y})", "torch.maximum({x}, {y})")


Listed = TypeVar("Listed", TableOperator, ReformingOperator)


@dataclass(frozen=True)
class CallGroup:
    """Forms of calls, and the values that they take: a section of ``calls.toml``, where each entry is explained."""

    name: str
    calls: tuple[str, ...]
    dtypes: tuple[str, ...]
    ranks: tuple[int, int] = (0, 4)
    least: int = 0
    gradient: bool = False
    random: bool = False

    def takes(self, value: ProgramValue) -> bool:
        """Return whether the calls run on a value."""
        fits = self.ranks[0] <= value.rank <= self.ranks[1] and all(
            min(size) >= self.least for size in value.shape[-2:]
        )
        return fits and value.dtype in self.dtypes and (self.gradient or not value.gradient)


_KINDS_OF_NUMBERS = {"float": FLOATING, "wide": ("float32", "float64"), "int": INTEGERS, "long": ("int64",),
                     "bool": ("bool",)}  # fmt: skip
_ALTERNATIVES = re.compile(r"<([^<>]*)>")


@cache
def load_call_groups() -> tuple[CallGroup, ...]:
    """The sections of ``calls.toml``, in order."""
    rows = read_table(__package__, "calls")
    kinds = {name: sum((_KINDS_OF_NUMBERS[kind] for kind in row["dtypes"]), ()) for name, row in rows.items()}
    return tuple(msgspec.convert({"name": name, **row, "dtypes": kinds[name]}, CallGroup) for name, row in rows.items())


def choose_alternatives(pen: Pen, form: str) -> str:
    """A form with one of the alternatives in the place of each ``<a|b>``, the inner ones first."""
    text = form.replace(r"\<", "\0").replace(r"\>", "\1")
    while (found := _ALTERNATIVES.search(text)) is not None:
        text = text[: found.start()] + pen.one_of(found[1].split("|")) + text[found.end() :]
    return text.replace("\0", "<").replace("\1", ">")


def _call(pen: Pen, scope: Scope, *, random: bool) -> object:
    groups = [group for group in load_call_groups() if group.random == random]
    value = scope.pick(lambda value: any(group.takes(value) for group in groups))
    form = pen.one_of([form for group in groups if group.takes(value) for form in group.calls])
    alike = scope.some(lambda other: (other.shape, other.dtype) == (value.shape, value.dtype) and not other.gradient)
    beside = scope.some(
        lambda other: (
            broadcast_shapes(other.shape, value.shape) is not None
            and (not other.gradient and rank_category(other.dtype) <= rank_category(value.dtype))
            and (other.dtype == "bool") == (value.dtype == "bool")
        )
    )
    names = {"x": value.name, "y": (beside or value).name, "a": (alike or value).name, "d": scope.device}
    return scope.keep(re.sub(r"\{(\w)\}", lambda hole: names[hole[1]], choose_alternatives(pen, form)))


@production(12)
def called(pen: Pen, scope: Scope) -> object:
    """A call with any form of its arguments, whose result is returned as it is."""
    return _call(pen, scope, random=False)


@production(2)
def called_random(pen: Pen, scope: Scope) -> object:
    """A call that draws random numbers, whose result is returned as it is."""
    return _call(pen, scope, random=True)


def draw_call(pen: Pen, operators: Sequence[Listed]) -> tuple[Listed, str]:
    """An operator, each as likely as the next unless names are steered, and one of its calls."""
    name = pen.draw_named([(name, 1) for name in dict.fromkeys(row.name for row in operators)])
    return pen.one_of([(row, call) for row in operators if row.name == name for call in row.calls])


def _find_partner(scope: Scope, of: ProgramValue) -> ProgramValue | None:
    return scope.some(lambda value: broadcast_shapes(value.shape, of.shape) is not None)


@production(9)
def elementwise(pen: Pen, scope: Scope) -> object:
    """A function of each element, near where it overflows, vanishes or changes its branch."""
    of = scope.pick_floating()
    scale = pen.one_of(_SCALES)
    argument = of.name if scale == 1.0 else f"{of.name} * {scale}"
    operator, function = draw_call(pen, load_operator_table().elementwise)
    parameter = pen.one_of(_PARAMETERS)
    scope.refusable |= "{a}" in function and parameter <= 0
    argument = f"({argument})" if function.startswith("{x}.") else argument
    made = function.format(x=argument, a=parameter) + (f".to(torch.{of.dtype})" if operator.cast else "")
    return scope.make(made, of.shape, of.dtype, of, smooth=operator.gradient)


@production(9)
def with_a_number(pen: Pen, scope: Scope) -> object:
    """An operator on a value and a Python number, on either side: 0, 1, −1, of another kind, or far away."""
    of = scope.pick(lambda value: value.dtype != "bool")
    number, operator = pen.one_of(_NUMBERS), pen.one_of((*_OPERATORS, "**"))
    if operator in ("/", "//", "%") and not number:
        number = 2 if of.is_integral else 0.5
    operator = "*" if number is True else operator
    swapped = pen.chance(25) and (of.is_floating or operator in "+-*") and (operator != "%" or not of.gradient)
    if of.is_integral and (operator == "**" or abs(number) > 100):
        number = 2
    if (of.dtype == "uint8" or (swapped and operator == "**")) and number < 0:
        number = 3
    dtype = promote_number(of.dtype, number)
    dtype = "float32" if operator == "/" and rank_category(dtype) < 2 else dtype
    operator = "/" if operator == "//" and of.gradient else operator  # it has no derivative
    sides = (format_number(number), of.name) if swapped else (of.name, format_number(number))
    between = operator if operator == "**" and math.isfinite(number) else f" {operator} "
    return scope.make(f"{sides[0]}{between}{sides[1]}", of.shape, dtype, of, smooth=operator != "//")


@production(12)
def of_two(pen: Pen, scope: Scope) -> object:
    """An operator on two values that broadcast, of one dtype or two."""
    first = scope.pick(lambda value: value.dtype != "bool")
    second = _find_partner(scope, first) or first
    if pen.chance(30):
        first, second = second, first
    shape, dtype = broadcast_shapes(first.shape, second.shape), find_result_dtype(first, second)
    operator = pen.one_of(_OPERATORS if rank_category(dtype) == 2 else ("+", "*"))
    if shape is None:
        return None
    if "bool" in (first.dtype, second.dtype):
        operator = "*"
    if operator == "//" and (first.gradient or second.gradient):
        operator = "/"  # it has no derivative
    call = f"{first.name} {operator} {second.name}"
    if operator in "+-" and rank_category(dtype) == 2 and pen.chance(20):
        function = "add" if operator == "+" else "sub"
        call = f"torch.{function}({first.name}, {second.name}, alpha={pen.one_of((2, -1, 0))})"
    return scope.make(call, shape, dtype, first, second, smooth=operator != "//")


@production(9)
def function_of_two(pen: Pen, scope: Scope) -> object:
    """A function of two floating values: minima, remainders, powers, losses, interpolation."""
    first = scope.pick_floating()
    operator, function = draw_call(pen, load_operator_table().of_two)
    if first.gradient and not operator.gradient:
        return None
    second = scope.pick(
        lambda value: (
            value.shape == first.shape and (value.dtype == first.dtype if operator.alike else value.dtype != "bool")
        )
    )
    made, dtype = function.format(x=first.name, y=second.name), find_result_dtype(first, second)
    made = f"({made}).to(torch.{dtype})" if operator.cast or not operator.alike else made
    return scope.make(made, first.shape, dtype, first, second, smooth=operator.gradient)


@production(1)
def refused(pen: Pen, scope: Scope) -> object:
    """A call that eager refuses: shapes or dtypes that do not go together, an index or a parameter out of range.

    The checks belong to the operator; its replacement must refuse the call as well.
    """
    of = scope.pick_floating()
    call = draw_call(pen, load_operator_table().refused)[1]
    scope.refusable = True
    return scope.make_alike(f"{{x}} + {call}.sum()", of)


@production(5)
def comparison(pen: Pen, scope: Scope) -> object:
    """A comparison of two values, or with a number; or a property of each element."""
    of = scope.pick()
    kind = pen.one_of(("number", "values", "property"))
    if kind == "property" and of.is_floating:
        return scope.make(f"torch.{pen.one_of(_PROPERTIES)}({of.name})", of.shape, "bool")
    operator = pen.one_of(_COMPARISONS)
    second = _find_partner(scope, of) if kind == "values" else None
    shape = broadcast_shapes(of.shape, second.shape) if second else None
    if second is None or shape is None:
        return scope.make(f"{of.name} {operator} {pen.one_of((0, 0.5, 1, -1))}", of.shape, "bool")
    return scope.make(f"{of.name} {operator} {second.name}", shape, "bool")


@production(7)
def choice(pen: Pen, scope: Scope) -> object:
    """Values chosen, filled or scaled by a mask."""
    of = scope.pick_floating()
    mask = scope.some(lambda value: value.dtype == "bool" and broadcast_shapes(value.shape, of.shape) == of.shape)
    condition = mask.name if mask else f"{of.name} > {pen.one_of((0, 0.5, -1))}"
    number = format_number(pen.one_of((0.0, -1.0, 0.5, float("-inf"), float("nan"))))
    return scope.make_alike(pen.one_of(_CHOICES), of, m=condition, n=number)


@production(5)
def whole_numbers(pen: Pen, scope: Scope) -> object:
    """Arithmetic of integers, small ones above all: wrapping sums, floor division, remainders, shifts, bits."""
    of = make_integers(pen, scope, scope.pick())
    if of is None:
        return None
    number = pen.one_of((3, 100, 1, -3))
    return scope.make_alike(pen.one_of(_OF_WHOLE_NUMBERS), of, n=abs(number) if of.dtype == "uint8" else number)


@production(4)
def clamp(pen: Pen, scope: Scope) -> object:
    """Clamped between numbers or values, in any order of the bounds."""
    of = scope.pick_floating()
    low, high = pen.one_of((-0.5, 0, 0.5, float("-inf"), None)), pen.one_of((0.5, 1, -0.5, float("inf")))
    bound = scope.some(lambda value: value.dtype == of.dtype and value.shape == of.shape)
    if bound is not None and pen.chance(30):
        return scope.make_alike(pen.one_of(_BOUNDS), of, bound, y=bound.name)
    lower = "" if low is None else f"min={format_number(low)}, "
    return scope.make_alike("torch.clamp({x}, {lower}max={upper})", of, lower=lower, upper=format_number(high))


_FACTORS = (1, 2, -1, 0.5, 0)
_PRODUCTS = ("{a} @ {b}", "torch.matmul({a}, {b})", "({a} @ {b}) * 2", "({a}.abs() @ {b}) + ({a} @ {b})")
_AFFINE = ("{c} + {a} @ {b}", "torch.add({c}, {a} @ {b}, alpha={n})", "torch.sub({a} @ {b}, {c}, alpha={n})")


def _pick_matrices(
    scope: Scope, dtypes: Sequence[str] = FLOATING
) -> tuple[str, str, ProgramValue, ProgramValue, Shape]:
    """Two operands of a product, the second transposed if need be: expressions, values, and the product's shape."""
    first = scope.pick(lambda value: value.rank > 1 and value.dtype in dtypes)
    leading = first.shape[:-2]

    def fits(value: ProgramValue) -> bool:
        alike = value.dtype == first.dtype and value.rank >= 2 and value.shape[:-2] in ((), leading)
        return alike and first.shape[-1] in value.shape[-2:]

    second = scope.some(fits) or first
    if second.shape[-2] == first.shape[-1] and second.shape[:-2] in ((), leading):
        return first.name, second.name, first, second, (*first.shape[:-1], second.shape[-1])
    return first.name, f"{second.name}.transpose(-1, -2)", first, second, (*first.shape[:-1], second.shape[-2])


@production(6)
def product(pen: Pen, scope: Scope) -> object:
    """A matrix product of two values, with a transposed operand where the shapes ask for it."""
    a, b, first, second, shape = _pick_matrices(scope, (*FLOATING, *INTEGERS))
    return scope.make(pen.one_of(_PRODUCTS).format(a=a, b=b), shape, first.dtype, first, second)


@production(6)
def affine_product(pen: Pen, scope: Scope) -> object:
    """A product that is added to a value, by a fused operator or by hand, with factors."""
    a, b, first, second, shape = _pick_matrices(scope)
    alpha, beta = pen.one_of(_FACTORS), pen.one_of(_FACTORS)
    bias = _choose_bias(pen, scope, shape, first.dtype)
    factors = (f", beta={beta}" if beta != 1 else "") + (f", alpha={alpha}" if alpha != 1 else "")
    fused = {2: "addmm", 3: "baddbmm" if second.rank == 3 else None}.get(len(shape))
    if fused and pen.chance(60):
        made = f"torch.{fused}({bias}, {a}, {b}{factors})"
    else:
        made = pen.one_of(_AFFINE).format(a=a, b=b, c=bias, n=alpha)
    return scope.make(made, shape, first.dtype, first, second)


def _choose_bias(pen: Pen, scope: Scope, shape: Shape, dtype: str) -> str:
    fitting = scope.some(lambda value: value.dtype == dtype and broadcast_shapes(value.shape, shape) == shape)
    if fitting is not None and pen.chance(60):
        return fitting.name
    sizes = pen.one_of((shape[-1:], shape, (shape[0], *shape[1:-1], fill_size(1, shape[0])), ()))
    text = scope.sizes(sizes)
    if pen.chance(2):
        scope.refusable = True
        text = f"({pen.one_of((3, 2))}, 1)"
    return scope.name(f"torch.full({text}, {pen.one_of((0.5, -1.0))}, dtype=torch.{dtype}, {scope.device})")


@production(4)
def contraction(pen: Pen, scope: Scope) -> object:
    """A product written otherwise: einsum, outer, a linear layer, a matrix and a vector, a sum of products."""
    of = scope.pick_floating(2)
    width, (*rows, last) = scope.text(of.shape[-1]), of.shape
    forms: tuple[tuple[str, Sequence[tuple[int, ...]]], ...] = (
        ("F.linear({x}, {x}.new_ones(3, {width}){bias})", (*rows, fill_size(3, last))),
        ('torch.einsum("...td,...sd->...ts", {x}, {x})', (*rows, rows[-1])),
        ("{x} @ {x}.new_ones({width})", rows),
        ("{x}.unsqueeze(-1) * {x}.unsqueeze(-2)", (*of.shape, last)),
        ("({x}.unsqueeze(-2) * {x}.unsqueeze(-3)).sum(-1)", (*rows, rows[-1])),
    )
    form, shape = pen.one_of(forms)
    bias = f", {of.name}.new_ones(3)" if "{bias}" in form and pen.chance(40) else ""
    return scope.make(form.format(x=of.name, width=width, bias=bias), tuple(shape), of.dtype, of)


_SUMS = ("sum", "mean", "amax", "amin", "prod", "nansum", "logsumexp", "var", "std", "norm", "any", "all",
         "count_nonzero", "argmax", "argmin", "median")  # fmt: skip
_OF_INTEGERS = ("sum", "amax", "amin", "prod", "any", "all", "count_nonzero", "argmax", "argmin")
_OF_BOOLEANS = ("sum", "amax", "amin", "prod", "any", "all", "count_nonzero")
_SCANS = ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "softmax", "log_softmax")
_ORDERS = ("sort(dim={axis}, stable=True)", "topk({count}, dim={axis})", "max({axis})", "min({axis})",
           "kthvalue(1, {axis})")  # fmt: skip
_NORMALISED = (
    "F.layer_norm({x}, ({width},))", "F.rms_norm({x}, ({width},))", "F.normalize({x}, dim=-1)",
    "{x} * ({x}.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt()",
    "({x} - {x}.mean(-1, keepdim=True)) / ({x}.var(-1, keepdim=True) + 1e-5).sqrt()",
    "{x} - {x}.amax(-1, keepdim=True)", "{x} / ({x}.abs().sum(-1, keepdim=True) + 1)",
    "{x} - {x}.logsumexp(-1, keepdim=True)",
)  # fmt: skip


def _find_sum_dtype(of: ProgramValue, how: str) -> str:
    if how in ("any", "all"):
        return "uint8" if of.dtype == "uint8" else "bool"
    if how in ("count_nonzero", "argmax", "argmin"):
        return "int64"
    return "int64" if how in ("sum", "prod") and not of.is_floating else of.dtype


@production(9)
def reduction(pen: Pen, scope: Scope) -> object:
    """A reduction over an axis, kept or not, in the dtype that is asked for."""
    of = scope.pick(lambda value: value.rank > 0)
    how = pen.one_of(_SUMS if of.is_floating else _OF_INTEGERS if of.is_integral else _OF_BOOLEANS)
    axis, keep = scope.pick_axis(of, 2 if how in ("var", "std") else 1), pen.chance(50) and how != "count_nonzero"
    dtype, more = _find_sum_dtype(of, how), f", keepdim={keep}" if keep else ""
    if how in ("var", "std") and pen.chance(50):
        more += ", correction=0"
    if how in ("sum", "mean", "prod") and pen.chance(25):
        dtype = pen.one_of(("float32", "float64")) if of.is_floating else pen.one_of(("int32", "float32", "int8"))
        more += f", dtype=torch.{dtype}"
    order = f"{pen.one_of((2, 1))}, " if how == "norm" else ""
    shape = replace_axis(of.shape, axis, *((fill_size(1, of.shape[axis]),) if keep else ()))
    return scope.make(f"{of.name}.{how}({order}{axis}{more}){'.values' if how == 'median' else ''}", shape, dtype, of)


@production(4)
def whole_reduction(pen: Pen, scope: Scope) -> object:
    """A reduction over two axes, or over all: it may share work with one over a single axis."""
    of = scope.pick(lambda value: value.rank > 1)
    how = pen.one_of(("sum", "mean", "amax", "amin") if of.is_floating else ("sum", "amax", "amin"))
    two, one = pen.chance(50), fill_size(1, of.shape[-1])
    arguments, shape = ("(-2, -1), keepdim=True", (*of.shape[:-2], one, one)) if two else ("", ())
    return scope.make(f"{of.name}.{how}({arguments})", shape, _find_sum_dtype(of, how), of)


@production(7)
def scan(pen: Pen, scope: Scope) -> object:
    """A cumulative sum, product or maximum, or a softmax, along an axis, in the dtype that is asked for."""
    of, axis = scope.pick_with_axis()
    how = pen.one_of(_SCANS if of.is_floating else ("cumsum", "cumprod"))
    dtype, more = of.dtype, ""
    if how in ("cumsum", "cumprod", "softmax", "log_softmax"):
        dtype = of.dtype if of.is_floating else "int64"
        if pen.chance(25):
            asked = ("float32", "float64") if how.endswith("softmax") else ("float32", "int32", "float64", "int8")
            dtype = pen.one_of(asked)
            dtype = "float32" if of.is_floating and "int" in dtype else dtype
            more = f", dtype=torch.{dtype}"
    values = ".values" if how in ("cummax", "cummin") else ""
    return scope.make(f"{of.name}.{how}({axis}{more}){values}", of.shape, dtype, of)


@production(4)
def order(pen: Pen, scope: Scope) -> object:
    """Sorted or greatest values and their places, under ties too."""
    of, axis = scope.pick_with_axis(lambda value: value.dtype != "bool")
    form, count = pen.one_of(_ORDERS), min(2, min(of.shape[axis]))
    sorts, left = form.startswith("sort"), [fill_size(count, of.shape[axis])] if "topk" in form else []
    shape = of.shape if sorts else replace_axis(of.shape, axis, *left)
    call = f"{of.name}.{form.format(axis=axis, count=count)}"
    if pen.chance(65) or (not sorts and of.is_floating and pen.chance(50)):
        return scope.make(f"{call}.values", shape, of.dtype, of)
    return scope.make(f"{call}.indices", shape, "int64", of)


@production(4)
def normalised(pen: Pen, scope: Scope) -> object:
    """A norm over the last axis, by the library or by hand."""
    of = scope.pick(lambda value: value.is_floating and value.rank > 1 and min(value.shape[-1]) > 1)
    return scope.make_alike(pen.one_of(_NORMALISED), of, width=scope.text(of.shape[-1]))


@production(4)
def pooled(pen: Pen, scope: Scope) -> object:
    """A function along the last axis of a value with three axes: pooling, resizing, scans, searches."""
    of = scope.pick(
        lambda value: value.is_floating and value.rank == 3 and min(value.shape[-1]) > 1 and set(value.shape[0]) != {1}
    )
    operator, call = draw_call(pen, load_operator_table().along)
    made = call.format(rows=of.name)
    made = f"({made}).to(torch.{of.dtype})" if operator.cast else made
    return scope.make(made, of.shape, of.dtype, of, smooth=operator.gradient)


def _with_axes(of: ProgramValue, rank: int) -> tuple[str, Shape]:
    """A value with so many axes, as text and shape: its first parts, or itself behind axes of size 1."""
    more = rank - of.rank
    if more < 0:
        return of.name + "[0]" * -more, of.shape[-more:]
    return of.name + "[None]" * more, (*(fill_size(1, of.shape[0]) for _ in range(more)), *of.shape)


@production(8)
def reformed(pen: Pen, scope: Scope) -> object:
    """An operator of torch's whose result has another form: pooled planes, folded, diagonals, norms, parts, counts."""
    of, operators = scope.pick_floating(1), load_operator_table().reforming
    operands = {rank: _with_axes(of, rank) for rank in {operator.rank for operator in operators}}
    fitting = tuple(operator for operator in operators if operator.takes(operands[operator.rank][1]))
    if not fitting:
        return None
    operator, call = draw_call(pen, fitting)
    name, shape = operands[operator.rank]
    made, result = call.format(x=name), operator.find_shape(shape)
    if operator.view:
        return scope.view(made, result, of, frozen=True)
    return scope.make(made, result, operator.dtype or of.dtype, of, smooth=operator.gradient)


@production(4)
def padded(pen: Pen, scope: Scope) -> object:
    """Padded at the ends of the last axis with a constant or with what is there; amounts may be zero or negative."""
    of = scope.pick(lambda value: value.rank > 0)
    if min(of.shape[-1]) < 3:
        return None
    before, after = pen.one_of(((1, 1), (0, 2), (0, 0), (-1, 1), (0, -1), (2, 0)))
    modes = ("constant", "value", "reflect", "circular", "replicate")
    mode = pen.one_of(modes if of.is_floating and of.rank in (2, 3) and min(before, after) >= 0 else modes[:2])
    more = f", value={pen.one_of((1, 2))}" if mode == "value" else "" if mode == "constant" else f', mode="{mode}"'
    size = tuple(number + before + after for number in of.shape[-1])
    return scope.make(f"F.pad({of.name}, ({before}, {after}){more})", replace_axis(of.shape, -1, size), of.dtype, of)
