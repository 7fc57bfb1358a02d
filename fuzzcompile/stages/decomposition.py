"""Operators written out in terms of others, before the graph passes and in force without any graph."""

from __future__ import annotations

from dataclasses import replace

from fuzzcompile import stage_names
from fuzzcompile.attribution.divergence import Divergence
from fuzzcompile.compiler.decompositions import can_take_out
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.stages.base import Suspect, Without
from fuzzcompile.stages.operators.boundary import boundaries_of
from fuzzcompile.stages.operators.stage import OperatorStage
from fuzzcompile.stages.operators.suspected import doubted


class Decomposition(OperatorStage):
    """Decompositions that are another function than their operator's kernel."""

    name = stage_names.DECOMPOSITION
    component = "decomposition"

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """Decompositions that differ from their kernels; if none does by itself, changes between graphs."""
        suspects = super().suspects(divergence)
        failed = divergence.trial.observation.failure is not None
        if failed or divergence.verdict is Verdict.ACCEPTS_INVALID or any(suspect.certain for suspect in suspects):
            return suspects
        boundaries = boundaries_of(divergence.trial.ledger, divergence.count)
        return [*suspects, *(doubted(boundary.culprit()) for boundary in boundaries)]

    def without(self, suspect: Suspect, how: Compilation) -> Without | None:
        """A compile in which the operator is not decomposed; None where this torch cannot leave it alone."""
        operator = self.operator(suspect)
        if operator is None or not can_take_out():
            return None
        names = tuple(dict.fromkeys((*how.without_decompositions, operator)))
        return Without(f"decomposition of {operator} off", replace(how, without_decompositions=names))
