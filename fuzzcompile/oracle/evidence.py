"""What a comparison of one observable found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

# What is the matter with one output. "far" means farther from the reference than rounding explains.
# "alias" that a write into it changes something else in one of the runs only.
Finding = Literal[
    "same", "close", "wild", "far", "nonfinite", "integer", "dtype", "shape", "stride", "alias", "missing"
]


@dataclass(frozen=True)
class Comparison:
    """Evidence for one output, mutated input or gradient.

    Errors are distances from the reference. ``max_ulps_*`` are the largest of them in units in the last place of the
    program's dtype, at the size of the reference there. ``within_scaled_tolerance`` says whether a finding of "far"
    is within PyTorch's default tolerances (by norm, if ``by_norm``) in units of the output's own size.
    """

    name: str
    kind: str
    finding: Finding
    max_error_eager: float = 0.0
    max_error_compiled: float = 0.0
    rms_error_eager: float = 0.0
    rms_error_compiled: float = 0.0
    max_ulps_eager: float = 0.0
    max_ulps_compiled: float = 0.0
    noise_floor: float = 0.0
    scale: float = 0.0
    within_default_tolerance: bool = True
    within_scaled_tolerance: bool = True
    by_norm: bool = False
    cosine: float | None = None
    torch_same: bool | None = None
    where: tuple[int, ...] | None = None
    at: dict[str, float | int | None] = field(default_factory=dict)
    detail: str = ""

    @property
    def error_ratio(self) -> float | None:
        """Compiled error over eager error; None where eager is exact."""
        return self.max_error_compiled / self.max_error_eager if self.max_error_eager > 0 else None

    @property
    def relative_error(self) -> float:
        """Compiled error in units of the output's own size."""
        return self.max_error_compiled / self.scale if self.scale > 0 else self.max_error_compiled
