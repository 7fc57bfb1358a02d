"""The report on one case, its JSON form (docs/machines.md), and the fate of suspected rewrites."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

import torch

from fuzzcompile.compiler.compile_changes import InductorSettings
from fuzzcompile.compiler.rule_catalogue import KnownRule, list_known_rules
from fuzzcompile.compiler.torch_config import MISSING, get_setting
from fuzzcompile.compiler.watch.ledger import Label, Ledger
from fuzzcompile.compiler.watch.rule_labels import get_base_name, is_vetoed
from fuzzcompile.diagnosis.attribution.culprit import Attribution
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
    LaterCallJson,
    OutputJson,
    ReportJson,
    RewriteJson,
    SuspectJson,
    TargetJson,
    WrongSide,
)
from fuzzcompile.model.severity import Severity, rate_bug, rate_severity
from fuzzcompile.model.signatures import (
    UNATTRIBUTED,
    find_symptom,
    make_program_signature,
    normalise_message,
    replace_fingerprint,
)
from fuzzcompile.model.stages import BY_NAME, FUNCTIONALIZATION, GRAPH_STAGES, PARTITION
from fuzzcompile.model.verdicts import Comparison, CoverageCount, Verdict
from fuzzcompile.run import metrics
from fuzzcompile.run.observation import Failure
from fuzzcompile.run.plants import list_plants
from fuzzcompile.run.tensors import densify

FUNCTORCH = "functorch."
"""Begins the name of a setting of AOTAutograd's among those that a case changes."""

# Error maps: the places at which a compiled program's outputs are wrong, in a grid small enough to print.

CELLS = 32  # rows and columns of a map, at most
_DIGITS = 4  # significant digits of an error
# Findings with errors to show, and those of them that are no fault.
_HARMLESS = ("close", "wild")
_MEASURED = ("far", "nonfinite", "integer", *_HARMLESS)
_MOST = 6  # outputs of one report


def make_error_map(eager: torch.Tensor, compiled: torch.Tensor, exact: torch.Tensor) -> ErrorMapJson | None:
    """The errors of eager and compiled against ``exact``, each cell the largest of the elements that it covers.

    The tensor is read as a matrix: the last dimension of more than one element gives the columns, all others, one
    behind the other, the rows. Rows and columns beyond :data:`CELLS` are gathered into ranges of nearly equal length.
    None for fewer than two elements, and for tensors of different shapes.
    """
    shape = densify(eager).shape
    if not (shape == densify(compiled).shape == densify(exact).shape) or shape.numel() < 2:
        return None
    split = max(dimension for dimension, size in enumerate(shape) if size > 1)
    rows, columns = shape[:split].numel(), shape[split]
    row_edges, column_edges = (
        [length * part // parts for part in range(parts + 1)]
        for length, parts in ((rows, min(rows, CELLS)), (columns, min(columns, CELLS)))
    )

    def fill_cells(values: torch.Tensor) -> list[list[float | None]]:
        errors = metrics.distance(values, exact).view(rows, columns)
        in_rows = torch.stack([errors[start:end].amax(0) for start, end in itertools.pairwise(row_edges)])
        grid = torch.stack([in_rows[:, start:end].amax(1) for start, end in itertools.pairwise(column_edges)], 1)
        return [[float(f"{e:.{_DIGITS}g}") if math.isfinite(e) else None for e in row] for row in grid.tolist()]

    return {
        "shape": list(shape),
        "row_dims": split,
        "rows": row_edges,
        "columns": column_edges,
        "eager": fill_cells(eager),
        "compiled": fill_cells(compiled),
    }


def make_error_maps(experiments: Experiments, trial: Trial) -> dict[str, ErrorMapJson]:
    """Return the error maps of the worst outputs, by name, among those that were measured and differ."""
    exact = experiments.runs.exact if trial.judgement.casts_dropped else experiments.runs.reference
    runs = [run.index_by_name() for run in (experiments.baseline, trial.observation, exact)]
    random = trial.sampled or ()
    measured = [c for c in trial.judgement.comparisons if c.finding in _MEASURED and c.name not in random]
    maps = dict[str, ErrorMapJson]()
    for comparison in sorted(measured, key=lambda c: (c.finding in _HARMLESS, -c.relative_error))[:_MOST]:
        values = [run[comparison.name].value for run in runs if comparison.name in run]
        if len(values) == len(runs) and all(isinstance(value, torch.Tensor) for value in values):
            drawn = make_error_map(*values)
            maps |= {} if drawn is None else {comparison.name: drawn}
    return maps


# Fate of a pass or pattern that the user suspects by name in the judged compile.

_OPTION = re.compile(r"^'(?P<name>\w+)' in config\.(?P<entry>\w+_fusion_options)$")
_FLAG = re.compile(r"^(?P<no>not )?config\.(?P<entry>[\w.]+)$")


def find_rewrite_fate(experiments: Experiments, trial: Trial, steps: Sequence[Step], name: str) -> SuspectJson:
    """Report the effect in ``trial`` of the rewrite (or of all of a pass) called ``name``, as ``--veto`` takes it.

    One that is switched off is switched on and looked for once more, without code generation.
    """
    moved = [step for step in steps if _matches_name(step.label, name) and step.changed_bits]
    effect, ran = _describe_effect(trial.ledger, name, moved)
    on, said = (None if effect is None else True), effect
    known = [rule for rule in list_known_rules(experiments.device) if _is_meant(rule, name)] if effect is None else []
    if known:
        on = any(rule.on is not False for rule in known)
        why = "it is on, and found nothing to match" if on else _describe_when_on(experiments, known, name)
        said = f"did not run: {why}"
    said = said or "no rewrite of this torch has that name; `fuzzcompile coverage --rules` lists them"
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
    return f"{said}; switched on, it {_describe_effect(ledger, name, ())[0] or 'finds nothing to match'}"


def _describe_effect(ledger: Ledger, name: str, moved: Sequence[Step]) -> tuple[str | None, bool]:
    """What the rewrites of that name did, None if they matched nothing, and whether one of them changed a graph."""
    seen: Counter[str] = Counter()
    for (label, outcome), count in ledger.coverage.items():
        if _matches_name(label, name):
            seen[outcome] += count
    if not seen:
        return None, False
    ran = any(_matches_name(rewrite.label, name) for _, _, rewrite in ledger.list_rewrites())
    times = {outcome: "once" if count == 1 else f"{count} times" for outcome, count in seen.items()}
    fired = times.get("fired", "0 times")
    if moved:
        steps = [step.float64 for step in moved if step.float64 is not None]
        size = f"; the largest step in float64 is {max(steps):.1e} of the result's size" if steps else ""
        return f"ran {fired} and changed bits{size}", ran
    if ran:
        return f"ran {fired} and changed no bit", ran
    if seen["fired"]:
        return f"was called {fired} and left the graph as it was", ran
    if seen["vetoed"]:
        return f"was vetoed {times['vetoed']}", ran
    return f"matched {times.get('refused', '0 times')} and was refused by its own check", ran


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
    the key of the case's program up to names and sizes, None if no cause was looked for.
    """

    case: str
    torch: str
    device: str
    verdict: Verdict
    confidence: str
    detail: str = ""
    wrong: WrongSide | None = None
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
    layout_doubt: str | None = None
    opt_in: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    call: LaterCallJson | None = None
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
            cause = self.cause.get("fingerprint") if self.cause is not None else None
            return replace_fingerprint(culprit.signature, self.symptom or cause)
        if self.failure is not None:
            return f"{stage}:{self.failure.type_name}:{normalise_message(self.failure.message)}"
        return f"{stage}:-:{self.verdict}"

    @property
    def symptom(self) -> str | None:
        """What is the matter, where that settles what the bug is and no cause has to be found."""
        if not self.is_bug:
            return None
        culprit = self.attribution.culprit
        details = culprit.details if culprit is not None else {}
        return find_symptom(str(self.verdict), self._outputs, details)

    def _rests_on_program(self) -> bool:
        """Return whether values or memory are wrong without a proved cause; a hit of a proved finding is proved."""
        culprit, attribution = self.attribution.culprit, self.attribution
        if attribution.known or (culprit is not None and culprit.necessary):
            return False
        return rate_bug(str(self.verdict), self._outputs) in (Severity.SILENT, Severity.ALIASING)

    def to_json(self) -> ReportJson:
        """The object that ``fuzzcompile triage --json`` prints."""
        attribution = self.attribution
        culprit, workaround = (None, None)
        if self.is_bug or self.verdict is Verdict.BY_DESIGN:
            culprit, workaround = attribution.culprit, attribution.workaround
        named = None if culprit is None else culprit.to_json()
        if culprit is not None and named is not None:
            named["component"] = BY_NAME[culprit.stage].component
        report: ReportJson = {
            "schema": SCHEMA,
            "case": self.case,
            "torch": self.torch,
            "device": self.device,
            "verdict": str(self.verdict),
            "is_bug": self.is_bug,
            "wrong": self.wrong,
            "confidence": self.confidence,
            "detail": self.detail,
            "evidence": self._make_evidence(),
            "culprit": named,
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
        if self.is_bug and culprit is not None:
            if BY_NAME[culprit.stage].is_inductor:
                report["opt_in"] = list(self.opt_in)
            elif culprit.stage in (FUNCTIONALIZATION, PARTITION) and self.opt_in:
                report["opt_in"] = [name for name in self.opt_in if name.startswith(FUNCTORCH)]
        if plants := list_plants():
            report["plants"] = [path.name for path in plants]
        finite: ReportJson = make_finite(report)
        return {**finite, "severity": rate_severity(finite)}

    def _count_rewrites(self) -> list[RewriteJson]:
        counts: dict[tuple[str, str | None, str], Counter[str]] = {}
        for rule in self.coverage:
            if rule.outcome in _MATCHED and (rule.stage in _REWRITING or rule.pass_name is not None):
                counts.setdefault((rule.stage, rule.pass_name, rule.rewrite), Counter())[rule.outcome] += rule.count
        rows = []
        for (stage, name, rewrite), outcomes in counts.items():
            matched = {outcome: outcomes[outcome] for outcome in _MATCHED}
            rows.append(cast(RewriteJson, {"stage": stage, "pass": name, "rewrite": rewrite, **matched}))
        return rows

    def _make_evidence(self) -> EvidenceJson:
        shared = {key: getattr(self, key) for key in EvidenceJson.__annotations__ if key not in _OTHER_EVIDENCE}
        return cast(
            EvidenceJson, {"outputs": self._outputs, **shared, "promise": self.promise if self.is_bug else None}
        )

    @functools.cached_property
    def _outputs(self) -> list[OutputJson]:
        return [self._make_output(comparison) for comparison in self.comparisons]

    def _make_output(self, comparison: Comparison) -> OutputJson:
        """A comparison as evidence, without what only the judge reads."""
        output = {name: value for name, value in asdict(comparison).items() if name not in _FOR_THE_JUDGE}
        output["error_ratio"] = comparison.error_ratio
        if comparison.name in self.error_maps:
            output["error_map"] = self.error_maps[comparison.name]
        return cast(OutputJson, output)


def make_finite(value: Any) -> Any:
    """The same structure with NaN and infinities, which JSON has not, as null and named beside it.

    Where several differ, ``non_finite`` names the first, and ``non_finite_compiled`` or the like another.
    """
    if isinstance(value, Mapping):
        clean: dict[str, Any] = {}
        for key, item in value.items():
            if isinstance(item, float) and not math.isfinite(item):
                name, clean[key] = str(item), None
                if clean.setdefault("non_finite", name) != name:
                    clean[f"non_finite_{key}"] = name
            else:
                clean[key] = make_finite(item)
        return clean
    if isinstance(value, (list, tuple)):
        return [None if isinstance(i, float) and not math.isfinite(i) else make_finite(i) for i in value]
    return value
