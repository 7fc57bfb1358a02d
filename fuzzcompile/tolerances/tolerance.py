"""One row of the table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import cast

from fuzzcompile.contract import ToleranceJson


@dataclass(frozen=True)
class Tolerance:
    """Difference allowed between one pair of ways to run, in one dtype.

    An error newly made in a layer is a jump if it exceeds both ``factor`` times the local rounding noise of the
    reference and ``absolute * size + relative * |reference|``, with ``size`` the RMS of the layer's output.

    Attributes:
        pair: the kind of pair.
        dtype: the narrower dtype of the two sides.
        factor: multiple of the noise.
        relative: share of the value itself; no unit.
        absolute: in units of the RMS size of the layer's output.
        reason: why these numbers.
    """

    pair: str
    dtype: str
    factor: float
    relative: float
    absolute: float
    reason: str

    def floor(self, size: float, value: float | None = None) -> float:
        """The error that is never a jump.

        Args:
            size: RMS of the layer's output.
            value: magnitude of the reference where the error is; the RMS if None, as for an error that is an RMS.
        """
        return self.absolute * size + self.relative * (size if value is None else value)

    def to_json(self) -> ToleranceJson:
        """The entry of the contract."""
        return cast(ToleranceJson, asdict(self))
