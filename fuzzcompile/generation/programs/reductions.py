"""Productions along axes: reductions, scans, orders, norms."""

from __future__ import annotations

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.operator_table import drawn_call, operator_table
from fuzzcompile.generation.programs.functions import COMPOSED
from fuzzcompile.generation.programs.production import production
from fuzzcompile.generation.programs.scope import Scope
from fuzzcompile.generation.programs.values import Shape, Value, least, ones
from fuzzcompile.generation.programs.views import replaced

_SUMS = ("sum", "mean", "amax", "amin", "prod", "nansum", "logsumexp", "var", "std", "norm", "any", "all",
         "count_nonzero", "argmax", "argmin", "median")  # fmt: skip
_OF_INTEGERS = ("sum", "amax", "amin", "prod", "any", "all", "count_nonzero", "argmax", "argmin")
_OF_BOOLEANS = ("sum", "amax", "amin", "prod", "any", "all", "count_nonzero")
_SCANS = ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "softmax", "log_softmax")


def reduced(shape: Shape, axis: int, keep: bool) -> Shape:
    """The shape without an axis, or with one of size one in its place."""
    return replaced(shape, axis, tuple(1 for _ in shape[axis])) if keep else replaced(shape, axis)


def _sum_dtype(of: Value, how: str) -> str:
    if how in ("any", "all"):
        return "uint8" if of.dtype == "uint8" else "bool"
    if how in ("count_nonzero", "argmax", "argmin"):
        return "int64"
    return "int64" if how in ("sum", "prod") and not of.floating else of.dtype


@production(9)
def reduction(pen: Pen, scope: Scope) -> object:
    """A reduction over an axis, kept or not, in the dtype that is asked for."""
    of = scope.some(lambda value: value.rank > 0)
    if of is None:
        return None
    how = pen.one_of(_SUMS if of.floating else _OF_INTEGERS if of.integral else _OF_BOOLEANS)
    axis, keep = scope.axis(of, 2 if how in ("var", "std") else 1), pen.chance(50)
    if axis is None:
        return None
    dtype, more = _sum_dtype(of, how), f", keepdim={keep}" if keep else ""
    if how in ("var", "std") and pen.chance(50):
        more += ", correction=0"
    if how == "norm":
        return scope.make(
            f"{of.name}.norm({pen.one_of((2, 1))}, {axis}{more})", reduced(of.shape, axis, keep), of.dtype, of
        )
    if how in ("sum", "mean", "prod") and pen.chance(25):
        dtype = pen.one_of(("float32", "float64")) if of.floating else pen.one_of(("int32", "float32", "int8"))
        more += f", dtype=torch.{dtype}"
    values = ".values" if how == "median" else ""
    if how == "count_nonzero":
        more, keep = "", False
    smooth = dtype in ("float16", "bfloat16", "float32", "float64")
    return scope.make(f"{of.name}.{how}({axis}{more}){values}", reduced(of.shape, axis, keep), dtype, of, smooth=smooth)


@production(4)
def whole_reduction(pen: Pen, scope: Scope) -> object:
    """A reduction over two axes, or over all: it may share work with one over a single axis."""
    of = scope.some(lambda value: value.rank > 1)
    if of is None:
        return None
    how = pen.one_of(("sum", "mean", "amax", "amin") if of.floating else ("sum", "amax", "amin"))
    dtype = _sum_dtype(of, how)
    if pen.chance(50):
        return scope.make(f"{of.name}.{how}((-2, -1), keepdim=True)", _ones_last(of.shape), dtype, of)
    return scope.make(f"{of.name}.{how}()", (), dtype, of)


def _ones_last(shape: Shape) -> Shape:
    one = tuple(1 for _ in shape[-1])
    return (*shape[:-2], one, one)


@production(7)
def scan(pen: Pen, scope: Scope) -> object:
    """A cumulative sum, product or maximum, or a softmax, along an axis, in the dtype that is asked for."""
    of = scope.some(lambda value: value.rank > 0)
    axis = None if of is None else scope.axis(of)
    if of is None or axis is None:
        return None
    how = pen.one_of(_SCANS if of.floating else ("cumsum", "cumprod"))
    dtype, more = of.dtype, ""
    if how in ("cumsum", "cumprod", "softmax", "log_softmax"):
        dtype = of.dtype if of.floating else "int64"
        if pen.chance(25):
            dtype = pen.one_of(
                ("float32", "float64") if how.endswith("softmax") else ("float32", "int32", "float64", "int8")
            )
            dtype = "float32" if of.floating and "int" in dtype else dtype
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
    count = min(2, least(of.shape[axis]))
    call = how.replace("{d}", str(axis)).replace("{k}", str(count))
    if how.startswith("sort"):
        shape = of.shape
    else:
        shape = (
            replaced(of.shape, axis, tuple(count for _ in of.shape[axis]))
            if "topk" in how
            else replaced(of.shape, axis)
        )
    if pen.chance(65) or (not how.startswith("sort") and of.floating and pen.chance(50)):
        return scope.make(f"{of.name}.{call}.values", shape, of.dtype, of)
    return scope.make(f"{of.name}.{call}.indices", shape, "int64", of)


@production(4)
def normalised(pen: Pen, scope: Scope) -> object:
    """A norm over the last axis, by the library or by hand."""
    of = scope.some(lambda value: value.floating and value.rank > 1 and least(value.shape[-1]) > 1)
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
        lambda value: value.floating and value.rank == 3 and least(value.shape[-1]) > 1 and not ones(value.shape[0])
    )
    if of is None:
        return None
    operator, call = drawn_call(pen, (*operator_table().along, *COMPOSED))
    made = call.replace("{rows}", of.name)
    made = f"({made}).to(torch.{of.dtype})" if operator.cast else made
    return scope.make(made, of.shape, of.dtype, of, smooth=operator.gradient)


@production(4)
def padded(pen: Pen, scope: Scope) -> object:
    """Padded at the ends of the last axis with a constant or with what is there; amounts may be zero or negative."""
    of = scope.some(lambda value: value.rank > 0)
    if of is None or least(of.shape[-1]) < 3:
        return None
    before, after = pen.one_of(((1, 1), (0, 2), (0, 0), (-1, 1), (0, -1), (2, 0)))
    modes = ("constant", "value", "reflect", "circular", "replicate")
    mode = pen.one_of(modes if of.floating and of.rank in (2, 3) and min(before, after) >= 0 else modes[:2])
    more = f", value={pen.one_of((1, 2))}" if mode == "value" else "" if mode == "constant" else f', mode="{mode}"'
    size = tuple(number + before + after for number in of.shape[-1])
    return scope.make(f"F.pad({of.name}, ({before}, {after}){more})", replaced(of.shape, -1, size), of.dtype, of)
