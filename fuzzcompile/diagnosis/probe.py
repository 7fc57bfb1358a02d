"""A quick look at a case, and the signature that a reduction is locked to."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch

from fuzzcompile.compiler.compile_changes import Veto
from fuzzcompile.compiler.graph_breaks import find_captured_calls
from fuzzcompile.compiler.rule_catalogue import initialise_patterns
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.compiler.watch.rule_labels import get_family
from fuzzcompile.diagnosis.attribution.culprit import Divergence
from fuzzcompile.diagnosis.attribution.steps import measure_steps, rank_suspects, select_semantic_steps
from fuzzcompile.diagnosis.decision import Decision, confirm, decide, settle
from fuzzcompile.diagnosis.eager_judgement import judge_eager
from fuzzcompile.diagnosis.oracle.judgement import choose_wrong_values_verdict
from fuzzcompile.diagnosis.refusals import CannotJudge
from fuzzcompile.diagnosis.stages.graph_passes import list_visible_rewrites
from fuzzcompile.diagnosis.stages.stage_table import get_stage
from fuzzcompile.diagnosis.stages.tracing_ways import list_instruction_suspects
from fuzzcompile.diagnosis.stages.ways import Suspect
from fuzzcompile.diagnosis.stale_calls import find_stale_call
from fuzzcompile.diagnosis.trials.case_runs import Trial
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.diagnosis.wrong_side import find_wrong_side
from fuzzcompile.model.contract import EAGER, ReportJson, find_broken_promise
from fuzzcompile.model.severity import Severity, rate_effect
from fuzzcompile.model.signatures import find_error, normalise_message, parse_fingerprint, renew
from fuzzcompile.model.stages import AROUND_CAPTURE, ATEN, BEHIND_GRAPHS, DYNAMO, GRAPH_STAGES
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.run.case import Case

Keep = Literal["verdict", "culprit"]
# What is wrong before code generation shows without it.
_SCREENABLE = (*GRAPH_STAGES, *AROUND_CAPTURE)
_NEEDS_CODE = (Verdict.CRASH, Verdict.TIMEOUT, Verdict.NONDETERMINISTIC, Verdict.STALE)
# The part of an error's message that says which error it is: sizes and names come later.
_MESSAGE = 60
# What is found of a value whose elements are right.
_RIGHT_VALUES = ("same", "close", "stride", "requires_grad", "alias")
# How long the operators of a candidate are compared, which is small most of the time.
_SECONDS = 10.0


def is_named_by_call(report: Mapping[str, Any]) -> bool:
    """Return whether a culprit is named by the one call behind which all is right, as no suspect of a stage is."""
    culprit = report.get("culprit") or {}
    named = str(culprit.get("rewrite")).startswith(("torch.", "operator.", "numpy."))
    tried = culprit.get("source") is None and report.get("confidence") == "low" and culprit.get("necessary") is True
    return named and tried and culprit.get("stage") != DYNAMO


def _shorten(error: str) -> str:
    kind, _, message = error.partition(": ")
    return f"{kind}: {normalise_message(message)}"[:_MESSAGE]


@dataclass(frozen=True)
class CaseProbe:
    """A quick look at a case: one compile, no proof.

    ``suspects`` are the suspects of the stages that were asked, most telling first. ``error`` is the type and message
    of what was raised, without what changes from case to case. ``outcomes`` are the stage and family of whatever
    matched, each with what became of it, ``calls`` what dynamo captured, by the user's names, ``right_values`` whether
    no element can be wrong, and ``outputs`` what the compiled program returned.
    """

    verdict: Verdict
    suspects: tuple[Suspect, ...] = ()
    error: str | None = None
    compiles: int = 1
    screens: int = 0
    outcomes: frozenset[tuple[str, str, str]] = frozenset()
    calls: frozenset[str] = frozenset()
    right_values: bool = False
    outputs: tuple[torch.Tensor, ...] = field(default=(), compare=False, repr=False)

    @property
    def is_bug(self) -> bool:
        """Return whether the verdict is a bug."""
        return self.verdict.is_bug


@dataclass(frozen=True)
class SignatureLock:
    """The signature that a reduction is locked to.

    ``named`` says that a culprit has a name; otherwise ``error`` distinguishes one error from another, and all else is
    held by stage. ``causes`` holds the fingerprint of the cause, if it is known: no probe looks for it, but a full
    judgement tries it first. ``promise`` is the promise of equal bits that is broken where no value is wrong: no probe
    shows that (`fuzzcompile.diagnosis.bitwise.promises.find_broken_bits`). What is ``silent`` may not come to raise.
    ``call`` is the one call behind which all is right, where nothing but compiles around it named the culprit.
    """

    verdict: str
    stage: str | None
    source: str | None
    families: tuple[str, ...]
    keep: Keep = "culprit"
    named: bool = True
    error: str | None = None
    causes: tuple[str, ...] = ()
    promise: str | None = None
    silent: bool = False
    call: str | None = None

    @classmethod
    def of(cls, report: Mapping[str, Any], keep: Keep = "culprit") -> SignatureLock:
        """The target that a report's culprit makes; ``keep`` the verdict only, if that is all that is asked for."""
        culprit, signature = report.get("culprit") or {}, str(report.get("signature") or "")
        rewrite, error = culprit.get("rewrite"), find_error(cast("ReportJson", report))
        by_call = is_named_by_call(report)
        named = rewrite is not None and not by_call
        # The signature of an error without a culprit: stage, type and message.
        parts = renew(signature).split(":", 2)
        plain = not named and Verdict(report["verdict"]).kind == "error" and len(parts) == 3 and parts[1] != "-"
        cause = parse_fingerprint(signature)
        return cls(
            report["verdict"],
            culprit.get("stage"),
            culprit.get("source"),
            tuple((culprit.get("family") or "").split("+")),
            keep,
            named,
            error=_shorten(error) if by_call and error else f"{parts[1]}: {parts[2]}"[:_MESSAGE] if plain else None,
            causes=() if cause is None or keep == "verdict" else (cause,),
            promise=find_broken_promise(report),
            silent=rate_effect(cast("ReportJson", report)) is Severity.SILENT,
            call=str(rewrite) if by_call else None,
        )

    @property
    def screens(self) -> bool:
        """Return whether the bug may show where graphs are interpreted instead of compiled."""
        return self.stage in _SCREENABLE and self.verdict not in _NEEDS_CODE and self.promise is None

    @property
    def suspect_stage(self) -> str | None:
        """The stage around the graph passes whose suspects must hold the culprit; None if there is none."""
        held = self.keep == "culprit" and self.named and self.stage in (*AROUND_CAPTURE, *BEHIND_GRAPHS)
        return self.stage if held else None

    def matches(self, probe: CaseProbe) -> bool:
        """Return whether the probe fails in this way.

        The verdict must be of the same class (wrong values, an error, metadata). For ``keep`` "culprit" so must
        be the suspect: the first of the rewrites; any of those around the graph passes, where a compile without proof
        does not order the suspects.
        """
        if not probe.is_bug or probe.verdict.kind != Verdict(self.verdict).kind:
            return False
        if self.silent and probe.error is not None:  # a stale graph may do either
            return False
        if self.keep == "verdict":
            return True
        if self.call is not None and self.call not in probe.calls:
            return False
        first = probe.suspects[0] if probe.suspects else None
        if self.stage in GRAPH_STAGES:
            return first is not None and self.is_culprit(first)
        if self.suspect_stage is not None or self.stage == ATEN:
            return any(self.is_culprit(suspect) for suspect in probe.suspects)
        if self.error is not None and probe.error is not None and probe.error[:_MESSAGE] != self.error:
            return False
        return first is None or first.stage not in GRAPH_STAGES

    def is_culprit(self, suspect: Suspect) -> bool:
        """Return whether a suspect is the same culprit; behind the graph passes its file is unknown until proved."""
        if suspect.stage != self.stage or suspect.family not in self.families:
            return False
        return self.stage in BEHIND_GRAPHS or suspect.source == self.source or suspect.source is None


def probe_case(
    case: Case,
    device: torch.device,
    *,
    vetoes: Sequence[str] = (),
    screen: bool = False,
    thorough: bool = False,
    target: SignatureLock | None = None,
    on_eager: Callable[[], None] = lambda: None,
) -> CaseProbe:
    """One compile and its replays: what a reduction asks of every candidate.

    It refuses the rewrites ``vetoes``, and interprets the graphs instead of generating code if it is a ``screen``.
    ``thorough`` refines the verdict as triage does, for bugs that one compile cannot distinguish from rounding. Only
    suspects of the bug ``target`` are worked out, and unless that is an input that compiled code accepts and eager
    refuses, a program that raises in eager is not compiled. ``on_eager`` is called in between.

    Raises:
        CaseError: ``make()`` fails.
    """
    initialise_patterns(device)
    looks = target.suspect_stage if target is not None else None
    how = Compilation((Veto(tuple(vetoes)),), screen=screen, kernels=looks in BEHIND_GRAPHS and not screen)
    experiments = Experiments(case, device, how)
    if target is not None and target.verdict != Verdict.ACCEPTS_INVALID and experiments.runs.eager.failure:
        return CaseProbe(Verdict.INVALID, compiles=0)
    on_eager()
    if case.settings.path == EAGER:
        return _probe_eager(experiments)
    trial = experiments.trial()
    steps = measure_steps(trial.ledger)
    verdict = trial.judgement.verdict
    if thorough:
        experiments, trial = settle(experiments, trial, steps)
        decision = decide(experiments, trial, steps)
        if not screen and decision.verdict.is_bug:
            decision = confirm(experiments, trial, decision)
        verdict = decision.verdict
    elif verdict is Verdict.ROUNDING and select_semantic_steps(steps):
        verdict = choose_wrong_values_verdict(trial.judgement)
    verdict, blamed = _look_beside(experiments, trial, verdict, None if target is None else target.verdict)
    divergence = Divergence(experiments, trial, steps, time.monotonic() + _SECONDS)
    suspects = blamed or (tuple(_list_suspects(target, divergence)) if verdict.is_bug else ())
    failure = trial.observation.failure
    return CaseProbe(
        verdict,
        suspects,
        None if failure is None else f"{failure.type_name}: {normalise_message(failure.message)}",
        experiments.counts.compiles,
        experiments.counts.screens,
        frozenset((rule.stage, get_family(rule.rewrite), outcome) for rule, outcome in trial.ledger.coverage),
        frozenset(find_captured_calls(trial.ledger)),
        failure is None and all(c.finding in _RIGHT_VALUES for c in trial.judgement.comparisons),
        tuple(value.value for value in trial.observation.values if value.kind == "output" and value.is_tensor),
    )


def _look_beside(
    experiments: Experiments, trial: Trial, verdict: Verdict, wanted: str | None
) -> tuple[Verdict, tuple[Suspect, ...]]:
    """The verdict and the suspects of a bug that one compile does not show: eager mode is wrong, or a graph stale."""
    decision = Decision(verdict, "high")
    if wanted == Verdict.STALE:
        stale = find_stale_call(experiments, decision)
        culprit = stale.attribution.culprit if stale is not None else None
        if stale is None or culprit is None:
            return Verdict.INVALID, ()
        return stale.decision.verdict, (Suspect(culprit.stage, culprit.family, culprit.source),)
    if wanted == Verdict.EAGER_WRONG:
        side = find_wrong_side(experiments, trial, decision)
        blamed = () if side is None else (Suspect(ATEN, side.family),)
        return Verdict.EAGER_WRONG if side is not None and side.wrong == "eager" else Verdict.INVALID, blamed
    return verdict, ()


def _probe_eager(experiments: Experiments) -> CaseProbe:
    try:
        judged = judge_eager(experiments)
    except CannotJudge:
        return CaseProbe(Verdict.INVALID, compiles=0)
    blamed = () if judged.side is None else (Suspect(ATEN, judged.side.family),)
    outputs = [value.value for value in judged.trial.observation.values if value.kind == "output" and value.is_tensor]
    return CaseProbe(judged.decision.verdict, blamed, compiles=0, outputs=tuple(outputs))


def _list_suspects(target: SignatureLock | None, divergence: Divergence) -> list[Suspect]:
    """The suspects of the target's stage, before those among the rewrites.

    A rewrite that changes what a graph means explains whatever looks wrong around the graph passes.
    """
    rewrites = divergence.once(list_visible_rewrites)
    looks = target.suspect_stage if target is not None else None
    if (
        target is None
        or looks is None
        or (rewrites and any(step.is_semantic for step in rank_suspects(divergence.steps)))
    ):
        return rewrites
    found = get_stage(looks).suspects(divergence)
    if looks == DYNAMO and not any(map(target.is_culprit, found)):  # one instruction may be at fault: a trace more
        found += list_instruction_suspects(divergence)
    return [*found, *rewrites]
