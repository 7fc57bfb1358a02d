"""Formulas written out: they compute what the formulas compute, and are short."""

from __future__ import annotations

import math

import numpy
import pytest

from fuzzcompile.programs.scripts.kernels import WrittenArray, write_formulas
from fuzzcompile.run.reference.formulas import FORMULAS, FormulaCall

GIVEN = {name: numpy.random.default_rng(seed).standard_normal((3, 4)) for seed, name in enumerate("xyzw")}
CALLS = {
    "gelu": {"self": "x", "approximate": "none"},
    "erfc": {"self": "x"},
    "silu_backward": {"grad_output": "y", "self": "x"},
    "_softmax": {"self": "x", "dim": -1},
    "var": {"self": "x", "dim": [0], "correction": 1},
    "clamp": {"self": "x", "min": -math.inf, "max": 0.5},
    "cat": {"tensors": ["x", "y"], "dim": 0},
    "native_layer_norm": {"input": "x", "normalized_shape": [4], "eps": 1e-5},
    "mse_loss": {"self": "x", "target": "y", "reduction": 1},
}


def give(value: object, *, written: bool) -> object:
    if isinstance(value, list) and isinstance(value[0], str):
        return [give(each, written=written) for each in value]
    if not isinstance(value, str) or value not in GIVEN:
        return value
    return WrittenArray(GIVEN[value], value) if written else GIVEN[value]


@pytest.mark.parametrize("operator", CALLS)
def test_a_formula_written_out_computes_the_same(operator):
    arguments = CALLS[operator]
    texts = write_formulas(operator, {key: give(value, written=True) for key, value in arguments.items()})
    right = FORMULAS[operator](FormulaCall({key: give(value, written=False) for key, value in arguments.items()}))
    results = right if isinstance(right, tuple) else (right,)
    assert len(texts) == len(results) and len(str(texts[0])) < 120
    for text, result in zip(texts, results, strict=True):
        assert text is not None
        numpy.testing.assert_array_equal(eval(text, {"math": math, "numpy": numpy, **GIVEN}), result)


def test_a_formula_that_writes_to_arrays_has_no_text():
    index = WrittenArray(numpy.zeros((3, 4), int), "index")
    given = {name: WrittenArray(GIVEN[name], name) for name in "xy"}
    assert write_formulas("scatter_add", {"self": given["x"], "dim": 0, "index": index, "src": given["y"]}) == []
