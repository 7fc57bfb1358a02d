"""Fake tensors: the dtype, shape, strides and aliases that the compiler assumes of a value."""

from __future__ import annotations

from dataclasses import replace

from fuzzcompile import stage_names
from fuzzcompile.attribution.divergence import Divergence
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.stages.base import Suspect, Without
from fuzzcompile.stages.operators.stage import OperatorStage
from fuzzcompile.stages.operators.suspected import metadata_suspected


class FakeTensor(OperatorStage):
    """Meta kernels and fake implementations that describe another result than the kernel gives."""

    name = stage_names.FAKE_TENSOR
    component = "meta kernel"

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """Operators whose fake results differ from their kernels', then nodes of the graphs with wrong metadata."""
        written = [suspect for suspect in divergence.once(metadata_suspected) if suspect.stage == self.name]
        return [*super().suspects(divergence), *written]

    def without(self, suspect: Suspect, how: Compilation) -> Without | None:
        """A compile that takes the operator's metadata from its kernel."""
        operator = self.operator(suspect)
        if operator is None:
            return None
        names = tuple(dict.fromkeys((*how.kernel_metadata, operator)))
        return Without(f"metadata of {operator} from its kernel", replace(how, kernel_metadata=names))
