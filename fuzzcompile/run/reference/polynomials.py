"""Orthogonal polynomials by their three-term recurrences, in NumPy.

``p(k + 1) = (a(k) x + b(k)) p(k) - c(k) p(k - 1)`` with the coefficients of DLMF 18.9 (https://dlmf.nist.gov/18.9.T1;
Abramowitz & Stegun 22.7), from ``p(0) = 1`` and the ``p(1)`` of A&S 22.4. Chebyshev polynomials of the third and fourth
kind are those of Mason & Handscomb, Chebyshev Polynomials (2003), 1.2.3; shifted ones have 2x - 1 in the place of x.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
# Orders up to which a recurrence is followed: beyond, rounding in it adds up.
_MOST_ORDER = 200


class Recurrence(NamedTuple):
    """``p(1)``, and ``p(k + 1)`` of k, x, ``p(k)`` and ``p(k - 1)``."""

    first: Callable[[Any], Any]
    following: Callable[[int, Any, Any, Any], Any]

    def evaluate(self, x: Array, order: Array) -> Array | None:
        """The polynomials of these orders at these points, which broadcast; None where the definition says nothing.

        That of order 0 is 1, of NaN too or not. A value that overflows depends on how it is computed.
        """
        x, order = np.broadcast_arrays(x, order)
        if not order.size or not np.all((order >= 0) & (order <= _MOST_ORDER) & (order == np.trunc(order))):
            return None
        if np.any(np.isnan(x) & (order == 0)):
            return None
        before, current = np.ones_like(x), self.first(x)
        result = np.where(order == 0, before, current)
        for k in range(1, int(order.max())):
            before, current = current, self.following(k, x, current, before)
            result = np.where(order == k + 1, current, result)
        return result if np.all(np.isfinite(result) | ~np.isfinite(x)) else None


def _chebyshev(first: Callable[[Any], Any]) -> Recurrence:
    """All four kinds have one recurrence, and differ by where it begins."""
    return Recurrence(first, lambda k, x, p, before: 2 * x * p - before)


_KINDS = {
    "t": _chebyshev(lambda x: x),
    "u": _chebyshev(lambda x: 2 * x),
    "v": _chebyshev(lambda x: 2 * x - 1),
    "w": _chebyshev(lambda x: 2 * x + 1),
}
_PLAIN = {
    **{f"chebyshev_polynomial_{kind}": recurrence for kind, recurrence in _KINDS.items()},
    "hermite_polynomial_h": Recurrence(lambda x: 2 * x, lambda k, x, p, before: 2 * x * p - 2 * k * before),
    "hermite_polynomial_he": Recurrence(lambda x: x, lambda k, x, p, before: x * p - k * before),
    "laguerre_polynomial_l": Recurrence(
        lambda x: 1 - x, lambda k, x, p, before: ((2 * k + 1 - x) * p - k * before) / (k + 1)
    ),
    "legendre_polynomial_p": Recurrence(
        lambda x: x, lambda k, x, p, before: ((2 * k + 1) * x * p - k * before) / (k + 1)
    ),
}


def _of_points(recurrence: Recurrence, move: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda call: recurrence.evaluate(move(np.asarray(call.given("x"), float)), np.asarray(call.given("n")))


POLYNOMIALS: dict[str, Callable[[Any], Any]] = {
    **{f"special_{name}": _of_points(recurrence, lambda x: x) for name, recurrence in _PLAIN.items()},
    **{
        f"special_shifted_chebyshev_polynomial_{kind}": _of_points(recurrence, lambda x: 2 * x - 1)
        for kind, recurrence in _KINDS.items()
    },
}
"""The formulas of operators that evaluate them, by the operator's name."""
