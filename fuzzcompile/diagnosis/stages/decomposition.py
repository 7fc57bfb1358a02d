"""Stages that replace an operator before the graph passes: decompositions and fake tensors."""

from __future__ import annotations

from fuzzcompile.compiler.compile_changes import CompileChange, MetadataFromKernel, Undecomposed
from fuzzcompile.compiler.operators.decompositions import can_take_out
from fuzzcompile.diagnosis.attribution.ablation import Divergence
from fuzzcompile.diagnosis.operators.graph_boundary import find_boundaries
from fuzzcompile.diagnosis.operators.operator_suspects import OperatorStage, doubt, list_metadata_suspects
from fuzzcompile.diagnosis.stages.stage import Suspect
from fuzzcompile.model import stages
from fuzzcompile.model.verdicts import Verdict


class Decomposition(OperatorStage):
    """Decompositions that are another function than their operator's kernel."""

    name = stages.DECOMPOSITION

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """Decompositions that differ from their kernels; if none does by itself, changes between graphs."""
        suspects = super().suspects(divergence)
        failed = divergence.trial.observation.failure is not None
        if failed or divergence.verdict is Verdict.ACCEPTS_INVALID or any(suspect.certain for suspect in suspects):
            return suspects
        boundaries = find_boundaries(divergence.trial.ledger, divergence.count)
        return [*suspects, *(doubt(boundary.culprit()) for boundary in boundaries)]

    def without(self, suspect: Suspect) -> CompileChange | None:
        """The operator is not decomposed; None where this torch cannot leave it alone."""
        operator = self.operator(suspect)
        return Undecomposed((operator,)) if operator is not None and can_take_out() else None


# Fake tensors: the dtype, shape, strides and aliases that the compiler assumes of a value.


class FakeTensor(OperatorStage):
    """Meta kernels and fake implementations that describe another result than the kernel gives."""

    name = stages.FAKE_TENSOR

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """Operators whose fake results differ from their kernels', then nodes of the graphs with wrong metadata."""
        written = [suspect for suspect in divergence.once(list_metadata_suspects) if suspect.stage == self.name]
        return [*super().suspects(divergence), *written]

    def without(self, suspect: Suspect) -> CompileChange | None:
        """The operator's metadata are taken from its kernel."""
        operator = self.operator(suspect)
        return MetadataFromKernel((operator,)) if operator is not None else None
