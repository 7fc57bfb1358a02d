"""The answer on one case, and its JSON form (ARCHITECTURE.md, "Contracts")."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fuzzcompile.attribution.culprit import Attribution, Culprit
from fuzzcompile.execution.observation import Failure
from fuzzcompile.judging.asked import Asked
from fuzzcompile.oracle.comparison import Comparison
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.stage_names import GRAPH_STAGES, PARTITION
from fuzzcompile.stages.table import stage_named

SCHEMA = 1
_MATCHED = ("fired", "refused", "vetoed")
_REWRITING = (*GRAPH_STAGES, PARTITION)


@dataclass(frozen=True)
class Cost:
    """What the answer took. ``screens`` are compiles without code generation; ``seconds`` is wall time."""

    compiles: int
    replays: int
    seconds: float
    screens: int = 0


@dataclass(frozen=True)
class CoverageCount:
    """How often a rewrite rule matched, by what became of the match; or a decomposition, lowering or kernel was used.

    ``outcome`` is ``fired``, ``refused`` or ``vetoed``, or ``fallback`` for an operator that is called, not lowered.
    """

    stage: str
    pass_name: str | None
    rewrite: str
    outcome: str
    count: int


@dataclass(frozen=True)
class Report:
    """Verdict, evidence and attribution of one case on one device.

    ``against`` is what compiled was compared with, ``threads`` for how many CPU threads code was generated.
    ``survives_float64`` tells whether the divergence is there when the program itself is compiled in float64 (None:
    not tried). ``graphs`` counts what dynamo captured and ``graph_breaks`` says why it stopped. ``randomness`` says
    how a program that draws random numbers was judged (None: it draws none), ``warnings`` which warnings only one of
    the two runs gave, ``notes`` what else a reader should know. A ``screened`` case was compiled without generated
    code. ``asked`` tells what became of rewrites that the user named.
    """

    case: str
    torch: str
    device: str
    verdict: Verdict
    confidence: str
    detail: str = ""
    comparisons: tuple[Comparison, ...] = ()
    eager_deterministic: bool = True
    float64_step: float | None = None
    failure: Failure | None = None
    attribution: Attribution = field(default_factory=Attribution)
    cost: Cost = field(default_factory=lambda: Cost(0, 0, 0.0))
    coverage: tuple[CoverageCount, ...] = ()
    against: str = "eager"
    threads: int = 0
    survives_float64: bool | None = None
    graphs: int = 0
    graph_breaks: tuple[str, ...] = ()
    randomness: str | None = None
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    screened: bool = False
    asked: tuple[Asked, ...] = ()

    @property
    def is_bug(self) -> bool:
        """Whether the verdict is one that PyTorch would want to hear of."""
        return self.verdict.is_bug

    @property
    def signature(self) -> str | None:
        """What makes two findings the same bug; None where there is none."""
        if not self.is_bug:
            return None
        culprit = self.attribution.culprit
        if culprit is not None and (culprit.rewrite is not None or culprit.family != "unknown"):
            return culprit.signature
        stage = culprit.stage if culprit is not None else "unattributed"
        if self.failure is not None:
            return f"{stage}:{self.failure.type_name}:{normalised(self.failure.message)}"
        return f"{stage}:-:{self.verdict}"

    def to_json(self) -> dict[str, Any]:
        """The object that ``fuzzcompile triage --json`` prints."""
        found = self.attribution
        culprit = _culprit(found.culprit) if found.culprit is not None and self.is_bug else None
        contract: dict[str, Any] = finite(
            {
                "schema": SCHEMA,
                "case": self.case,
                "torch": self.torch,
                "device": self.device,
                "verdict": str(self.verdict),
                "is_bug": self.is_bug,
                "confidence": self.confidence,
                "detail": self.detail,
                "evidence": self._evidence(),
                "culprit": culprit,
                "contributors": [other.to_json() for other in found.contributors],
                "changed_bits": [other.to_json() for other in found.changed_bits],
                "ablations": [ablation.to_json() for ablation in found.ablations],
                "workaround": found.workaround.to_json() if found.workaround is not None and self.is_bug else None,
                "signature": self.signature,
                "rewrites": self._rewrites(),
                "suspects": [one.to_json() for one in self.asked],
                "cost": {
                    "compiles": self.cost.compiles,
                    "screens": self.cost.screens,
                    "replays": self.cost.replays,
                    "seconds": round(self.cost.seconds, 3),
                },
            }
        )
        return contract

    def _rewrites(self) -> list[dict[str, Any]]:
        """The rules that matched anything in the judged compile, and what became of it."""
        counts: dict[tuple[str, str | None, str], dict[str, int]] = {}
        for one in self.coverage:
            if one.outcome in _MATCHED and (one.stage in _REWRITING or one.pass_name is not None):
                key = (one.stage, one.pass_name, one.rewrite)
                counts.setdefault(key, dict.fromkeys(_MATCHED, 0))[one.outcome] += one.count
        return [
            {"stage": stage, "pass": name, "rewrite": rewrite, **found}
            for (stage, name, rewrite), found in counts.items()
        ]

    def _evidence(self) -> dict[str, Any]:
        return {
            "outputs": [_output(comparison) for comparison in self.comparisons],
            "eager_deterministic": self.eager_deterministic,
            "float64_step": self.float64_step,
            "survives_float64": self.survives_float64,
            "against": self.against,
            "threads": self.threads,
            "graphs": self.graphs,
            "graph_breaks": list(self.graph_breaks),
            "randomness": self.randomness,
            "warnings": list(self.warnings),
            "notes": list(self.notes),
        }


def worker_failure(case: str, torch_version: str, device: str, verdict: Verdict, detail: str) -> Report:
    """Report on a case whose worker crashed or ran out of time while it was compiled."""
    kind = detail.split(";")[0]
    return Report(case, torch_version, device, verdict, "low", detail, failure=Failure(str(verdict), kind, "compile"))


def unjudged(case: str, torch_version: str, device: str, detail: str) -> dict[str, Any]:
    """The stored form of a case of which nothing can be said: it is no bug and no clean case."""
    return {
        "schema": SCHEMA,
        "case": case,
        "torch": torch_version,
        "device": device,
        "verdict": "unjudged",
        "is_bug": False,
        "confidence": "low",
        "detail": detail,
        "evidence": {"outputs": []},
        "culprit": None,
        "signature": None,
        "cost": {"compiles": 0, "replays": 0, "seconds": 0.0},
    }


def normalised(message: str) -> str:
    """An error message without what changes from run to run: numbers, addresses, quoted names, buffers."""
    text = re.sub(r"0x[0-9a-fA-F]+", "ADDR", message)
    text = re.sub(r"\b(buf|arg|primals_|tangents_|op)\d+\w*", r"\1N", text)
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "'…'", text)
    text = re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", "N", text)
    return " ".join(text.split())[:160]


def finite(value: Any) -> Any:
    """The same structure with NaN and infinities, which JSON has not, as null and named beside it."""
    if isinstance(value, Mapping):
        clean: dict[str, Any] = {}
        for key, item in value.items():
            if isinstance(item, float) and not math.isfinite(item):
                clean[key] = None
                clean.setdefault("non_finite", "nan" if math.isnan(item) else "inf" if item > 0 else "-inf")
            else:
                clean[key] = finite(item)
        return clean
    if isinstance(value, (list, tuple)):
        return [None if isinstance(i, float) and not math.isfinite(i) else finite(i) for i in value]
    return value


def _culprit(culprit: Culprit) -> dict[str, Any]:
    """The culprit, with what reports call the part of PyTorch that its stage belongs to."""
    return {**culprit.to_json(), "component": stage_named(culprit.stage).component}


def _output(comparison: Comparison) -> dict[str, Any]:
    return {
        "name": comparison.name,
        "finding": comparison.finding,
        "max_abs_error_eager": comparison.max_error_eager,
        "max_abs_error_compiled": comparison.max_error_compiled,
        "rms_error_eager": comparison.rms_error_eager,
        "rms_error_compiled": comparison.rms_error_compiled,
        "error_ratio": comparison.error_ratio,
        "max_ulps_eager": comparison.max_ulps_eager,
        "max_ulps_compiled": comparison.max_ulps_compiled,
        "noise_floor": comparison.noise_floor,
        "scale": comparison.scale,
        "within_default_tolerance": comparison.within_default_tolerance,
        "torch_same": comparison.torch_same,
        "cosine": comparison.cosine,
        "where": list(comparison.where) if comparison.where is not None else None,
        "at": comparison.at,
        "detail": comparison.detail,
    }
