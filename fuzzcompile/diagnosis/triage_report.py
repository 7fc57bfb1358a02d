"""The report on one case, its JSON form (docs/machines.md), and the fate of suspected rewrites."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

from fuzzcompile.compiler.compile_changes import InductorSettings
from fuzzcompile.compiler.rule_catalogue import KnownRule, list_known_rules
from fuzzcompile.compiler.torch_config import MISSING, get_setting
from fuzzcompile.compiler.watch.ledger import Label, Ledger
from fuzzcompile.compiler.watch.rule_labels import get_base_name, is_vetoed
from fuzzcompile.diagnosis.attribution.culprit import Attribution, Culprit
from fuzzcompile.diagnosis.attribution.steps import Step
from fuzzcompile.diagnosis.trials.case_runs import Trial
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.model.contract import (
    COMPILE,
    SCHEMA,
    CauseJson,
    ContractJson,
    CostJson,
    ErrorMapJson,
    EvidenceJson,
    OutputJson,
    ReportJson,
    RewriteJson,
    SuspectJson,
    TargetJson,
)
from fuzzcompile.model.culprit_contract import CulpritJson
from fuzzcompile.model.severity import Severity, rate_bug, rate_severity
from fuzzcompile.model.signatures import UNATTRIBUTED, make_program_signature, normalise_message, replace_fingerprint
from fuzzcompile.model.stages import BY_NAME, GRAPH_STAGES, PARTITION
from fuzzcompile.model.verdicts import Comparison, CoverageCount, Verdict
from fuzzcompile.run.observation import Failure

# Fate of a pass or pattern that the user suspects by name in the judged compile.

_OPTION = re.compile(r"^'(?P<name>\w+)' in config\.(?P<entry>\w+_fusion_options)$")
_FLAG = re.compile(r"^(?P<no>not )?config\.(?P<entry>[\w.]+)$")


def find_rewrite_fate(experiments: Experiments, trial: Trial, steps: Sequence[Step], name: str) -> SuspectJson:
    """Report the effect in ``trial`` of the rewrite (or of all of a pass) called ``name``, as ``--veto`` takes it.

    One that is switched off is switched on and looked for once more, without code generation.
    """
    seen = _count_outcomes(trial.ledger, name)
    moved = [step for step in steps if _matches_name(step.label, name) and step.changed_bits]
    ran, on, said = False, None, "no rewrite of this torch has that name; `fuzzcompile passes` lists them"
    if seen:
        ran, on = _has_run(trial.ledger, name), True
        said = _describe_outcomes(seen, ran, moved)
    elif known := [rule for rule in list_known_rules(experiments.device) if _is_meant(rule, name)]:
        on = any(rule.on is not False for rule in known)
        why = "it is on, and found nothing to match" if on else _describe_when_on(experiments, known, name)
        said = f"did not run: {why}"
    return {"name": name, "ran": ran, "changed_bits": bool(moved), "on": on, "said": said}


def _describe_when_on(experiments: Experiments, known: Sequence[KnownRule], name: str) -> str:
    conditions = list(dict.fromkeys(rewrite.when for rewrite in known if rewrite.when))
    said = f"it is off (runs if {' or '.join(conditions)})" if conditions else "it is off"
    config = next(
        (entries for text in conditions if (entries := _parse_condition(text, experiments)) is not None), None
    )
    if config is None:
        return said
    ledger = experiments.trial(replace(experiments.how.under(InductorSettings(config)), screen=True)).ledger
    seen = _count_outcomes(ledger, name)
    outcomes = _describe_outcomes(seen, _has_run(ledger, name), []) if seen else "finds nothing to match"
    return f"{said}; switched on, it {outcomes}"


def _has_run(ledger: Ledger, name: str) -> bool:
    return any(_matches_name(rewrite.label, name) for _, _, rewrite in ledger.list_rewrites())


def _count_outcomes(ledger: Ledger, name: str) -> Counter[str]:
    seen: Counter[str] = Counter()
    for (label, outcome), count in ledger.coverage.items():
        if _matches_name(label, name):
            seen[outcome] += count
    return seen


def _describe_outcomes(seen: Mapping[str, int], ran: bool, moved: Sequence[Step]) -> str:
    if moved:
        steps = [step.float64 for step in moved if step.float64 is not None]
        size = f"; the largest step in float64 is {max(steps):.1e} of the result's size" if steps else ""
        return f"ran {_format_times(seen['fired'])} and changed bits{size}"
    if ran:
        return f"ran {_format_times(seen['fired'])} and changed no bit"
    if seen["fired"]:
        return f"was called {_format_times(seen['fired'])} and left the graph as it was"
    if seen["vetoed"]:
        return f"was vetoed {_format_times(seen['vetoed'])}"
    return f"matched {_format_times(seen['refused'])} and was refused by its own check"


def _format_times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _matches_name(label: Label, name: str) -> bool:
    return label.pass_name == name or is_vetoed(label, [name])


def _is_meant(known: KnownRule, name: str) -> bool:
    if known.kind not in ("pass", "pattern"):
        return False
    return _matches_name(Label(known.stage, known.pass_name, known.name), name) or get_base_name(known.name) == name


def _parse_condition(condition: str, experiments: Experiments) -> dict[str, Any] | None:
    """Settings under which a condition on the config holds; None if it is of another kind."""
    given = experiments.case.settings.own_config
    config: dict[str, Any] = {}
    for part in condition.split(" and "):
        option, flag = _OPTION.match(part), _FLAG.match(part)
        if option is not None:
            present = given.get(option["entry"], get_setting(option["entry"]))
            config[option["entry"]] = {**(present if isinstance(present, Mapping) else {}), option["name"]: {}}
        elif flag is not None and get_setting(flag["entry"]) is not MISSING:
            config[flag["entry"]] = not flag["no"]
        else:
            return None
    return config


_MATCHED = ("fired", "refused", "vetoed")
_REWRITING = (*GRAPH_STAGES, PARTITION)
# Evidence that is no field of a report under the same name, and fields of a comparison that are no evidence.
_OTHER_EVIDENCE = ("outputs", "non_finite")
_FOR_THE_JUDGE = ("kind", "within_scaled_tolerance", "by_norm")


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
class TriageReport:
    """Verdict, evidence and attribution of one case on one device.

    Fields that the JSON object or its evidence has too mean the same there (:mod:`fuzzcompile.model.contract`). A
    ``screened`` case was compiled without generated code; ``coverage`` counts what its compile reached; ``program`` is
    the key of the case's program up to names, None if no cause was looked for.
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
    suspects: tuple[SuspectJson, ...] = ()
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
            return make_program_signature(stage, self.program)
        if culprit is not None and culprit.is_named:
            return replace_fingerprint(
                culprit.signature, self.cause.get("fingerprint") if self.cause is not None else None
            )
        if self.failure is not None:
            return f"{stage}:{self.failure.type_name}:{normalise_message(self.failure.message)}"
        return f"{stage}:-:{self.verdict}"

    def _rests_on_program(self) -> bool:
        """Return whether values or memory are wrong without a proved cause; a hit of a proved finding is proved."""
        culprit, attribution = self.attribution.culprit, self.attribution
        if attribution.known or (culprit is not None and culprit.necessary):
            return False
        return rate_bug(str(self.verdict), self._make_evidence()["outputs"]) in (Severity.SILENT, Severity.ALIASING)

    def to_json(self) -> ReportJson:
        """The object that ``fuzzcompile triage --json`` prints."""
        attribution = self.attribution
        culprit = attribution.culprit if self.is_bug else None
        workaround = attribution.workaround if self.is_bug else None
        report: ReportJson = {
            "schema": SCHEMA,
            "case": self.case,
            "torch": self.torch,
            "device": self.device,
            "verdict": str(self.verdict),
            "is_bug": self.is_bug,
            "confidence": self.confidence,
            "detail": self.detail,
            "evidence": self._make_evidence(),
            "culprit": _make_named_culprit(culprit) if culprit is not None else None,
            "contributors": [culprit.to_json() for culprit in attribution.contributors],
            "changed_bits": [culprit.to_json() for culprit in attribution.changed_bits],
            "ablations": [ablation.to_json() for ablation in attribution.ablations],
            "workaround": workaround.to_json() if workaround is not None else None,
            "cause": self.cause,
            "signature": self.signature,
            "rewrites": self._count_rewrites(),
            "suspects": list(self.suspects),
            "target": self.target,
            "cost": cast(CostJson, asdict(replace(self.cost, seconds=round(self.cost.seconds, 3)))),
        }
        if self.contract is not None:
            report["contract"] = self.contract
        finite: ReportJson = make_finite(report)
        return {**finite, "severity": rate_severity(finite)}

    def _count_rewrites(self) -> list[RewriteJson]:
        counts: dict[tuple[str, str | None, str], Counter[str]] = {}
        for rule in self.coverage:
            if rule.outcome in _MATCHED and (rule.stage in _REWRITING or rule.pass_name is not None):
                counts.setdefault((rule.stage, rule.pass_name, rule.rewrite), Counter())[rule.outcome] += rule.count
        return [
            {
                "stage": stage,
                "pass": name,
                "rewrite": rewrite,
                "fired": outcomes["fired"],
                "refused": outcomes["refused"],
                "vetoed": outcomes["vetoed"],
            }
            for (stage, name, rewrite), outcomes in counts.items()
        ]

    def _make_evidence(self) -> EvidenceJson:
        shared = {key: getattr(self, key) for key in EvidenceJson.__annotations__ if key not in _OTHER_EVIDENCE}
        outputs = [_make_output(comparison, self.error_maps) for comparison in self.comparisons]
        return cast(EvidenceJson, {"outputs": outputs, **shared, "promise": self.promise if self.is_bug else None})


def make_finite(value: Any) -> Any:
    """The same structure with NaN and infinities, which JSON has not, as null and named beside it."""
    if isinstance(value, Mapping):
        clean: dict[str, Any] = {}
        for key, item in value.items():
            if isinstance(item, float) and not math.isfinite(item):
                clean[key] = None
                clean.setdefault("non_finite", "nan" if math.isnan(item) else "inf" if item > 0 else "-inf")
            else:
                clean[key] = make_finite(item)
        return clean
    if isinstance(value, (list, tuple)):
        return [None if isinstance(i, float) and not math.isfinite(i) else make_finite(i) for i in value]
    return value


def _make_named_culprit(culprit: Culprit) -> CulpritJson:
    return {**culprit.to_json(), "component": BY_NAME[culprit.stage].component}


def _make_output(comparison: Comparison, maps: Mapping[str, ErrorMapJson]) -> OutputJson:
    """A comparison as evidence, without what only the judge reads."""
    output = {name: value for name, value in asdict(comparison).items() if name not in _FOR_THE_JUDGE}
    output["error_ratio"] = comparison.error_ratio
    if comparison.name in maps:
        output["error_map"] = maps[comparison.name]
    return cast(OutputJson, output)
