"""Base class of the stages that transform single operators, and their joint proof."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fuzzcompile.attribution.ablating import Ablator
from fuzzcompile.attribution.culprit import Attribution, Culprit
from fuzzcompile.attribution.divergence import Divergence
from fuzzcompile.stage_names import FAKE_TENSOR
from fuzzcompile.stages.base import Stage, Suspect, prove_in_turn
from fuzzcompile.stages.breaking import prove_by_break
from fuzzcompile.stages.operators.aten import kernel_suspects
from fuzzcompile.stages.operators.faults import Fault
from fuzzcompile.stages.operators.suspected import operators_suspected, wrong_anywhere


class OperatorStage(Stage):
    """A stage in which an operator becomes something else than its kernel."""

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """The operators of this stage whose fault can show as the verdict."""
        operators = [suspect for suspect in divergence.once(operators_suspected) if suspect.stage == self.name]
        return [*operators, *kernel_suspects(divergence, self.name)]

    def culprit(self, suspect: Suspect) -> Culprit:
        """The operator; its family is its name without namespace and overload."""
        return culprit_of(suspect)

    @staticmethod
    def operator(suspect: Suspect) -> str | None:
        """Name and overload of the operator at fault; None of a suspect that no single operator stands for."""
        return suspect.finding.operator if isinstance(suspect.finding, Fault) else None


def culprit_of(suspect: Suspect) -> Culprit:
    """The culprit that a suspected operator would be."""
    finding = suspect.finding
    assert isinstance(finding, (Fault, Culprit)), "operators are suspected by a fault, or as a culprit in doubt"
    return finding.culprit() if isinstance(finding, Fault) else finding


def prove_operators(
    stages: Sequence[OperatorStage], ablator: Ablator, divergence: Divergence, *, certain: bool
) -> Attribution | None:
    """The decomposition or fake tensor at fault; None if none is.

    Args:
        stages: those of single operators.
        ablator: compiles without a suspect.
        divergence: what one compile showed.
        certain: look at what leaves no room for rounding, and at fake tensors, which do not round; else at the rest.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    named = {stage.name: stage for stage in stages}
    suspects = [suspect for suspect in divergence.once(operators_suspected) if suspect.stage in named]
    chosen = [suspect for suspect in suspects if (suspect.certain or suspect.stage == FAKE_TENSOR) == certain]
    attribution = prove_in_turn(ablator, [(named[suspect.stage], suspect) for suspect in chosen])
    if attribution is not None or not certain:
        return attribution
    faults = [suspect for suspect in chosen if suspect.certain and isinstance(suspect.finding, Fault)]
    # What no compile could do without (its sizes are symbols, say) is left to eager mode with the whole call.
    return prove_by_break(ablator, culprit_of(faults[0])) if faults else None


def doubt_first(
    suspected: Callable[[Divergence], Sequence[Suspect]], ablator: Ablator, divergence: Divergence
) -> Attribution | None:
    """The first of suspects that no compile can do without, unproved; None if there is none.

    Args:
        suspected: lists them, most telling first.
        ablator: makes no compile here.
        divergence: what one compile showed.
    """
    suspects = divergence.once(suspected)
    return Attribution(culprit_of(suspects[0])) if suspects else None


def doubt_operators(stages: Sequence[OperatorStage], ablator: Ablator, divergence: Divergence) -> Attribution | None:
    """An operator that is certainly wrong, though something else keeps the result wrong without it.

    Args:
        stages: whose operators were compiled without, which did not help.
        ablator: makes no compile here.
        divergence: what one compile showed.
    """
    suspect = next((suspect for suspect in divergence.once(operators_suspected) if wrong_anywhere(suspect)), None)
    if suspect is None:
        return None
    tried = suspect.stage in [stage.name for stage in stages]
    necessary = False if tried else None
    return Attribution(replace(culprit_of(suspect), necessary=necessary, confidence="low"))
