"""The report on one case, its JSON form (docs/machines.md), and the fate of suspected rewrites."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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


@dataclass(frozen=True)
class RewriteFate:
    """Fate of a suspected rewrite in the judged compile.

    ``ran`` says whether it was applied, ``changed_bits`` whether that moved any bit of its graph's results, ``on``
    whether it is switched on (None: no rewrite has that name). ``said`` is all of it in a sentence.
    """

    name: str
    ran: bool
    changed_bits: bool
    on: bool | None
    said: str

    def to_json(self) -> SuspectJson:
        """The form of the triage contract."""
        return {
            "name": self.name,
            "ran": self.ran,
            "changed_bits": self.changed_bits,
            "on": self.on,
            "said": self.said,
        }


def find_rewrite_fate(experiments: Experiments, trial: Trial, steps: Sequence[Step], name: str) -> RewriteFate:
    """Report the effect in ``trial`` of the rewrite (or of all of a pass) called ``name``.

    One that is switched off is switched on and looked for once more, without code generation.

    Args:
        experiments: make that further compile.
        trial: the judged compile.
        steps: how much each of its rewrites moved the result.
        name: what ``--veto`` takes, or the name of a pass.
    """
    seen = _count_outcomes(trial.ledger, name)
    if seen:
        moved = [step for step in steps if _matches_name(step.label, name) and step.changed_bits]
        ran = any(_matches_name(rewrite.label, name) for _, _, rewrite in trial.ledger.list_rewrites())
        return RewriteFate(name, ran, bool(moved), True, _describe_outcomes(seen, ran, moved))
    known = [
        rewrite
        for rewrite in list_known_rules(experiments.device)
        if rewrite.kind in ("pass", "pattern") and _is_meant(rewrite, name)
    ]
    if not known:
        said = "no rewrite of this torch has that name; `fuzzcompile passes` lists them"
        return RewriteFate(name, False, False, None, said)
    if any(rewrite.on is not False for rewrite in known):
        return RewriteFate(name, False, False, True, "did not run: it is on, and found nothing to match")
    return RewriteFate(name, False, False, False, "did not run: " + _describe_when_on(experiments, known, name))


def _describe_when_on(experiments: Experiments, known: Sequence[KnownRule], name: str) -> str:
    conditions = list(dict.fromkeys(rewrite.when for rewrite in known if rewrite.when))
    said = f"it is off (runs if {' or '.join(conditions)})" if conditions else "it is off"
    config = next(
        (entries for text in conditions if (entries := _parse_condition(text, experiments)) is not None), None
    )
    if config is None:
        return said
    how = replace(experiments.how.under(InductorSettings(config)), screen=True)
    ledger = experiments.trial(how).ledger
    seen = _count_outcomes(ledger, name)
    ran = any(_matches_name(rewrite.label, name) for _, _, rewrite in ledger.list_rewrites())
    return f"{said}; switched on, it {_describe_outcomes(seen, ran, []) if seen else 'finds nothing to match'}"


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
    return _matches_name(Label(known.stage, known.pass_name, known.name), name) or get_base_name(known.name) == name


def _parse_condition(condition: str, experiments: Experiments) -> dict[str, Any] | None:
    """Settings under which a condition on the config holds; None if it is of another kind."""
    given = {**experiments.case.settings.inductor, **experiments.case.settings.options}
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

    def to_json(self) -> CostJson:
        """The form of the triage contract."""
        return {
            "compiles": self.compiles,
            "replays": self.replays,
            "seconds": round(self.seconds, 3),
            "screens": self.screens,
            "cause_screens": self.cause_screens,
        }


@dataclass(frozen=True)
class TriageReport:
    """Verdict, evidence and attribution of one case on one device.

    ``path`` names what ran in the program's place (:mod:`fuzzcompile.model.contract`), ``against`` what it was
    compared with,
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
    asked: tuple[RewriteFate, ...] = ()
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
            "suspects": [asked.to_json() for asked in self.asked],
            "target": self.target,
            "cost": self.cost.to_json(),
        }
        if self.contract is not None:
            report["contract"] = self.contract
        finite: ReportJson = make_finite(report)
        return {**finite, "severity": rate_severity(finite)}

    def _count_rewrites(self) -> list[RewriteJson]:
        """The rules that matched anything in the judged compile, and what became of it."""
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
        return {
            "outputs": [_make_output(comparison, self.error_maps) for comparison in self.comparisons],
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
    """The culprit, with what reports call the part of PyTorch that its stage belongs to."""
    return {**culprit.to_json(), "component": BY_NAME[culprit.stage].component}


def _make_output(comparison: Comparison, maps: Mapping[str, ErrorMapJson]) -> OutputJson:
    """A comparison as evidence, without what only the judge reads."""
    output: OutputJson = {
        "name": comparison.name,
        "finding": comparison.finding,
        "max_abs_error_eager": comparison.max_error_eager,
        "max_abs_error_compiled": comparison.max_error_compiled,
        "rms_error_eager": comparison.rms_error_eager,
        "rms_error_compiled": comparison.rms_error_compiled,
        "max_ulps_eager": comparison.max_ulps_eager,
        "max_ulps_compiled": comparison.max_ulps_compiled,
        "noise_floor": comparison.noise_floor,
        "scale": comparison.scale,
        "within_default_tolerance": comparison.within_default_tolerance,
        "cosine": comparison.cosine,
        "torch_same": comparison.torch_same,
        "view_raises": comparison.view_raises,
        "where": None if comparison.where is None else list(comparison.where),
        "at": dict(comparison.at),
        "detail": comparison.detail,
        "error_ratio": comparison.error_ratio,
    }
    if comparison.name in maps:
        output["error_map"] = maps[comparison.name]
    return output
