"""The severity of a bug for its users, which orders every list, summary, index and exit status."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from fuzzcompile.model.contract import OutputJson, ReportJson, read_target
from fuzzcompile.model.culprit_contract import read_details
from fuzzcompile.model.evidence import ValuePair
from fuzzcompile.model.verdicts import AGREEING, Verdict


class Severity(StrEnum):
    """The effect of a bug on its users, the worst first; the values are the words of the JSON contract.

    The order is that of a PyTorch maintainer's reading of findings: what is silently wrong comes before what is loudly
    wrong, and a layout that makes ``.view()`` raise before one that has no effect.
    """

    SILENT = "silent"
    """Wrong values, gradients, dtypes or shapes, and nothing says so."""
    ERROR = "error"
    """An error, a crash or a hang where eager runs."""
    ALIASING = "aliasing"
    """Memory is shared, copied or written otherwise than in eager."""
    RAISING_LAYOUT = "raising_layout"
    """Eager's result is contiguous and the compiled one is not: ``.view()`` raises."""
    OPT_IN = "opt_in"
    """Any of these, by a part of Inductor or AOTAutograd that runs only under a setting that is off by default."""
    LAYOUT = "layout"
    """Other strides, with which everything goes on working."""
    ACCEPTS_INVALID = "accepts_invalid"
    """Compiled runs what eager refuses."""
    BY_DESIGN = "by_design"
    """Other values, because torch's own code means compiled programs to compute them in another way: no bug."""

    @property
    def rank(self) -> int:
        """Sorts the worst first: 0 is the worst."""
        return list(Severity).index(self)

    def reaches(self, least: Severity) -> bool:
        """Return whether it is at least as bad as ``least``."""
        return self.rank <= least.rank

    @property
    def is_minor(self) -> bool:
        """True if lists count such findings in one line instead of showing each."""
        return self in (Severity.LAYOUT, Severity.ACCEPTS_INVALID, Severity.BY_DESIGN)


_WRONG = ("miscompile", "wrong_gradient", "nonfinite", "precision_loss", "eager_wrong", "stale", "nondeterministic")
_OF_VERDICT = {
    **dict.fromkeys(_WRONG, Severity.SILENT),
    **dict.fromkeys(("crash", "timeout", "compile_error", "runtime_error"), Severity.ERROR),
    "aliasing": Severity.ALIASING,
    "accepts_invalid": Severity.ACCEPTS_INVALID,
    "by_design": Severity.BY_DESIGN,
}


def rate_severity(report: ReportJson | None) -> Severity | None:
    """The severity of what a report shows; None for none, and for verdicts that are no bug."""
    effect = rate_effect(report)
    if report is None or effect is None or not report.get("opt_in"):
        return effect
    return max(effect, Severity.OPT_IN, key=lambda severity: severity.rank)


def rate_effect(report: ReportJson | None) -> Severity | None:
    """The severity for users who have switched on what the bug needs: never `Severity.OPT_IN`."""
    if report is None or "verdict" not in report:
        return None
    if read_details(report.get("culprit")).get("raises"):  # a stale graph
        return Severity.ERROR
    return rate_bug(report["verdict"], (report.get("evidence") or {}).get("outputs") or ())


def rate_bug(verdict: str | None, outputs: Sequence[OutputJson]) -> Severity | None:
    """The severity of a verdict with this evidence; None for verdicts that are no bug."""
    wrong = [output for output in outputs if output.get("finding") not in (None, *AGREEING)]
    if verdict == "metadata":
        if not wrong or any(output.get("finding") != "stride" for output in wrong):
            return Severity.SILENT
        return Severity.RAISING_LAYOUT if any(map(_view_raises, wrong)) else Severity.LAYOUT
    own = _OF_VERDICT.get(verdict or "")
    if own is Severity.ACCEPTS_INVALID and wrong:  # and computes something else
        return Severity.SILENT
    if own is Severity.SILENT and wrong and all(output.get("finding") == "alias" for output in wrong):
        return Severity.ALIASING
    return own


def rank(report: ReportJson | None) -> tuple[int, bool]:
    """Return a sort key, worst report first; of two alike, one from a device that ran before one for a target only."""
    own = rate_severity(report)
    return (len(Severity) if own is None else own.rank, report is not None and read_target(report) is not None)


@dataclass(frozen=True)
class FailOn:
    """The bugs that make an exit status 1: those at least as severe as ``least``, or those of one ``verdict``."""

    least: Severity | None = None
    verdict: str | None = None

    @classmethod
    def parse(cls, word: str) -> FailOn:
        """Read a word of `FAIL_ON`."""
        return cls(least=Severity(word)) if word in list(Severity) else cls(verdict=word)

    def counts(self, verdict: str | None, severity: Severity | None) -> bool:
        """Return whether a bug counts; one whose severity is not known is as bad as any."""
        if self.least is None:
            return verdict == self.verdict
        return severity is None or severity.reaches(self.least)


# Severities, the worst first, and verdicts: of a word that is both, the severity.
FAIL_ON = tuple(dict.fromkeys((*map(str, Severity), *(str(verdict) for verdict in Verdict if verdict.is_bug))))


def _view_raises(output: OutputJson) -> bool:
    said = output.get("view_raises")
    if said is not None:
        return bool(said)
    pair = ValuePair.parse(str(output.get("detail") or ""))  # reports of earlier versions have only this
    strides = None if pair is None else pair.strides
    if strides is None:
        return False
    # Strides of a contiguous tensor never grow; without the shape, that is all that can be read off.
    eager, compiled = strides
    return eager == sorted(eager, reverse=True) and compiled != sorted(compiled, reverse=True)
