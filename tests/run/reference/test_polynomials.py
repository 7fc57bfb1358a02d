"""Recurrences of orthogonal polynomials beside NumPy's own modules, which evaluate series by Clenshaw's algorithm."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.polynomial import chebyshev, hermite, hermite_e, laguerre, legendre
from plants.mended import FAULTS as MENDED

from fuzzcompile.compiler.operators.second_reference import SecondReference
from fuzzcompile.run.reference.formulas import apply_formula
from fuzzcompile.run.reference.polynomials import POLYNOMIALS

X = np.linspace(-1.3, 1.4, 13)
SERIES = {
    "special_chebyshev_polynomial_t": chebyshev.chebval,
    "special_shifted_chebyshev_polynomial_t": lambda x, c: chebyshev.chebval(2 * x - 1, c),
    "special_hermite_polynomial_h": hermite.hermval,
    "special_hermite_polynomial_he": hermite_e.hermeval,
    "special_laguerre_polynomial_l": laguerre.lagval,
    "special_legendre_polynomial_p": legendre.legval,
}
# By T(2n + 1) = x V(n)(2x² - 1) and U(2n) = W(n)(2x² - 1), and U(n) = T'(n + 1) / (n + 1).
DERIVED = {
    "special_chebyshev_polynomial_u": lambda x, c: chebyshev.chebval(x, chebyshev.chebder([0, *c])) / len(c),
    "special_chebyshev_polynomial_v": lambda x, c: np.cos((len(c) - 0.5) * np.arccos(x)) / np.cos(np.arccos(x) / 2),
    "special_chebyshev_polynomial_w": lambda x, c: np.sin((len(c) - 0.5) * np.arccos(x)) / np.sin(np.arccos(x) / 2),
}


@pytest.mark.parametrize("order", [0, 1, 2, 7, 20])
@pytest.mark.parametrize("name", [*SERIES, *DERIVED])
def test_a_recurrence_is_the_series_of_one_term(name: str, order: int):
    x = X if name in SERIES else np.linspace(-0.9, 0.9, 13)
    (result,) = apply_formula(name, {"x": x, "n": float(order)})
    expected = (SERIES | DERIVED)[name](x, [0] * order + [1])
    np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_nan_gives_nan_and_of_what_is_not_defined_there_is_no_opinion(name: str):
    (result,) = apply_formula(name, {"x": np.array([0.3, np.nan]), "n": np.array([1.0, 4.0])})
    assert np.isnan(result).tolist() == [False, True]
    for x, n in ((np.nan, 0.0), (0.3, -1.0), (0.3, 1.5), (0.3, np.nan), (0.3, 1e9)):
        assert apply_formula(name, {"x": np.array([x]), "n": np.array([n])}) == (None,)


@pytest.mark.parametrize("number", [187767, 188027])
def test_a_kernel_that_loses_nan_is_contested(number: int):
    """The recurrences of torch 2.13 end at the first NaN, and return what was in memory."""
    for fault in (each for each in MENDED if each.number == number):
        operator = getattr(torch.ops.aten, fault.operator.split(".")[1])
        with fault.install(), SecondReference(native=torch.float64) as mode:
            operator(torch.tensor([0.3, float("nan"), -0.7], dtype=torch.float64), torch.tensor(5.0))
        (contested,) = mode.contested
        assert contested.opinion.by == "formula" and contested.kernel_is_wrong
