"""The result of comparing one observable."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

# How the compiled value differs. "close": by rounding. "wild": within what rounding allows, but eager itself has no
# correct digits. "far": farther from the reference than rounding explains. "alias": a write into the value changes
# another value in one of the runs only.
Finding = Literal[
    "same", "close", "wild", "far", "nonfinite", "integer", "dtype", "shape", "stride", "alias", "missing"
]


@dataclass(frozen=True)
class Comparison:
    """Evidence for one output, mutated input or gradient.

    Attributes:
        finding: how the values differ; all that follows is evidence for it.
        max_error_eager: largest distance of an eager element from the reference; ``*_compiled`` and ``rms_*`` alike.
        max_ulps_eager: largest error in units in the last place of the program's dtype, at the size of the reference.
        noise_floor: largest distance of a perturbed eager run from eager.
        scale: RMS of the reference.
        within_default_tolerance: whether ``torch.testing.assert_close`` accepts compiled against eager.
        within_scaled_tolerance: whether a finding of "far" is within PyTorch's default tolerances (by norm, if
            ``by_norm``) in units of the output's own size.
        cosine: cosine similarity of compiled and reference; None if undefined.
        torch_same: the answer of ``torch._dynamo.utils.same``; None if it was not asked.
        view_raises: of other strides, whether eager's result is contiguous and the compiled one is not, so that
            ``.view()`` raises; None where strides agree or were not compared.
        where: index of the worst element; ``at`` holds the values there, by run.
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
    view_raises: bool | None = None
    where: tuple[int, ...] | None = None
    at: dict[str, float | int | None] = field(default_factory=dict)
    detail: str = ""

    @property
    def error_ratio(self) -> float | None:
        """Compiled error over eager error; None if eager is exact."""
        return self.max_error_compiled / self.max_error_eager if self.max_error_eager > 0 else None

    @property
    def relative_error(self) -> float:
        """Compiled error in units of the output's own size."""
        return self.max_error_compiled / self.scale if self.scale > 0 else self.max_error_compiled
