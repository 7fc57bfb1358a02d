"""Productions that work element by element: functions of one value, of two with broadcasting, comparisons, choices."""

from __future__ import annotations

import math

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.operator_table import drawn_call, operator_table
from fuzzcompile.generation.programs.creations import integers, literal
from fuzzcompile.generation.programs.production import production
from fuzzcompile.generation.programs.scope import Scope
from fuzzcompile.generation.programs.values import Value, broadcast, category, result_dtype, with_number

# Numbers for which rules have special cases, or at which kernels overflow or vanish.
_NUMBERS: tuple[float, ...] = (2, 1, 0, -1, 0.5, 1.0, 0.0, -2.0, 3, 100, 1e-30, 3e4, -0.5, float("inf"), True)
_PARAMETERS = (1.0, 0.5, -1.0, 1e-3, 2.0, 0.0)
_SCALES = (1.0, -1.0, 4.0, 1e-4, 30.0, 89.0, 3e4, 1e-30)
_OPERATORS = ("+", "*", "-", "/", "//", "%")
_COMPARISONS = (">", "<=", "==", "!=", ">=", "<")


def partner(scope: Scope, of: Value) -> Value | None:
    """A value that broadcasts with this one."""
    return scope.some(lambda value: broadcast(value.shape, of.shape) is not None)


@production(9)
def elementwise(pen: Pen, scope: Scope) -> object:
    """A function of each element, near where it overflows, vanishes or changes its branch."""
    of = scope.floating()
    if of is None:
        return None
    scale = pen.one_of(_SCALES)
    argument = of.name if scale == 1.0 else f"{of.name} * {scale}"
    operator, function = drawn_call(pen, operator_table().elementwise)
    parameter = pen.one_of(_PARAMETERS)
    scope.refusable |= "{a}" in function and parameter <= 0
    argument = f"({argument})" if function.startswith("{x}.") else argument
    made = function.replace("{x}", argument).replace("{a}", str(parameter))
    made = f"{made}.to(torch.{of.dtype})" if operator.cast else made
    return scope.make(made, of.shape, of.dtype, of, smooth=operator.gradient)


@production(9)
def with_a_number(pen: Pen, scope: Scope) -> object:
    """An operator on a value and a Python number, on either side: 0, 1, −1, of another kind, or far away."""
    of = scope.some(lambda value: value.dtype != "bool")
    if of is None:
        return None
    number, operator = pen.one_of(_NUMBERS), pen.one_of((*_OPERATORS, "**"))
    if operator in ("/", "//", "%") and not number:
        number = 2 if of.integral else 0.5
    operator = "*" if number is True else operator
    swapped = pen.chance(25) and (of.floating or operator in "+-*") and (operator != "%" or not of.gradient)
    if of.integral and (operator == "**" or abs(number) > 100):
        number = 2
    if (of.dtype == "uint8" or (swapped and operator == "**")) and number < 0:
        number = 3
    dtype = with_number(of.dtype, number)
    dtype = "float32" if operator == "/" and category(dtype) < 2 else dtype
    operator = "/" if operator == "//" and of.gradient else operator  # it has no derivative
    sides = (literal(number), of.name) if swapped else (of.name, literal(number))
    between = operator if operator == "**" and math.isfinite(number) else f" {operator} "
    return scope.make(f"{sides[0]}{between}{sides[1]}", of.shape, dtype, of, smooth=operator != "//")


@production(12)
def of_two(pen: Pen, scope: Scope) -> object:
    """An operator on two values that broadcast, of one dtype or two."""
    first = scope.some(lambda value: value.dtype != "bool")
    second = None if first is None else partner(scope, first)
    if first is None or second is None:
        return None
    if pen.chance(30):
        first, second = second, first
    shape, dtype = broadcast(first.shape, second.shape), result_dtype(first, second)
    operator = pen.one_of(_OPERATORS if category(dtype) == 2 else ("+", "*"))
    if shape is None:
        return None
    if "bool" in (first.dtype, second.dtype):
        operator = "*"
    if operator == "//" and (first.gradient or second.gradient):
        operator = "/"  # it has no derivative
    how = f"{first.name} {operator} {second.name}"
    if operator in "+-" and category(dtype) == 2 and pen.chance(20):
        how = (
            f"torch.{'add' if operator == '+' else 'sub'}({first.name}, {second.name}, alpha={pen.one_of((2, -1, 0))})"
        )
    return scope.make(how, shape, dtype, first, second, smooth=operator != "//")


@production(9)
def function_of_two(pen: Pen, scope: Scope) -> object:
    """A function of two floating values: minima, remainders, powers, losses, interpolation."""
    first, (operator, function) = scope.floating(), drawn_call(pen, operator_table().of_two)
    if first is None or (first.gradient and not operator.gradient):
        return None
    second = scope.some(
        lambda value: (
            value.shape == first.shape and (value.dtype == first.dtype if operator.alike else value.dtype != "bool")
        )
    )
    if second is None:
        return None
    made = function.replace("{x}", first.name).replace("{y}", second.name)
    dtype = result_dtype(first, second)
    made = f"({made}).to(torch.{dtype})" if operator.cast or not operator.alike else made
    return scope.make(made, first.shape, dtype, first, second, smooth=operator.gradient)


@production(1)
def refused(pen: Pen, scope: Scope) -> object:
    """A call that eager refuses: shapes or dtypes that do not go together, an index or a parameter out of range.

    The checks belong to the operator; its replacement must refuse the call as well.
    """
    of = scope.floating()
    if of is None:
        return None
    call = drawn_call(pen, operator_table().refused)[1].replace("{x}", of.name)
    scope.refusable = True
    return scope.make(f"{of.name} + {call}.sum()", of.shape, of.dtype, of)


@production(5)
def comparison(pen: Pen, scope: Scope) -> object:
    """A comparison of two values, or with a number; or a property of each element."""
    of = scope.some()
    if of is None:
        return None
    kind = pen.one_of(("number", "values", "property"))
    if kind == "property" and of.floating:
        return scope.make(f"torch.{pen.one_of(('isnan', 'isfinite', 'isinf', 'signbit'))}({of.name})", of.shape, "bool")
    operator = pen.one_of(_COMPARISONS)
    second = partner(scope, of) if kind == "values" else None
    shape = broadcast(of.shape, second.shape) if second else None
    if second is None or shape is None:
        number = pen.one_of((0, 0.5, 1, -1))
        return scope.make(f"{of.name} {operator} {number}", of.shape, "bool")
    return scope.make(f"{of.name} {operator} {second.name}", shape, "bool")


@production(7)
def choice(pen: Pen, scope: Scope) -> object:
    """Values chosen, filled or scaled by a mask."""
    of = scope.floating()
    mask = (
        scope.some(lambda value: value.dtype == "bool" and broadcast(value.shape, of.shape) == of.shape) if of else None
    )
    if of is None:
        return None
    condition = mask.name if mask else f"{of.name} > {pen.one_of((0, 0.5, -1))}"
    number = literal(pen.one_of((0.0, -1.0, 0.5, float("-inf"), float("nan"))))
    how = pen.one_of(
        (
            "torch.where({m}, {x}, {n})",
            "{x}.masked_fill({m}, {n})",
            "torch.where({m}, {n}, {x})",
            "{x} * ({m})",
            "torch.where({m}, {x}, -{x})",
        )
    )
    made = how.replace("{m}", condition).replace("{x}", of.name).replace("{n}", number)
    return scope.make(made, of.shape, of.dtype, of)


@production(5)
def whole_numbers(pen: Pen, scope: Scope) -> object:
    """Arithmetic of integers, small ones above all: wrapping sums, floor division, remainders, shifts, bits."""
    given = scope.some()
    of = None if given is None else integers(pen, scope, given)
    if of is None:
        return None
    number = pen.one_of((3, 100, 1, -3))
    number = abs(number) if of.dtype == "uint8" else number
    how = pen.one_of(("{x} + {n}", "{x} * {n}", "{x} // {n}", "{x} % {n}", "{x} >> 2", "~{x}", "{x} & 5", "{x} << 3",
                      "{x} * {x}", "-{x}", "{x} ^ {n}", "{x}.abs()", "{x}.clamp(-3, {n})"))  # fmt: skip
    return scope.make(how.replace("{x}", of.name).replace("{n}", str(number)), of.shape, of.dtype)


@production(4)
def clamp(pen: Pen, scope: Scope) -> object:
    """Clamped between numbers or values, in any order of the bounds."""
    of = scope.floating()
    if of is None:
        return None
    low, high = pen.one_of((-0.5, 0, 0.5, float("-inf"), None)), pen.one_of((0.5, 1, -0.5, float("inf")))
    bound = scope.some(lambda value: value.dtype == of.dtype and value.shape == of.shape)
    if bound is not None and pen.chance(30):
        how = pen.one_of(("torch.clamp({x}, max={y})", "torch.minimum({x}, {y})", "torch.maximum({x}, {y})"))
        return scope.make(how.replace("{x}", of.name).replace("{y}", bound.name), of.shape, of.dtype, of, bound)
    lower = "" if low is None else f"min={literal(low)}, "
    return scope.make(f"torch.clamp({of.name}, {lower}max={literal(high)})", of.shape, of.dtype, of)
