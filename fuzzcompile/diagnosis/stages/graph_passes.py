"""Stages whose passes rewrite a graph: pre-grad, joint graph, freezing and post-grad."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum

from fuzzcompile.compiler.compile_changes import CompileChange, Veto
from fuzzcompile.compiler.watch.ledger import Label
from fuzzcompile.compiler.watch.recorder import MANDATORY
from fuzzcompile.compiler.watch.rule_labels import get_family
from fuzzcompile.diagnosis.attribution.ablation import Ablator, Divergence
from fuzzcompile.diagnosis.attribution.culprit import Attribution, Culprit
from fuzzcompile.diagnosis.attribution.steps import Step, rank_suspects, select_semantic_steps
from fuzzcompile.diagnosis.attribution.veto_proof import MAX_SUSPECTS, Prover, find_failing_rewrite, visible_forms
from fuzzcompile.diagnosis.stages.ways import Stage, Suspect, list_names


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


def list_rewrites_on(divergence: Divergence, ground: Ground) -> list[Suspect]:
    """The rewrites of all stages that are suspected on one ground, in the order in which they are tried."""
    trial, steps = divergence.trial, divergence.steps
    found: Iterable[Step | Label] = ()
    if ground is Ground.RAISED:
        failing = find_failing_rewrite(trial)
        if trial.observation.failure is not None and failing is not None:
            raised = [step for step in rank_suspects(steps, visible_forms(trial))[:MAX_SUSPECTS] if step.raised]
            found = [*raised, *([] if failing.rewrite in MANDATORY else [failing])]
    elif ground is Ground.MOVED:
        found = rank_suspects(steps, visible_forms(trial))
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
        hidden = (Ground.RANDOM, Ground.UNREPLAYED, Ground.OPAQUE, Ground.MANDATORY, Ground.SHARED_MEMORY)
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
        yield from _iter_own_settings(list_names(culprit), given)
        if culprit.pass_name:
            yield {"disabled_passes": culprit.pass_name}


def _iter_own_settings(names: Sequence[str], given: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    """Entries of the case's own settings that name the pass, without it, or that give it (a user's own)."""
    for key, value in given.items():
        if key in names and callable(value):
            yield {key: None}
        if isinstance(value, Mapping) and any(name in value for name in names):
            yield {key: {name: options for name, options in value.items() if name not in names}}


def prove_rewrites(ablator: Ablator, divergence: Divergence, *, ground: Ground) -> Attribution | None:
    """The rewrite at fault among those that are suspected on one ground; None if none is."""
    suspects = list_rewrites_on(divergence, ground)
    if ground is Ground.MANDATORY:
        return Attribution(replace(make_rewrite_culprit(suspects[0]), confidence="low")) if suspects else None
    prover = Prover(ablator, divergence.steps)
    for suspect in suspects if ground is Ground.UNREPLAYED else suspects[: MAX_SUSPECTS + (ground is Ground.RAISED)]:
        proved = prover.prove(_get_label(suspect), _get_step(suspect))
        if proved is not None and ground is Ground.OPAQUE and proved.culprit is not None:
            # The veto also breaks what the lowering was fused with, which hides bugs of code generation.
            return replace(proved, culprit=replace(proved.culprit, confidence="low"))
        if proved is not None:
            return proved
    return _prove_together(prover, divergence) if ground is Ground.MOVED else None


def _prove_together(prover: Prover, divergence: Divergence) -> Attribution | None:
    """Suspects that repair the divergence only together; or one that certainly changes the meaning, all the same."""
    suspects = list_rewrites_on(divergence, Ground.MOVED)
    if len(suspects) > 1 and prover.veto(list(map(_get_label, suspects)), screen=prover.ablator.screens)[1]:
        first, *rest = map(make_rewrite_culprit, suspects)
        return Attribution(replace(first, confidence="low"), rest)
    proved = select_semantic_steps(divergence.steps)
    return Attribution(Culprit.from_step(proved[0], necessary=False, confidence="low")) if proved else None


def _get_label(suspect: Suspect) -> Label:
    finding = suspect.finding
    assert isinstance(finding, (Label, Step)), "a rewrite is suspected by its label or its step"
    return finding.label if isinstance(finding, Step) else finding


def _get_step(suspect: Suspect) -> Step | None:
    return suspect.finding if isinstance(suspect.finding, Step) else None


def make_rewrite_culprit(suspect: Suspect) -> Culprit:
    """The culprit that a suspected rewrite would be."""
    step = _get_step(suspect)
    return Culprit.from_step(step) if step is not None else Culprit.from_label(_get_label(suspect))
