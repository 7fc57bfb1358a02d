"""The verdicts on a case."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """Verdict of a judged case (ARCHITECTURE.md, "Contracts")."""

    EQUAL = "equal"
    ROUNDING = "rounding"
    UNSTABLE = "unstable"
    PRECISION_CASTS = "precision_casts"
    INVALID = "invalid"
    MISCOMPILE = "miscompile"
    WRONG_GRADIENT = "wrong_gradient"
    NONFINITE = "nonfinite"
    METADATA = "metadata"
    ALIASING = "aliasing"
    PRECISION_LOSS = "precision_loss"
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
_KINDS = {
    **dict.fromkeys(VALUES, "values"),
    Verdict.COMPILE_ERROR: "error",
    Verdict.RUNTIME_ERROR: "error",
}
_BENIGN = frozenset({Verdict.EQUAL, Verdict.ROUNDING, Verdict.UNSTABLE, Verdict.PRECISION_CASTS, Verdict.INVALID})
