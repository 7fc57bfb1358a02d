"""Proof by veto: whether a rewrite is at fault, alone or with those that take its place, and what it needs besides."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fuzzcompile.compiler.compile_changes import OnlyRewrites, Veto
from fuzzcompile.compiler.watch.ledger import Label
from fuzzcompile.compiler.watch.recorder import MANDATORY
from fuzzcompile.compiler.watch.rule_labels import get_base_name, get_family, is_vetoed
from fuzzcompile.diagnosis.attribution.ablation import Ablator, OutOfTime
from fuzzcompile.diagnosis.attribution.culprit import Attribution, Culprit
from fuzzcompile.diagnosis.attribution.steps import Form, Step, measure_steps, rank_suspects
from fuzzcompile.diagnosis.trials.case_runs import Trial
from fuzzcompile.model.stages import LOWERING
from fuzzcompile.model.verdicts import Verdict

# Suspects that are tried one by one.
MAX_SUSPECTS = 4
_MAX_SIBLINGS = 12
_MAX_CONTRIBUTORS = 8


class Prover:
    """Refuses the rewrites of a failing trial, one or several at a time, and sees what that repairs."""

    def __init__(self, ablator: Ablator, steps: Sequence[Step]) -> None:
        self.ablator = ablator
        self.trial = ablator.trial
        self.steps = steps

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
        for step in self.suspects(measure_steps(trial.ledger, self.ablator.count)):
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
            sufficient = self._is_sufficient(closure)
        except OutOfTime:  # what is shown stays shown
            return Attribution(culprit, contributors)
        if sufficient is False and not causes:
            contributors = self._find_contributors(closure)
        return Attribution(replace(culprit, sufficient=sufficient), contributors)

    def _make_culprit(self, label: Label, step: Step | None, *, necessary: bool | None) -> Culprit:
        if step is None:
            there = [s for s in self.steps if (s.label.stage, s.label.rewrite) == (label.stage, label.rewrite)]
            step = next(iter([*self.suspects(there), *there]), None)
        if step is not None:
            return Culprit.from_step(step, necessary=necessary)
        return Culprit.from_label(label, necessary=necessary)

    def veto(self, labels: Sequence[Label], *, screen: bool = False) -> tuple[Trial, bool]:
        """Compile without these rules: the trial, and whether that repairs the divergence."""
        names = self.names(labels)
        how = replace(self.ablator.how.under(Veto(tuple(names))), screen=screen)
        return self.ablator.attempt(how, "veto " + _join_names(names))

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
            trial, repaired = self.ablator.attempt(toggled, "only " + _join_names(only))
            if not repaired and self.ablator.fails_alike(trial):
                return True
        return False if repaired else None

    def _find_contributors(self, closure: Sequence[Label]) -> list[Culprit]:
        contributors: list[Culprit] = []
        tried = {get_base_name(label.rewrite) for label in closure}
        for _, _, rewrite in self.trial.ledger.list_rewrites():
            name = get_base_name(rewrite.label.rewrite)
            if name in tried or rewrite.label.rewrite in MANDATORY or " " in name or len(tried) > _MAX_CONTRIBUTORS:
                continue
            tried.add(name)
            if self.veto([rewrite.label], screen=self.ablator.screens)[1]:
                contributors.append(self._make_culprit(rewrite.label, None, necessary=True))
        return contributors


def find_failing_rewrite(trial: Trial) -> Label | None:
    """The rule that was active when the trial's exception rose; None where only the stage is known."""
    failed = trial.ledger.failed_in
    return None if failed is None or failed.rewrite in (failed.stage, LOWERING) else failed


def visible_forms(trial: Trial) -> tuple[Form, ...]:
    """Return the forms of a divergence that does not show in values."""
    verdict = trial.judgement.verdict
    if verdict is Verdict.METADATA and any(c.finding == "stride" for c in trial.judgement.comparisons):
        return ("stride",)
    forms: Mapping[Verdict, tuple[Form, ...]] = {
        Verdict.ALIASING: ("alias",),
        Verdict.ACCEPTS_INVALID: ("silenced",),
    }
    return forms.get(verdict, ())


def _join_names(names: Sequence[str]) -> str:
    return ", ".join(name.replace("=", "") for name in names)
