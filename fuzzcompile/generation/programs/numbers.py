"""Productions that draw random numbers: values of their own, masks of a value, and writes through any view."""

from __future__ import annotations

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.programs.creations import shape_of
from fuzzcompile.generation.programs.production import production
from fuzzcompile.generation.programs.scope import Scope
from fuzzcompile.generation.programs.values import FLOATING, least

DRAWING = ("random_value", "random_like", "random_mask", "random_write", "random_order")
"""Names of the productions whose statements draw."""
_FLOATS = ("float32", "bfloat16", "float64", "float16")
# Methods that fill a tensor in place, and those of them that integers have too.
_FILLS: tuple[str, ...] = (
    "normal_()",
    "uniform_(-1, 1)",
    "normal_(1.0, 2.0)",
    "exponential_(2.0)",
    "bernoulli_(0.3)",
    "random_(0, 9)",
)
_FILLS += ("log_normal_()", "cauchy_().clamp_(-9, 9)", "geometric_(0.4)")
_INTEGER_FILLS = ("random_(0, 9)", "bernoulli_(0.3)", "geometric_(0.4)")


@production(3)
def random_value(pen: Pen, scope: Scope) -> object:
    """A tensor of random numbers, of any floating dtype or of integers."""
    shape = shape_of(pen, scope)
    if pen.chance(25):
        dtype = pen.one_of(("int64", "int32", "uint8"))
        drawn = f"torch.randint(0, 9, {scope.sizes(shape)}, dtype=torch.{dtype}, {scope.device})"
        return scope.make(drawn, shape, dtype, smooth=False)
    dtype, function = pen.one_of(_FLOATS), pen.one_of(("rand", "randn"))
    drawn = f"torch.{function}({scope.sizes(shape)}, dtype=torch.{dtype}, {scope.device})"
    return scope.make(drawn, shape, dtype)


@production(2)
def random_like(pen: Pen, scope: Scope) -> object:
    """Random numbers in the form of a value, whatever its layout is."""
    of = scope.floating()
    if of is None:
        return None
    function = pen.one_of(("rand_like", "randn_like", "randint_like", "bernoulli", "normal"))
    drawn = {
        "randint_like": f"torch.randint_like({of.name}, 7)",
        "bernoulli": f"torch.bernoulli({of.name}.sigmoid())",
        "normal": f"torch.normal({of.name}, {of.name}.abs() + 1)",
    }.get(function, f"torch.{function}({of.name})")
    return scope.make(drawn, of.shape, of.dtype, of, smooth=function in ("bernoulli", "normal"))


@production(3)
def random_mask(pen: Pen, scope: Scope) -> object:
    """A value with some of its elements dropped or scaled at random."""
    of = scope.floating()
    if of is None:
        return None
    functions = ["dropout", "alpha_dropout"]
    functions += ["rrelu"] if of.dtype in ("float32", "float64") else []  # eager has no kernel for the short ones
    functions += ["dropout1d", "feature_alpha_dropout"] if of.rank == 3 else []
    functions += ["dropout2d"] if of.rank == 4 else []
    function = pen.one_of(functions)
    rest = "training=True" if function == "rrelu" else f"{pen.one_of((0.5, 0.1, 0.0, 1.0))}, training=True"
    return scope.make(f"torch.nn.functional.{function}({of.name}, {rest})", of.shape, of.dtype, of)


@production(2)
def random_write(pen: Pen, scope: Scope) -> object:
    """Random numbers written over a value, whole or through a view of it."""
    target = scope.some(lambda value: scope.writable(value) and value.dtype != "bool")
    if target is None:
        return None
    fill = pen.one_of(_FILLS if target.dtype in FLOATING else _INTEGER_FILLS)
    views = [""]
    views += [".transpose(-1, -2)"] if target.rank > 1 else []
    views += ["[..., ::2]", "[..., 1:]"] if target.rank and least(target.shape[-1]) > 1 else []
    scope.say(f"{target.name}{pen.one_of(views)}.{fill}")
    return True


@production(1)
def random_order(pen: Pen, scope: Scope) -> object:
    """The rows of a value in a random order."""
    of = scope.some(lambda value: value.rank > 0 and least(value.shape[0]) > 0)
    if of is None:
        return None
    order = f"torch.randperm({scope.text(of.shape[0])}, {scope.device})"
    return scope.make(f"{of.name}[{order}]", of.shape, of.dtype, of)
