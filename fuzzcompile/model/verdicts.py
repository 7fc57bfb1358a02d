"""Verdicts on a case, and the plain data behind them: comparisons of values, and coverage counts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal


class Verdict(StrEnum):
    """Verdict of a judged case (docs/machines.md)."""

    EQUAL = "equal"
    ROUNDING = "rounding"
    UNSTABLE = "unstable"
    PRECISION_CASTS = "precision_casts"
    BY_DESIGN = "by_design"
    INVALID = "invalid"
    MISCOMPILE = "miscompile"
    WRONG_GRADIENT = "wrong_gradient"
    NONFINITE = "nonfinite"
    METADATA = "metadata"
    ALIASING = "aliasing"
    PRECISION_LOSS = "precision_loss"
    EAGER_WRONG = "eager_wrong"
    STALE = "stale"
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    ACCEPTS_INVALID = "accepts_invalid"
    CRASH = "crash"
    TIMEOUT = "timeout"
    NONDETERMINISTIC = "nondeterministic"

    @property
    def is_bug(self) -> bool:
        """Return whether the verdict is worth a report to PyTorch."""
        return self not in _BENIGN

    @property
    def kind(self) -> str:
        """The class of the verdict: one bug may give different verdicts of the same class."""
        return _KINDS.get(self, str(self))


# Bugs that show in values: only of these do distances between results say anything.
VALUES = (Verdict.MISCOMPILE, Verdict.WRONG_GRADIENT, Verdict.NONFINITE, Verdict.PRECISION_LOSS)
ERRORS = (Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR)
# A stale graph is told by its values until all its calls can be compiled anew.
_KINDS = {**dict.fromkeys((*VALUES, Verdict.STALE), "values"), **dict.fromkeys(ERRORS, "error")}
# Verdicts that say that the program is right where it was judged. The others without a bug say nothing of that.
HARMLESS = (Verdict.EQUAL, Verdict.ROUNDING)
_BENIGN = frozenset({*HARMLESS, Verdict.UNSTABLE, Verdict.PRECISION_CASTS, Verdict.BY_DESIGN, Verdict.INVALID})


# How the compiled value differs. "close": by rounding. "wild": within what rounding allows, but eager itself has no
# correct digits. "far": farther from the reference than rounding explains. "alias": a write into the value changes
# another value in one of the runs only.
Finding = Literal[
    "same", "close", "wild", "far", "nonfinite", "integer", "dtype", "shape", "stride", "requires_grad", "alias",
    "missing",
]  # fmt: skip
# Findings of a value that is right, as far as can be told.
AGREEING: tuple[Finding, ...] = ("same", "close", "wild")
# Findings of what a tensor is besides its values.
FORMS: tuple[Finding, ...] = ("dtype", "shape", "stride", "requires_grad")


@dataclass(frozen=True)
class Comparison:
    """Evidence for one output, mutated input or gradient."""

    name: str
    kind: str
    finding: Finding  # how the values differ; all that follows is evidence for it
    # largest distance of an eager element from the reference; ``*_compiled`` and ``rms_*`` alike
    max_abs_error_eager: float = 0.0
    max_abs_error_compiled: float = 0.0
    rms_error_eager: float = 0.0
    rms_error_compiled: float = 0.0
    # largest error in units in the last place of the program's dtype, at the size of the reference
    max_ulps_eager: float = 0.0
    max_ulps_compiled: float = 0.0
    noise_floor: float = 0.0  # largest distance of a perturbed eager run from eager
    scale: float = 0.0  # RMS of the reference
    within_default_tolerance: bool = True  # whether ``torch.testing.assert_close`` accepts compiled against eager
    # whether a finding of "far" is within PyTorch's default tolerances (by norm, if ``by_norm``) in units of the
    # output's own size
    within_scaled_tolerance: bool = True
    by_norm: bool = False
    cosine: float | None = None  # cosine similarity of compiled and reference; None if undefined
    torch_same: bool | None = None  # the answer of ``torch._dynamo.utils.same``; None if it was not asked
    # of other strides, whether eager's result is contiguous and the compiled one is not, so that ``.view()`` raises;
    # None where strides agree or were not compared
    view_raises: bool | None = None
    where: tuple[int, ...] | None = None  # index of the worst element; ``at`` holds the values there, by run
    at: dict[str, float | int | None] = field(default_factory=dict)
    detail: str = ""

    @property
    def error_ratio(self) -> float | None:
        """Compiled error over eager error; None if eager is exact."""
        return self.max_abs_error_compiled / self.max_abs_error_eager if self.max_abs_error_eager > 0 else None

    @property
    def relative_error(self) -> float:
        """Compiled error in units of the output's own size."""
        return self.max_abs_error_compiled / self.scale if self.scale > 0 else self.max_abs_error_compiled

    def with_errors_of_eager(self, eager: Comparison) -> Comparison:
        """The same, with the errors that eager mode has in a comparison in which it stands in the compiled place."""
        return replace(
            self,
            max_abs_error_eager=eager.max_abs_error_compiled,
            rms_error_eager=eager.rms_error_compiled,
            max_ulps_eager=eager.max_ulps_compiled,
            at={**self.at, "eager": eager.at.get("compiled")} if self.at else self.at,
        )


# Coverage of a judged case. Needs no torch, so that a process which only collects answers can read it.

NO_REFERENCE = "no float64 reference"
"""How the note begins that a case was compared with eager alone."""
NO_CAUSE = "no program that is right was found one change away"
"""How the note begins that a bug's signature has no cause."""


@dataclass(frozen=True)
class CoverageCount:
    """Number of matches of a rewrite rule with one outcome, or of uses of a decomposition, lowering or kernel."""

    stage: str
    pass_name: str | None
    rewrite: str
    outcome: str  # ``fired``, ``refused`` or ``vetoed``, or ``fallback`` for an operator that is called, not lowered
    count: int
    step: float | None = None  # the largest in float64 of a rule that fired; None where it was not replayed
