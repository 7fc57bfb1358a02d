"""The answer on one case, and its JSON form (ARCHITECTURE.md, "Contracts")."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from fuzzcompile.attribution.culprit import Attribution, Culprit
from fuzzcompile.contract import SCHEMA, CauseJson, ContractJson, ErrorMapJson, ReportJson, TargetJson
from fuzzcompile.execution.observation import Failure
from fuzzcompile.judging.asked import Asked
from fuzzcompile.judging.counts import CoverageCount
from fuzzcompile.oracle.comparison import Comparison
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.severity import Severity, severity
from fuzzcompile.sides import COMPILE
from fuzzcompile.signatures import UNATTRIBUTED, normalised, of_program, refined
from fuzzcompile.stage_names import GRAPH_STAGES, PARTITION
from fuzzcompile.stages.table import stage_named

_MATCHED = ("fired", "refused", "vetoed")
_REWRITING = (*GRAPH_STAGES, PARTITION)


@dataclass(frozen=True)
class Cost:
    """Cost of the answer.

    ``screens`` are compiles without code generation; ``cause_screens`` are further ones, of parts of the case, that the
    search for its cause took. ``seconds`` is wall time.
    """

    compiles: int
    replays: int
    seconds: float
    screens: int = 0
    cause_screens: int = 0


@dataclass(frozen=True)
class Report:
    """Verdict, evidence and attribution of one case on one device.

    ``path`` names what ran in the program's place (:mod:`fuzzcompile.sides`), ``against`` what it was compared with,
    ``threads`` for how many CPU threads code was generated.
    ``survives_float64`` tells whether the divergence is there when the program itself is compiled in float64 (None:
    not tried). ``graphs`` counts what dynamo captured and ``graph_breaks`` says why it stopped. ``gives`` is the form
    of what a call that eager refuses returns when compiled. ``randomness`` says how a program that draws random numbers
    was judged (None: it draws none), ``promise`` which promise of a setting is broken (None: none), ``warnings`` which
    warnings only one of the two runs gave, ``notes`` what else a reader should know. A ``screened`` case was compiled
    without generated
    code. ``asked`` tells what became of rewrites that the user named. ``target`` is the device that the compiler was
    told, and how each stage was looked at for it (None: it compiled for the device that ran). ``contract`` says which
    promises of equal bits it keeps (None: not asked). ``cause`` is what must change for the case to pass, and
    ``program`` the key of its program up to names (None: not looked for). ``error_maps`` tells where in an output the
    errors are (empty: not asked).
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
    path: str = COMPILE
    threads: int = 0
    survives_float64: bool | None = None
    graphs: int = 0
    graph_breaks: tuple[str, ...] = ()
    randomness: str | None = None
    gives: str | None = None
    promise: str | None = None
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    screened: bool = False
    asked: tuple[Asked, ...] = ()
    target: TargetJson | None = None
    contract: ContractJson | None = None
    cause: CauseJson | None = None
    program: str | None = None
    error_maps: Mapping[str, ErrorMapJson] = field(default_factory=dict)

    @property
    def is_bug(self) -> bool:
        """Return whether the verdict is worth a report to PyTorch."""
        return self.verdict.is_bug

    @property
    def signature(self) -> str | None:
        """Identity of the bug, shared by its findings; None if the case is no bug.

        Wrong values whose culprit is not proved are held together by the program that shows them.
        """
        if not self.is_bug:
            return None
        culprit = self.attribution.culprit
        stage = culprit.stage if culprit is not None else UNATTRIBUTED
        if self.program is not None and self._rests_on_program():
            return of_program(stage, self.program)
        if culprit is not None and culprit.is_named:
            return refined(culprit.signature, self.cause.get("fingerprint") if self.cause is not None else None)
        if self.failure is not None:
            return f"{stage}:{self.failure.type_name}:{normalised(self.failure.message)}"
        return f"{stage}:-:{self.verdict}"

    def _rests_on_program(self) -> bool:
        """Return whether values or memory are wrong without a proved cause; a hit of a proved finding is proved."""
        culprit, attribution = self.attribution.culprit, self.attribution
        if attribution.known or (culprit is not None and culprit.necessary):
            return False
        outputs = [asdict(comparison) for comparison in self.comparisons]
        shown = {"verdict": str(self.verdict), "is_bug": True, "evidence": {"outputs": outputs}}
        return severity(cast("ReportJson", shown)) in (Severity.SILENT, Severity.ALIASING)

    def to_json(self) -> dict[str, Any]:
        """The object that ``fuzzcompile triage --json`` prints."""
        attribution = self.attribution
        culprit = _culprit(attribution.culprit) if attribution.culprit is not None and self.is_bug else None
        workaround = attribution.workaround if self.is_bug else None
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
                "contributors": [culprit.to_json() for culprit in attribution.contributors],
                "changed_bits": [culprit.to_json() for culprit in attribution.changed_bits],
                "ablations": [ablation.to_json() for ablation in attribution.ablations],
                "workaround": workaround.to_json() if workaround is not None else None,
                "cause": self.cause,
                "signature": self.signature,
                "rewrites": self._rewrites(),
                "suspects": [asdict(asked) for asked in self.asked],
                "target": self.target,
                "cost": {**asdict(self.cost), "seconds": round(self.cost.seconds, 3)},
            }
        )
        if self.contract is not None:
            contract["contract"] = finite(self.contract)
        return {**contract, "severity": severity(cast("ReportJson", contract))}

    def _rewrites(self) -> list[dict[str, Any]]:
        """The rules that matched anything in the judged compile, and what became of it."""
        counts: dict[tuple[str, str | None, str], dict[str, int]] = {}
        for rule in self.coverage:
            if rule.outcome in _MATCHED and (rule.stage in _REWRITING or rule.pass_name is not None):
                key = (rule.stage, rule.pass_name, rule.rewrite)
                counts.setdefault(key, dict.fromkeys(_MATCHED, 0))[rule.outcome] += rule.count
        return [
            {"stage": stage, "pass": name, "rewrite": rewrite, **outcomes}
            for (stage, name, rewrite), outcomes in counts.items()
        ]

    def _evidence(self) -> dict[str, Any]:
        return {
            "outputs": [
                _output(comparison) | ({"error_map": drawn} if (drawn := self.error_maps.get(comparison.name)) else {})
                for comparison in self.comparisons
            ],
            "eager_deterministic": self.eager_deterministic,
            "float64_step": self.float64_step,
            "survives_float64": self.survives_float64,
            "against": self.against,
            "path": self.path,
            "threads": self.threads,
            "graphs": self.graphs,
            "graph_breaks": list(self.graph_breaks),
            "randomness": self.randomness,
            "gives": self.gives,
            "promise": self.promise if self.is_bug else None,
            "warnings": list(self.warnings),
            "notes": list(self.notes),
        }


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
    """A comparison in the names of the contract, with its ratio of errors and without what only the judge reads."""
    fields = {**asdict(comparison), "error_ratio": comparison.error_ratio}
    return {_CONTRACT.get(name, name): value for name, value in fields.items() if name not in _INTERNAL}


_CONTRACT = {"max_error_eager": "max_abs_error_eager", "max_error_compiled": "max_abs_error_compiled"}
_INTERNAL = ("kind", "within_scaled_tolerance", "by_norm")
