"""The parts of a triage report that a reduction reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict, cast


class Evidence(TypedDict, total=False):
    """What the judge measured of one output. Errors are absolute; None where they are not finite."""

    name: str
    finding: str
    detail: str | None
    scale: float | None
    noise_floor: float | None
    max_abs_error_eager: float | None
    max_abs_error_compiled: float | None


class Outputs(TypedDict, total=False):
    """The evidence, the outputs of which a reproducer compares."""

    outputs: Sequence[Evidence]


# The functional form, because "pass" is a key.
Culprit = TypedDict(
    "Culprit", {"stage": str, "pass": str | None, "rewrite": str | None, "necessary": bool | None}, total=False
)


class Cost(TypedDict, total=False):
    """What judging took."""

    compiles: int
    screens: int


class Report(TypedDict, total=False):
    """A report in its JSON form; any key may be missing."""

    verdict: str
    is_bug: bool
    detail: str | None
    confidence: str
    signature: str | None
    torch: str
    device: str
    culprit: Culprit | None
    evidence: Outputs | None
    cost: Cost | None


def read(report: Mapping[str, object]) -> Report:
    """The report with the types of its keys, which are those of the JSON contract."""
    return cast("Report", report)
