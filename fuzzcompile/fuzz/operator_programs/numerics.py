"""Productions that compute: pointwise functions, matrix products, reductions, scans, norms."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fuzzcompile.fuzz.generation.spec import Pen
from fuzzcompile.fuzz.operator_programs.creations import format_number, make_integers, replace_axis
from fuzzcompile.fuzz.operator_programs.operator_table import TableOperator, load_operator_table
from fuzzcompile.fuzz.operator_programs.production import (
    FLOATING,
    INTEGERS,
    ProgramValue,
    Scope,
    Shape,
    broadcast_shapes,
    find_least,
    find_result_dtype,
    is_one,
    production,
    promote_number,
    rank_category,
)

# Numbers for which rules have special cases, or at which kernels overflow or vanish.
_NUMBERS: tuple[float, ...] = (2, 1, 0, -1, 0.5, 1.0, 0.0, -2.0, 3, 100, 1e-30, 3e4, -0.5, float("inf"), True)
_PARAMETERS = (1.0, 0.5, -1.0, 1e-3, 2.0, 0.0)
_SCALES = (1.0, -1.0, 4.0, 1e-4, 30.0, 89.0, 3e4, 1e-30)
_OPERATORS = ("+", "*", "-", "/", "//", "%")
_COMPARISONS = (">", "<=", "==", "!=", ">=", "<")


def find_partner(scope: Scope, of: ProgramValue) -> ProgramValue | None:
    """A value that broadcasts with this one."""
    return scope.some(lambda value: broadcast_shapes(value.shape, of.shape) is not None)


@production(9)
def elementwise(pen: Pen, scope: Scope) -> object:
    """A function of each element, near where it overflows, vanishes or changes its branch."""
    of = scope.pick_floating()
    if of is None:
        return None
    scale = pen.one_of(_SCALES)
    argument = of.name if scale == 1.0 else f"{of.name} * {scale}"
    operator, function = draw_call(pen, load_operator_table().elementwise)
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
    first = scope.some(lambda value: value.dtype != "bool")
    second = None if first is None else find_partner(scope, first)
    if first is None or second is None:
        return None
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
    how = f"{first.name} {operator} {second.name}"
    if operator in "+-" and rank_category(dtype) == 2 and pen.chance(20):
        how = (
            f"torch.{'add' if operator == '+' else 'sub'}({first.name}, {second.name}, alpha={pen.one_of((2, -1, 0))})"
        )
    return scope.make(how, shape, dtype, first, second, smooth=operator != "//")


@production(9)
def function_of_two(pen: Pen, scope: Scope) -> object:
    """A function of two floating values: minima, remainders, powers, losses, interpolation."""
    first, (operator, function) = scope.pick_floating(), draw_call(pen, load_operator_table().of_two)
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
    dtype = find_result_dtype(first, second)
    made = f"({made}).to(torch.{dtype})" if operator.cast or not operator.alike else made
    return scope.make(made, first.shape, dtype, first, second, smooth=operator.gradient)


@production(1)
def refused(pen: Pen, scope: Scope) -> object:
    """A call that eager refuses: shapes or dtypes that do not go together, an index or a parameter out of range.

    The checks belong to the operator; its replacement must refuse the call as well.
    """
    of = scope.pick_floating()
    if of is None:
        return None
    call = draw_call(pen, load_operator_table().refused)[1].replace("{x}", of.name)
    scope.refusable = True
    return scope.make(f"{of.name} + {call}.sum()", of.shape, of.dtype, of)


@production(5)
def comparison(pen: Pen, scope: Scope) -> object:
    """A comparison of two values, or with a number; or a property of each element."""
    of = scope.some()
    if of is None:
        return None
    kind = pen.one_of(("number", "values", "property"))
    if kind == "property" and of.is_floating:
        return scope.make(f"torch.{pen.one_of(('isnan', 'isfinite', 'isinf', 'signbit'))}({of.name})", of.shape, "bool")
    operator = pen.one_of(_COMPARISONS)
    second = find_partner(scope, of) if kind == "values" else None
    shape = broadcast_shapes(of.shape, second.shape) if second else None
    if second is None or shape is None:
        number = pen.one_of((0, 0.5, 1, -1))
        return scope.make(f"{of.name} {operator} {number}", of.shape, "bool")
    return scope.make(f"{of.name} {operator} {second.name}", shape, "bool")


@production(7)
def choice(pen: Pen, scope: Scope) -> object:
    """Values chosen, filled or scaled by a mask."""
    of = scope.pick_floating()
    mask = (
        scope.some(lambda value: value.dtype == "bool" and broadcast_shapes(value.shape, of.shape) == of.shape)
        if of
        else None
    )
    if of is None:
        return None
    condition = mask.name if mask else f"{of.name} > {pen.one_of((0, 0.5, -1))}"
    number = format_number(pen.one_of((0.0, -1.0, 0.5, float("-inf"), float("nan"))))
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
    of = None if given is None else make_integers(pen, scope, given)
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
    of = scope.pick_floating()
    if of is None:
        return None
    low, high = pen.one_of((-0.5, 0, 0.5, float("-inf"), None)), pen.one_of((0.5, 1, -0.5, float("inf")))
    bound = scope.some(lambda value: value.dtype == of.dtype and value.shape == of.shape)
    if bound is not None and pen.chance(30):
        how = pen.one_of(("torch.clamp({x}, max={y})", "torch.minimum({x}, {y})", "torch.maximum({x}, {y})"))
        return scope.make(how.replace("{x}", of.name).replace("{y}", bound.name), of.shape, of.dtype, of, bound)
    lower = "" if low is None else f"min={format_number(low)}, "
    return scope.make(f"torch.clamp({of.name}, {lower}max={format_number(high)})", of.shape, of.dtype, of)


# Productions of matrix products, with factors, biases and transposed operands.

_FACTORS = (1, 2, -1, 0.5, 0)


def _pick_matrices(
    scope: Scope, dtypes: Sequence[str] = FLOATING
) -> tuple[str, str, ProgramValue, ProgramValue, Shape] | None:
    """Two operands of a product, the second transposed if need be: expressions, values, and the product's shape."""
    first = scope.some(lambda value: value.rank > 1 and value.dtype in dtypes)
    if first is None:
        return None
    leading = first.shape[:-2]

    def fits(value: ProgramValue) -> bool:
        alike = value.dtype == first.dtype and value.rank >= 2 and value.shape[:-2] in ((), leading)
        return alike and first.shape[-1] in value.shape[-2:]

    second = scope.some(fits)
    if second is None:
        second = first
    if second.shape[-2] == first.shape[-1] and second.shape[:-2] in ((), leading):
        return first.name, second.name, first, second, (*first.shape[:-1], second.shape[-1])
    return first.name, f"{second.name}.transpose(-1, -2)", first, second, (*first.shape[:-1], second.shape[-2])


@production(6)
def product(pen: Pen, scope: Scope) -> object:
    """A matrix product of two values, with a transposed operand where the shapes ask for it."""
    operands = _pick_matrices(scope, (*FLOATING, *INTEGERS))
    if operands is None:
        return None
    a, b, first, second, shape = operands
    how = pen.one_of(("{a} @ {b}", "torch.matmul({a}, {b})", "({a} @ {b}) * 2", "({a}.abs() @ {b}) + ({a} @ {b})"))
    return scope.make(how.replace("{a}", a).replace("{b}", b), shape, first.dtype, first, second)


@production(6)
def affine_product(pen: Pen, scope: Scope) -> object:
    """A product that is added to a value, by a fused operator or by hand, with factors."""
    operands = _pick_matrices(scope)
    if operands is None:
        return None
    a, b, first, second, shape = operands
    alpha, beta = pen.one_of(_FACTORS), pen.one_of(_FACTORS)
    bias = _choose_bias(pen, scope, shape, first.dtype)
    dtype = first.dtype
    factors = (f", beta={beta}" if beta != 1 else "") + (f", alpha={alpha}" if alpha != 1 else "")
    if len(shape) == 2 and pen.chance(60):
        return scope.make(f"torch.addmm({bias}, {a}, {b}{factors})", shape, dtype, first, second)
    if len(shape) == 3 and second.rank == 3 and pen.chance(60):
        return scope.make(f"torch.baddbmm({bias}, {a}, {b}{factors})", shape, dtype, first, second)
    how = pen.one_of(
        ("{c} + {a} @ {b}", "torch.add({c}, {a} @ {b}, alpha={n})", "torch.sub({a} @ {b}, {c}, alpha={n})")
    )
    made = how.replace("{a}", a).replace("{b}", b).replace("{c}", bias).replace("{n}", str(alpha))
    return scope.make(made, shape, dtype, first, second)


def _choose_bias(pen: Pen, scope: Scope, shape: Shape, dtype: str) -> str:
    """A value that broadcasts to the shape, a constant that does, or, rarely, one of another size."""
    fitting = scope.some(lambda value: value.dtype == dtype and broadcast_shapes(value.shape, shape) == shape)
    if fitting is not None and pen.chance(60):
        return fitting.name
    sizes = pen.one_of((shape[-1:], shape, (shape[0], *shape[1:-1], tuple(1 for _ in shape[0])), ()))
    text = scope.sizes(sizes)
    if pen.chance(2):
        scope.refusable = True
        text = f"({pen.one_of((3, 2))}, 1)"
    return scope.name(f"torch.full({text}, {pen.one_of((0.5, -1.0))}, dtype=torch.{dtype}, {scope.device})")


@production(4)
def contraction(pen: Pen, scope: Scope) -> object:
    """A product written otherwise: einsum, outer, a linear layer, a matrix and a vector, a sum of products."""
    of = scope.pick_floating(2)
    if of is None:
        return None
    x, rows = of.name, of.shape[:-1]
    how = pen.one_of(("linear", "einsum", "matvec", "outer", "sum"))
    if how == "linear":
        width = tuple(3 for _ in of.shape[-1])
        weight = f"{x}.new_ones(3, {scope.text(of.shape[-1])})"
        bias = f", {x}.new_ones(3)" if pen.chance(40) else ""
        return scope.make(f"F.linear({x}, {weight}{bias})", (*rows, width), of.dtype, of)
    if how == "einsum":
        return scope.make(f'torch.einsum("...td,...sd->...ts", {x}, {x})', (*rows, of.shape[-2]), of.dtype, of)
    if how == "matvec":
        return scope.make(f"{x} @ {x}.new_ones({scope.text(of.shape[-1])})", rows, of.dtype, of)
    if how == "outer":
        return scope.make(f"{x}.unsqueeze(-1) * {x}.unsqueeze(-2)", (*of.shape, of.shape[-1]), of.dtype, of)
    return scope.make(f"({x}.unsqueeze(-2) * {x}.unsqueeze(-3)).sum(-1)", (*rows, of.shape[-2]), of.dtype, of)


# Calls of several functions beside the single ones of the table of operators.

# They keep the form of {rows}, (N, C, L), together.
COMPOSED = tuple(
    TableOperator(call.partition("(")[0], (call,), gradient=smooth, cast=not smooth or ".float()" in call)
    for call, smooth in (
        ("F.lp_pool1d({rows}, 2, 1, 1)", True),
        ("F.max_pool1d({rows}, 3, 1, 1)", True),
        ("F.max_pool1d({rows}, 2, 1, 1, dilation=1)[..., 1:]", True),
        ('F.interpolate({rows}, scale_factor=2.0, mode="nearest")[..., ::2]', True),
        ('F.interpolate({rows}, scale_factor=2.0, mode="linear", align_corners=True)[..., 1::2]', True),
        ('F.interpolate({rows}, scale_factor=2, mode="linear")[..., 1::2]', True),
        ("F.instance_norm({rows}.repeat(1, 1, 2))[..., : {rows}.shape[-1]]", True),
        ("F.batch_norm({rows}.repeat(2, 1, 1), None, None, training=True)[: {rows}.shape[0]]", True),
        ("F.unfold({rows}[:, None], (1, 1)).view({rows}.shape)", True),
        ("torch.diff({rows}, dim=-1, prepend={rows}[..., :1])", True),
        ("torch.cdist({rows}.float(), {rows}.float())[..., :1] + {rows}", True),
        ("torch.bmm({rows}, ({rows}.transpose(1, 2) @ {rows}).tril())", True),
        ("torch.take_along_dim({rows}, {rows}.argsort(-1, descending=True), -1)", True),
        ("torch.searchsorted({rows}.sort(-1).values, {rows})", False),
        ("torch.bucketize({rows}, {rows}.new_tensor([-0.5, 0.0, 0.5]), right=True)", False),
        ("torch.repeat_interleave({rows}, 2, dim=-1)[..., ::2]", True),
        ("torch.tensor_split({rows}, 3, dim=-1)[0].sum(-1, keepdim=True) + {rows}", True),
    )
)


# Productions along axes: reductions, scans, orders, norms.

_SUMS = ("sum", "mean", "amax", "amin", "prod", "nansum", "logsumexp", "var", "std", "norm", "any", "all",
         "count_nonzero", "argmax", "argmin", "median")  # fmt: skip
_OF_INTEGERS = ("sum", "amax", "amin", "prod", "any", "all", "count_nonzero", "argmax", "argmin")
_OF_BOOLEANS = ("sum", "amax", "amin", "prod", "any", "all", "count_nonzero")
_SCANS = ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "softmax", "log_softmax")


def reduce_axis(shape: Shape, axis: int, keep: bool) -> Shape:
    """The shape without an axis, or with one of size one in its place."""
    return replace_axis(shape, axis, tuple(1 for _ in shape[axis])) if keep else replace_axis(shape, axis)


def _find_sum_dtype(of: ProgramValue, how: str) -> str:
    if how in ("any", "all"):
        return "uint8" if of.dtype == "uint8" else "bool"
    if how in ("count_nonzero", "argmax", "argmin"):
        return "int64"
    return "int64" if how in ("sum", "prod") and not of.is_floating else of.dtype


@production(9)
def reduction(pen: Pen, scope: Scope) -> object:
    """A reduction over an axis, kept or not, in the dtype that is asked for."""
    of = scope.some(lambda value: value.rank > 0)
    if of is None:
        return None
    how = pen.one_of(_SUMS if of.is_floating else _OF_INTEGERS if of.is_integral else _OF_BOOLEANS)
    axis, keep = scope.axis(of, 2 if how in ("var", "std") else 1), pen.chance(50)
    if axis is None:
        return None
    dtype, more = _find_sum_dtype(of, how), f", keepdim={keep}" if keep else ""
    if how in ("var", "std") and pen.chance(50):
        more += ", correction=0"
    if how == "norm":
        return scope.make(
            f"{of.name}.norm({pen.one_of((2, 1))}, {axis}{more})", reduce_axis(of.shape, axis, keep), of.dtype, of
        )
    if how in ("sum", "mean", "prod") and pen.chance(25):
        dtype = pen.one_of(("float32", "float64")) if of.is_floating else pen.one_of(("int32", "float32", "int8"))
        more += f", dtype=torch.{dtype}"
    values = ".values" if how == "median" else ""
    if how == "count_nonzero":
        more, keep = "", False
    smooth = dtype in ("float16", "bfloat16", "float32", "float64")
    return scope.make(
        f"{of.name}.{how}({axis}{more}){values}", reduce_axis(of.shape, axis, keep), dtype, of, smooth=smooth
    )


@production(4)
def whole_reduction(pen: Pen, scope: Scope) -> object:
    """A reduction over two axes, or over all: it may share work with one over a single axis."""
    of = scope.some(lambda value: value.rank > 1)
    if of is None:
        return None
    how = pen.one_of(("sum", "mean", "amax", "amin") if of.is_floating else ("sum", "amax", "amin"))
    dtype = _find_sum_dtype(of, how)
    if pen.chance(50):
        return scope.make(f"{of.name}.{how}((-2, -1), keepdim=True)", _reduce_last_axes(of.shape), dtype, of)
    return scope.make(f"{of.name}.{how}()", (), dtype, of)


def _reduce_last_axes(shape: Shape) -> Shape:
    one = tuple(1 for _ in shape[-1])
    return (*shape[:-2], one, one)


@production(7)
def scan(pen: Pen, scope: Scope) -> object:
    """A cumulative sum, product or maximum, or a softmax, along an axis, in the dtype that is asked for."""
    of = scope.some(lambda value: value.rank > 0)
    axis = None if of is None else scope.axis(of)
    if of is None or axis is None:
        return None
    how = pen.one_of(_SCANS if of.is_floating else ("cumsum", "cumprod"))
    dtype, more = of.dtype, ""
    if how in ("cumsum", "cumprod", "softmax", "log_softmax"):
        dtype = of.dtype if of.is_floating else "int64"
        if pen.chance(25):
            dtype = pen.one_of(
                ("float32", "float64") if how.endswith("softmax") else ("float32", "int32", "float64", "int8")
            )
            dtype = "float32" if of.is_floating and "int" in dtype else dtype
            more = f", dtype=torch.{dtype}"
    values = ".values" if how in ("cummax", "cummin") else ""
    return scope.make(f"{of.name}.{how}({axis}{more}){values}", of.shape, dtype, of)


@production(4)
def order(pen: Pen, scope: Scope) -> object:
    """Sorted or greatest values and their places, under ties too."""
    of = scope.some(lambda value: value.rank > 0 and value.dtype != "bool")
    axis = None if of is None else scope.axis(of)
    if of is None or axis is None:
        return None
    how = pen.one_of(("sort(dim={d}, stable=True)", "topk({k}, dim={d})", "max({d})", "min({d})", "kthvalue(1, {d})"))
    count = min(2, find_least(of.shape[axis]))
    call = how.replace("{d}", str(axis)).replace("{k}", str(count))
    if how.startswith("sort"):
        shape = of.shape
    else:
        shape = (
            replace_axis(of.shape, axis, tuple(count for _ in of.shape[axis]))
            if "topk" in how
            else replace_axis(of.shape, axis)
        )
    if pen.chance(65) or (not how.startswith("sort") and of.is_floating and pen.chance(50)):
        return scope.make(f"{of.name}.{call}.values", shape, of.dtype, of)
    return scope.make(f"{of.name}.{call}.indices", shape, "int64", of)


@production(4)
def normalised(pen: Pen, scope: Scope) -> object:
    """A norm over the last axis, by the library or by hand."""
    of = scope.some(lambda value: value.is_floating and value.rank > 1 and find_least(value.shape[-1]) > 1)
    if of is None:
        return None
    width = scope.text(of.shape[-1])
    how = pen.one_of(
        (
            "F.layer_norm({x}, ({w},))",
            "F.rms_norm({x}, ({w},))",
            "F.normalize({x}, dim=-1)",
            "{x} * ({x}.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt()",
            "({x} - {x}.mean(-1, keepdim=True)) / ({x}.var(-1, keepdim=True) + 1e-5).sqrt()",
            "{x} - {x}.amax(-1, keepdim=True)",
            "{x} / ({x}.abs().sum(-1, keepdim=True) + 1)",
            "{x} - {x}.logsumexp(-1, keepdim=True)",
        )
    )
    return scope.make(how.replace("{x}", of.name).replace("{w}", width), of.shape, of.dtype, of)


@production(4)
def pooled(pen: Pen, scope: Scope) -> object:
    """A function along the last axis of a value with three axes: pooling, resizing, scans, searches."""
    of = scope.some(
        lambda value: (
            value.is_floating and value.rank == 3 and find_least(value.shape[-1]) > 1 and not is_one(value.shape[0])
        )
    )
    if of is None:
        return None
    operator, call = draw_call(pen, (*load_operator_table().along, *COMPOSED))
    made = call.replace("{rows}", of.name)
    made = f"({made}).to(torch.{of.dtype})" if operator.cast else made
    return scope.make(made, of.shape, of.dtype, of, smooth=operator.gradient)


@production(4)
def padded(pen: Pen, scope: Scope) -> object:
    """Padded at the ends of the last axis with a constant or with what is there; amounts may be zero or negative."""
    of = scope.some(lambda value: value.rank > 0)
    if of is None or find_least(of.shape[-1]) < 3:
        return None
    before, after = pen.one_of(((1, 1), (0, 2), (0, 0), (-1, 1), (0, -1), (2, 0)))
    modes = ("constant", "value", "reflect", "circular", "replicate")
    mode = pen.one_of(modes if of.is_floating and of.rank in (2, 3) and min(before, after) >= 0 else modes[:2])
    more = f", value={pen.one_of((1, 2))}" if mode == "value" else "" if mode == "constant" else f', mode="{mode}"'
    size = tuple(number + before + after for number in of.shape[-1])
    return scope.make(f"F.pad({of.name}, ({before}, {after}){more})", replace_axis(of.shape, -1, size), of.dtype, of)


def draw_call(pen: Pen, operators: tuple[TableOperator, ...]) -> tuple[TableOperator, str]:
    """An operator, each as likely as the next unless names are steered, and one of its calls."""
    name = pen.draw_named([(name, 1) for name in dict.fromkeys(operator.name for operator in operators)])
    return pen.one_of([(row, call) for row in operators if row.name == name for call in row.calls])
