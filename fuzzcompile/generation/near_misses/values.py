"""Values that provoke: scales, ties, constants, and numbers that are none."""

from __future__ import annotations

from dataclasses import replace

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.near_misses.operators import enter
from fuzzcompile.generation.spec import CaseSpec

# How each operator makes its values, with {randn} for what stands there otherwise.
EXPRESSIONS = {
    "values_small": "{randn} * 1e-6",
    "values_large": "{randn} * {large}",
    "values_tied": "torch.randint(-1, 2, {shape}).to({dtype})",
    "values_nearly_tied": "nearly_tied({randn})",
    "values_zero": "torch.zeros({shape}{option})",
    "values_one": "torch.ones({shape}{option})",
    "values_minus_one": "-torch.ones({shape}{option})",
    "values_nan": "spoiled({randn}, torch.nan)",
    "values_infinite": "spoiled({randn}, torch.inf)",
    "values_minus_infinite": "spoiled({randn}, -torch.inf)",
    "values_denormal": "{randn} * {denormal}",
}
# What an expression needs that calls a function.
FUNCTIONS = {
    "spoiled": """
def spoiled(x, value):
    x.view(-1)[0] = value
    return x
""",
    "nearly_tied": """
def nearly_tied(x):
    return x.round() + x * 1e-6
""",
}
_SUMMARIES = {
    "values_small": (2, "Inputs of scale 1e-6: what is wrong by all of it still passes a fixed tolerance."),
    "values_large": (3, "Large inputs: softmax saturates, half precision overflows in between."),
    "values_tied": (3, "Inputs of −1, 0 and 1: maxima and orders are tied, products are exact."),
    "values_nearly_tied": (1, "Inputs within rounding of −1, 0 and 1: which is the largest hangs on the last bit."),
    "values_zero": (1, "Inputs are zero: norms divide by their ε alone."),
    "values_one": (1, "Inputs are one: every row is the same."),
    "values_minus_one": (1, "Inputs are −1: every row is the same and negative."),
    "values_nan": (2, "One input element is NaN, which has to come out where eager has it and nowhere else."),
    "values_infinite": (2, "One input element is infinite: constants folded against it must stay NaN."),
    "values_minus_infinite": (1, "One input element is −inf: a maximum or an exponential may hide it."),
    "values_denormal": (1, "Inputs below the least normal number: some kernels flush them to zero."),
}


def _enter(name: str) -> None:
    weight, summary = _SUMMARIES[name]

    def change(pen: Pen, spec: CaseSpec) -> CaseSpec:
        return replace(spec, values=name)

    enter(
        name,
        summary,
        weight,
        applies=lambda spec: spec.embedding is None,
        present=lambda spec: spec.values == name,
        change=change,
        family="values",
    )


for _name in EXPRESSIONS:
    _enter(_name)
