"""Base class of the stages whose passes rewrite a graph: suspects from the replayed ledger, proof by veto."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum

from fuzzcompile.attribution.ablating import Ablator
from fuzzcompile.attribution.culprit import Attribution, Culprit
from fuzzcompile.attribution.divergence import Divergence
from fuzzcompile.attribution.proving import MAX_SUSPECTS, Prover, failing_rewrite, forms_shown
from fuzzcompile.attribution.steps import Step, changing_meaning, suspects_of
from fuzzcompile.compiler.labels import family_of
from fuzzcompile.compiler.ledger import Label
from fuzzcompile.compiler.refusing import MANDATORY
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.stages.base import Stage, Suspect, Without, names_of


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


def rewrites_suspected(divergence: Divergence, ground: Ground) -> list[Suspect]:
    """The rewrites of all stages that are suspected on one ground, in the order in which they are tried."""
    trial, steps = divergence.trial, divergence.steps
    if ground is Ground.RAISED:
        failing = failing_rewrite(trial)
        if trial.observation.failure is None or failing is None:
            return []
        raised = [step for step in suspects_of(steps, forms_shown(trial))[:MAX_SUSPECTS] if step.raised]
        culprits = [] if failing.rewrite in MANDATORY else [failing]
        return [*(_of_step(step, ground) for step in raised), *(_of_label(label, ground) for label in culprits)]
    if ground is Ground.UNREPLAYED:
        return [_of_label(label, ground) for label in dict.fromkeys(trial.ledger.unreplayed)]
    return [_of_step(step, ground) for step in _steps_on(divergence, ground)]


def rewrites_blamed(divergence: Divergence) -> list[Suspect]:
    """The rewrite at work when the error rose, and those that replay blames, most telling first."""
    failing = failing_rewrite(divergence.trial) if divergence.trial.observation.failure is not None else None
    raised = [] if failing is None else [_of_label(failing, Ground.RAISED)]
    return [*raised, *rewrites_suspected(divergence, Ground.MOVED)]


def rewrites_visible(divergence: Divergence) -> list[Suspect]:
    """The suspected rewrites of one compile: those that replay cannot judge only if it blames none."""
    visible = rewrites_blamed(divergence)
    if not visible:
        hidden = (Ground.RANDOM, Ground.UNREPLAYED, Ground.OPAQUE, Ground.MANDATORY, Ground.SHARED_MEMORY)
        visible = [suspect for ground in hidden for suspect in rewrites_suspected(divergence, ground)]
    return list(dict.fromkeys(visible))


def _steps_on(divergence: Divergence, ground: Ground) -> list[Step]:
    trial, steps = divergence.trial, divergence.steps
    if ground is Ground.MOVED:
        return suspects_of(steps, forms_shown(trial))
    if ground is Ground.RANDOM:
        # Where eager draws nothing at all (dropout in eval), a rewrite that draws is at fault all the same.
        runs = divergence.experiments.runs
        aligned = trial.sampled is None and runs.draws and not runs.promised_numbers
        return [] if aligned else [step for step in steps if step.random]
    if ground is Ground.OPAQUE:
        return list({step.label: step for step in steps if step.is_opaque}.values())
    if ground is Ground.MANDATORY:
        return [step for step in steps if step.label.rewrite in MANDATORY and step.is_semantic]
    return [step for step in steps if step.alias and not step.is_semantic]


def _of_step(step: Step, ground: Ground) -> Suspect:
    return replace(_of_label(step.label, ground), finding=step, certain=step.is_semantic)


def _of_label(label: Label, ground: Ground) -> Suspect:
    return Suspect(label.stage, family_of(label.rewrite), label.source, finding=label, rank=(ground,))


class RewritingStage(Stage):
    """A stage whose passes rewrite a graph.

    Rewrites of several stages take each other's place, hide each other and are needed together, so that suspicion and
    proof look at all of them at once.
    """

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """The suspected rewrites of this stage."""
        return [suspect for suspect in divergence.once(rewrites_visible) if suspect.stage == self.name]

    def without(self, suspect: Suspect, how: Compilation) -> Without | None:
        """A compile that vetoes the rewrite."""
        rewrite = _label(suspect).rewrite
        if rewrite in MANDATORY:
            return None
        return Without(f"veto {rewrite}", how.with_vetoes(f"{self.name}:={rewrite}"))

    def culprit(self, suspect: Suspect) -> Culprit:
        """The rewrite."""
        return culprit_of_rewrite(suspect)

    def _narrower(self, culprit: Culprit, given: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
        """The case's own settings without the pass, then the pass disabled by its name."""
        yield from _of_the_case(names_of(culprit), given)
        if culprit.pass_name:
            yield {"disabled_passes": culprit.pass_name}


def _of_the_case(names: Sequence[str], given: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    """Entries of the case's own settings that name the pass, without it, or that give it (a user's own)."""
    for key, value in given.items():
        if key in names and callable(value):
            yield {key: None}
        if isinstance(value, Mapping) and any(name in value for name in names):
            yield {key: {name: options for name, options in value.items() if name not in names}}


def prove_rewrites(ablator: Ablator, divergence: Divergence, *, ground: Ground) -> Attribution | None:
    """The rewrite at fault among those that are suspected on one ground; None if none is.

    Args:
        ablator: compiles without a rewrite.
        divergence: what one compile showed.
        ground: why they are suspected.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    suspects = rewrites_suspected(divergence, ground)
    if ground is Ground.MANDATORY:
        return Attribution(replace(culprit_of_rewrite(suspects[0]), confidence="low")) if suspects else None
    prover = Prover(ablator, divergence.steps)
    for suspect in suspects if ground is Ground.UNREPLAYED else suspects[: MAX_SUSPECTS + (ground is Ground.RAISED)]:
        proved = prover.prove(_label(suspect), _step(suspect))
        if proved is not None and ground is Ground.OPAQUE and proved.culprit is not None:
            # The veto also breaks what the lowering was fused with, which hides bugs of code generation.
            return replace(proved, culprit=replace(proved.culprit, confidence="low"))
        if proved is not None:
            return proved
    return _several(prover, divergence) if ground is Ground.MOVED else None


def _several(prover: Prover, divergence: Divergence) -> Attribution | None:
    """Suspects of which no one alone repairs the divergence, but all do; or one that certainly changes the meaning.

    The second is named although something else keeps the result wrong without it.
    """
    suspects = rewrites_suspected(divergence, Ground.MOVED)
    if len(suspects) > 1 and prover.veto(list(map(_label, suspects)), screen=prover.ablator.screens)[1]:
        first, *rest = map(culprit_of_rewrite, suspects)
        return Attribution(replace(first, confidence="low"), rest)
    proved = changing_meaning(divergence.steps)
    return Attribution(Culprit.from_step(proved[0], necessary=False, confidence="low")) if proved else None


def _label(suspect: Suspect) -> Label:
    finding = suspect.finding
    assert isinstance(finding, (Label, Step)), "a rewrite is suspected by its label or its step"
    return finding.label if isinstance(finding, Step) else finding


def _step(suspect: Suspect) -> Step | None:
    return suspect.finding if isinstance(suspect.finding, Step) else None


def culprit_of_rewrite(suspect: Suspect) -> Culprit:
    """The culprit that a suspected rewrite would be."""
    step = _step(suspect)
    return Culprit.from_step(step) if step is not None else Culprit.from_label(_label(suspect))
