"""Productions of matrix products, with factors, biases and transposed operands."""

from __future__ import annotations

from collections.abc import Sequence

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.programs.production import production
from fuzzcompile.generation.programs.scope import Scope
from fuzzcompile.generation.programs.values import FLOATING, INTEGERS, Shape, Value, broadcast

_FACTORS = (1, 2, -1, 0.5, 0)


def _matrices(scope: Scope, dtypes: Sequence[str] = FLOATING) -> tuple[str, str, Value, Value, Shape] | None:
    """Two operands of a product, the second transposed if need be: expressions, values, and the product's shape."""
    first = scope.some(lambda value: value.rank > 1 and value.dtype in dtypes)
    if first is None:
        return None
    leading = first.shape[:-2]

    def fits(value: Value) -> bool:
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
    operands = _matrices(scope, (*FLOATING, *INTEGERS))
    if operands is None:
        return None
    a, b, first, second, shape = operands
    how = pen.one_of(("{a} @ {b}", "torch.matmul({a}, {b})", "({a} @ {b}) * 2", "({a}.abs() @ {b}) + ({a} @ {b})"))
    return scope.make(how.replace("{a}", a).replace("{b}", b), shape, first.dtype, first, second)


@production(6)
def affine_product(pen: Pen, scope: Scope) -> object:
    """A product that is added to a value, by a fused operator or by hand, with factors."""
    operands = _matrices(scope)
    if operands is None:
        return None
    a, b, first, second, shape = operands
    alpha, beta = pen.one_of(_FACTORS), pen.one_of(_FACTORS)
    bias = _bias(pen, scope, shape, first.dtype)
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


def _bias(pen: Pen, scope: Scope, shape: Shape, dtype: str) -> str:
    """A value that broadcasts to the shape, a constant that does, or, rarely, one of another size."""
    fitting = scope.some(lambda value: value.dtype == dtype and broadcast(value.shape, shape) == shape)
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
    of = scope.floating(2)
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
