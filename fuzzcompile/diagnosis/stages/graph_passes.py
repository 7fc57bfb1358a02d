"""Stages whose passes rewrite a graph (pre-grad, joint graph, freezing, post-grad), and the proof by veto.

A rewrite is at fault alone, with those that take its place, or with what it needs besides.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum

from fuzzcompile.compiler.compile_changes import Backend, CompileChange, OnlyRewrites, Veto
from fuzzcompile.compiler.watch.ledger import Label
from fuzzcompile.compiler.watch.recorder import MANDATORY
from fuzzcompile.compiler.watch.rule_labels import get_base_name, get_family, is_vetoed
from fuzzcompile.diagnosis.attribution.culprit import Ablator, Attribution, Culprit, Divergence, OutOfTime
from fuzzcompile.diagnosis.attribution.steps import Form, Step, measure_steps, rank_suspects, select_semantic_steps
from fuzzcompile.diagnosis.kernels.kernel_proofs import bisect_candidates
from fuzzcompile.diagnosis.stages.ways import MAX_SUSPECTS, Stage, Suspect, list_names
from fuzzcompile.diagnosis.trials.case_runs import Trial
from fuzzcompile.model.stages import LOWERING, PARTITION
from fuzzcompile.model.verdicts import Verdict

_MAX_SIBLINGS = 12
_NO_VIEW = "view size is not compatible"  # says ATen of a layout that the lowering of a view copies
_MAX_CONTRIBUTORS = 8


class Ground(IntEnum):
    """Ground on which a rewrite is suspected, the strongest evidence first."""

    RAISED = 0
    """It was at work when the error rose, or left a graph that does not run."""
    MOVED = 1
    """Replay: the result of its graph moves beyond rounding, or in the form in which the divergence shows."""
    RANDOM = 2
    """After it, the graph draws other random numbers: two such graphs have no value in common."""
    UNREPLAYED = 3
    """A pass of the user over something else than a graph: a veto can blame it, or nothing can."""
    OPAQUE = 4
    """It put a lowering of its own in the place of what it matched, which replay runs instead: a veto can blame it."""
    MANDATORY = 5
    """No compile can do without it: a float64 step blames it, and no veto can prove that."""
    SHARED_MEMORY = 6
    """After it other results share memory: a later write, or a later call, may show it in values."""
    REFUSED = 7
    """Its graph raises in replay and not once compiled: lowerings take layouts that operators refuse."""


def list_rewrites_on(divergence: Divergence, ground: Ground) -> list[Suspect]:
    """The rewrites of all stages that are suspected on one ground, in the order in which they are tried."""
    trial, steps = divergence.trial, divergence.steps
    found: Iterable[Step | Label] = ()
    if ground is Ground.RAISED:
        failing = find_failing_rewrite(trial)
        if trial.observation.failure is not None and failing is not None:
            raised = [step for step in rank_suspects(steps, visible_forms(trial))[:MAX_SUSPECTS] if step.raised]
            found = [*raised, *([] if failing.rewrite in MANDATORY else [failing])]
    elif ground in (Ground.MOVED, Ground.REFUSED):
        ranked = rank_suspects(steps, visible_forms(trial))
        compiled = trial.observation.failure is None
        refused = [step for step in ranked if compiled and _NO_VIEW in (step.raised or "")]
        found = refused if ground is Ground.REFUSED else [step for step in ranked if step not in refused]
    elif ground is Ground.RANDOM:
        # Where eager draws nothing at all (dropout in eval), a rewrite that draws is at fault all the same.
        runs = divergence.experiments.runs
        aligned = trial.sampled is None and runs.draws and not runs.promises_eager_numbers
        found = () if aligned else [step for step in steps if step.random]
    elif ground is Ground.UNREPLAYED:
        found = dict.fromkeys(trial.ledger.unreplayed)
    elif ground is Ground.OPAQUE:
        found = {step.label: step for step in steps if step.is_opaque}.values()
    elif ground is Ground.MANDATORY:
        found = [step for step in steps if step.label.rewrite in MANDATORY and step.is_semantic]
    else:
        found = [step for step in steps if step.alias and not step.is_semantic]
    return list(map(_suspect_rewrite, found))


def list_blamed_rewrites(divergence: Divergence) -> list[Suspect]:
    """The rewrite at work when the error rose, and those that replay blames, most telling first."""
    failing = find_failing_rewrite(divergence.trial) if divergence.trial.observation.failure is not None else None
    raised = [] if failing is None else [_suspect_rewrite(failing)]
    return [*raised, *list_rewrites_on(divergence, Ground.MOVED)]


def list_visible_rewrites(divergence: Divergence) -> list[Suspect]:
    """The suspected rewrites of one compile: those that replay cannot judge only if it blames none."""
    visible = list_blamed_rewrites(divergence)
    if not visible:
        hidden = [ground for ground in Ground if ground not in (Ground.RAISED, Ground.MOVED)]
        visible = [suspect for ground in hidden for suspect in list_rewrites_on(divergence, ground)]
    return list(dict.fromkeys(visible))


def _suspect_rewrite(finding: Step | Label) -> Suspect:
    label, certain = (finding.label, finding.is_semantic) if isinstance(finding, Step) else (finding, False)
    return Suspect(label.stage, get_family(label.rewrite), label.source, finding, certain)


class RewritingStage(Stage):
    """A stage whose passes rewrite a graph.

    Rewrites of several stages take each other's place, hide each other and are needed together, so that suspicion and
    proof look at all of them at once. ``settings`` work around the whole stage, the narrowest first.
    """

    def __init__(self, name: str, *settings: Mapping[str, object]) -> None:
        self.name, self.settings = name, settings

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """The suspected rewrites of this stage."""
        return [suspect for suspect in divergence.once(list_visible_rewrites) if suspect.stage == self.name]

    def without(self, suspect: Suspect) -> CompileChange | None:
        """The rewrite is vetoed."""
        rewrite = _get_label(suspect).rewrite
        if rewrite in MANDATORY:
            return None
        return Veto((f"{self.name}:={rewrite}",), rewrite)

    def _narrower(self, culprit: Culprit, given: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
        names = list_names(culprit)
        # Entries of the case's own settings that name the pass, without it, or that give it (a user's own).
        for key, value in given.items():
            if key in names and callable(value):
                yield {key: None}
            if isinstance(value, Mapping) and any(name in value for name in names):
                yield {key: {name: options for name, options in value.items() if name not in names}}
        if culprit.pass_name:
            yield {"disabled_passes": culprit.pass_name}


def prove_rewrites(ablator: Ablator, *, ground: Ground) -> Attribution | None:
    """The rewrite at fault among those that are suspected on one ground; None if none is."""
    suspects = list_rewrites_on(ablator, ground)
    if ground is Ground.MANDATORY:
        return Attribution(replace(make_rewrite_culprit(suspects[0]), confidence="low")) if suspects else None
    prover = Prover(ablator)
    for suspect in suspects if ground is Ground.UNREPLAYED else suspects[: MAX_SUSPECTS + (ground is Ground.RAISED)]:
        step = suspect.finding if isinstance(suspect.finding, Step) else None
        proved = prover.prove(_get_label(suspect), step)
        if proved is not None:
            if ground is Ground.OPAQUE and proved.culprit is not None:
                # The veto also breaks what the lowering was fused with, which hides bugs of code generation.
                proved.culprit = replace(proved.culprit, confidence="low")
            return proved
    if ground is not Ground.MOVED:
        return None
    # They repair the divergence only together; or one certainly changes the meaning, all the same.
    if len(suspects) > 1 and prover.veto(list(map(_get_label, suspects)), screen=ablator.screens)[1]:
        first, *rest = map(make_rewrite_culprit, suspects)
        return Attribution(replace(first, confidence="low"), rest)
    semantic = select_semantic_steps(ablator.steps)
    return Attribution(Culprit.from_step(semantic[0], necessary=False, confidence="low")) if semantic else None


def prove_marking_rewrite(ablator: Ablator) -> Attribution | None:
    """The rewrite without which alone a compile is right, though its graph is: it marked nodes for a later pass.

    Looked for where the graphs are right before Inductor's passes, behind the partition; the last come first.
    """
    if not ablator.is_repaired_by(Backend("aot_eager_decomp_partition"), record=False):
        return None
    prover, offered = Prover(ablator), reversed(ablator.trial.ledger.offered)
    own = [label for label in offered if label.stage != PARTITION and label.rewrite not in MANDATORY]
    labels = {prover.names([label])[0]: label for label in own}
    named, _ = bisect_candidates(ablator, list(labels), _make_veto)
    return prover.prove(labels[named], None) if named is not None else None


def _make_veto(names: Sequence[str]) -> Veto:
    return Veto(tuple(names), ", ".join(names).replace("=", ""))


def _get_label(suspect: Suspect) -> Label:
    finding = suspect.finding
    assert isinstance(finding, (Label, Step)), "a rewrite is suspected by its label or its step"
    return finding.label if isinstance(finding, Step) else finding


def make_rewrite_culprit(suspect: Suspect) -> Culprit:
    """The culprit that a suspected rewrite would be."""
    step = suspect.finding
    return Culprit.from_step(step) if isinstance(step, Step) else Culprit.from_label(_get_label(suspect))


class Prover:
    """Refuses the rewrites of a failing trial, one or several at a time, and sees what that repairs."""

    def __init__(self, ablator: Ablator) -> None:
        self.ablator, self.trial, self.steps = ablator, ablator.trial, ablator.steps

    def suspects(self, steps: Sequence[Step]) -> list[Step]:
        """Steps that may be at fault, most telling first."""
        return rank_suspects(steps, visible_forms(self.trial))

    def prove(self, label: Label, step: Step | None) -> Attribution | None:
        """Veto the label, then whatever takes its place, until the divergence is gone.

        The search screens its trials where the interpreted graphs show the divergence; what it finds is then
        proved by a full compile. What comes up only once its predecessor is vetoed is a sibling that falls
        through; what was a suspect from the start is a cause of its own.
        """
        known = {(s.label.stage, get_base_name(s.label.rewrite)) for s in self.suspects(self.steps)}
        closure, causes = [label], list[Label]()
        for _ in range(_MAX_SIBLINGS):
            # The first suspect is nearly always the one, and a compile proves it; a search after it screens.
            screen = bool(closure[1:] or causes) and self.ablator.screens
            trial, repaired = self.veto([*closure, *causes], screen=screen)
            if repaired and screen:
                trial, repaired = self.veto([*closure, *causes])
            if repaired and causes:
                return self._reduce_causes([closure, *([cause] for cause in causes)])
            if repaired:
                return self._attribute_to(label, step, closure, causes)
            following = self._find_next_suspect(trial, [*closure, *causes])
            if following is None:
                return None
            independent = get_family(following.rewrite) != get_family(label.rewrite) and (
                (following.stage, get_base_name(following.rewrite)) in known
            )
            (causes if independent else closure).append(following)
        return None

    def _reduce_causes(self, causes: list[list[Label]]) -> Attribution:
        """Several causes that together repair the divergence, without those that are not needed for that.

        Of two rewrites that undo each other, each looks like a cause as long as a third one is wrong.
        """
        alone = [cause for cause in causes[1:MAX_SUSPECTS] if self.veto(cause, screen=self.ablator.screens)[1]]
        wanted = alone[:1] or list(causes)
        for cause in () if alone else causes:
            rest = [labels for labels in wanted if labels is not cause]
            if rest and self.veto([label for labels in rest for label in labels], screen=self.ablator.screens)[1]:
                wanted = rest
        labels = [label for cause in wanted for label in cause]
        if len(wanted) < len(causes) and self.ablator.screens and not self.veto(labels)[1]:
            wanted = causes  # what the interpreted graphs say does not hold for the compiled ones
        first, *rest = wanted
        return self._attribute_to(first[0], None, first, [label for cause in rest for label in cause])

    def _find_next_suspect(self, trial: Trial, seen: Sequence[Label]) -> Label | None:
        names = self.names(seen)
        failed = find_failing_rewrite(trial)
        if trial.observation.failure is not None and failed is not None and not is_vetoed(failed, names):
            return failed
        for step in self.suspects(measure_steps(trial.ledger)):
            if not is_vetoed(step.label, names):
                return step.label
        return None

    def _attribute_to(
        self, label: Label, step: Step | None, closure: Sequence[Label], causes: Sequence[Label]
    ) -> Attribution:
        families = {get_family(sibling.rewrite) for sibling in (label, *closure)}
        names = tuple(self._stage_prefix(sibling) + sibling.rewrite for sibling in closure[1:])
        culprit = replace(self._make_culprit(label, step, necessary=not causes), siblings=names)
        if len(families) > 1:
            culprit = replace(culprit, family="+".join(sorted(families)))
        contributors = [self._make_culprit(cause, None, necessary=None) for cause in causes]
        try:
            culprit = replace(culprit, sufficient=self._is_sufficient(closure))
            if culprit.sufficient is False and not causes:
                contributors.extend(self._iter_contributors(closure))
        except OutOfTime:  # what is shown stays shown
            return Attribution(culprit, contributors, cut_off=True)
        return Attribution(culprit, contributors)

    def _make_culprit(self, label: Label, step: Step | None, *, necessary: bool | None) -> Culprit:
        if step is None:
            there = [s for s in self.steps if (s.label.stage, s.label.rewrite) == (label.stage, label.rewrite)]
            step = next(iter([*self.suspects(there), *there]), None)
        if step is not None:
            return Culprit.from_step(step, necessary=necessary)
        return Culprit.from_label(label, necessary=necessary)

    def veto(self, labels: Sequence[Label], *, screen: bool = False) -> tuple[Trial, bool]:
        """Compile without these rules: the trial, and whether that repairs the divergence."""
        change = _make_veto(self.names(labels))
        return self.ablator.attempt(replace(self.ablator.how.under(change), screen=screen), change.text)

    def names(self, labels: Sequence[Label]) -> list[str]:
        """Veto names of exactly these rules; the variants of a pattern stand and fall together.

        A rule that works in several stages is named with its stage.
        """
        return list(dict.fromkeys(f"{self._stage_prefix(label)}={get_base_name(label.rewrite)}" for label in labels))

    def _stage_prefix(self, label: Label) -> str:
        return f"{label.stage}:" if len(self._stages[get_base_name(label.rewrite)]) > 1 else ""

    @functools.cached_property
    def _stages(self) -> Mapping[str, set[str]]:
        stages = defaultdict[str, set[str]](set)
        for _, _, rewrite in self.trial.ledger.list_rewrites():
            stages[get_base_name(rewrite.label.rewrite)].add(rewrite.label.stage)
        return stages

    def _is_sufficient(self, closure: Sequence[Label]) -> bool | None:
        """Return whether the divergence stays when every optional rewrite but the culprit's is vetoed.

        None if the program then fails in another way, which says nothing.
        """
        only, around = tuple(self.names(closure)), self.trial.ledger.inside
        enclosing: list[Label] = []  # passes within which a rule was at work: without them it is not
        for label in closure:
            while label in around:
                label = around[label]
                enclosing.append(label)
        how = self.ablator.how.under(OnlyRewrites((*only, *self.names(enclosing))))
        # What stays in the interpreted graphs stays; what is gone there may be there in generated code.
        for screen in (True, False):
            toggled = replace(how, record=self.ablator.replays, screen=screen)
            trial, repaired = self.ablator.attempt(toggled, f"only {', '.join(only)}".replace("=", ""))
            if not repaired and self.ablator.fails_alike(trial):
                return True
        return False if repaired else None

    def _iter_contributors(self, closure: Sequence[Label]) -> Iterator[Culprit]:
        tried = {get_base_name(label.rewrite) for label in closure}
        for _, _, rewrite in self.trial.ledger.list_rewrites():
            name = get_base_name(rewrite.label.rewrite)
            if name in tried or rewrite.label.rewrite in MANDATORY or " " in name or len(tried) > _MAX_CONTRIBUTORS:
                continue
            tried.add(name)
            if self.veto([rewrite.label], screen=self.ablator.screens)[1]:
                yield self._make_culprit(rewrite.label, None, necessary=True)


def find_failing_rewrite(trial: Trial) -> Label | None:
    """The rule that was active when the trial's exception rose; None where only the stage is known."""
    failed = trial.ledger.failed_in
    return None if failed is None or failed.rewrite in (failed.stage, LOWERING) else failed


def visible_forms(trial: Trial) -> tuple[Form, ...]:
    """Return the forms of a divergence that does not show in values."""
    verdict = trial.judgement.verdict
    if verdict is Verdict.METADATA and any(c.finding == "stride" for c in trial.judgement.comparisons):
        return ("stride",)
    if verdict is Verdict.ALIASING:
        return ("alias",)
    return ("silenced",) if verdict is Verdict.ACCEPTS_INVALID else ()
