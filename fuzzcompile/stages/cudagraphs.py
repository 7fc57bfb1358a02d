"""CUDA graphs: a compiled graph recorded once and replayed, its memory in a pool of its own."""

from __future__ import annotations

from collections.abc import Sequence

from fuzzcompile.attribution.ablating import Ablator
from fuzzcompile.attribution.culprit import Attribution, Culprit
from fuzzcompile.attribution.divergence import Divergence
from fuzzcompile.compiler.kernels.codegen_operators import defined_at
from fuzzcompile.compiler.session import Compilation, effective_setting
from fuzzcompile.stage_names import CUDAGRAPHS
from fuzzcompile.stages.base import Stage, Suspect, Without
from fuzzcompile.stages.kernels.bisection import attempt, configured

_SETTING = "triton.cudagraphs"


class Cudagraphs(Stage):
    """Recording and replaying a compiled graph, where a setting or a mode such as ``reduce-overhead`` asks for it.

    One compile without it decides. Tried on an H100 with torch 2.11, and on CPU builds, where Inductor records nothing,
    with its check of the devices and its recording function replaced.
    """

    name = CUDAGRAPHS
    component = "cudagraphs"
    settings = ({_SETTING: False},)

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """The recording, if it was asked for and Inductor found no reason to go without it."""
        experiments, trial = divergence.experiments, divergence.trial
        if effective_setting(experiments.case.settings, trial.how, _SETTING) is not True:
            return []
        graphs = trial.ledger.lowered
        # Without watched kernels nothing says what Inductor decided; it never records graphs without a CUDA device.
        recorded = any(lowered.cudagraphs for lowered in graphs) if graphs else experiments.device.type == "cuda"
        return [Suspect(self.name, self.name, _source()[0])] if recorded else []

    def without(self, suspect: Suspect, how: Compilation) -> Without:
        """The same compile, its graphs not recorded."""
        return configured(how, {_SETTING: False})

    def prove(self, ablator: Ablator, suspects: Sequence[Suspect]) -> Attribution | None:
        """The recording, if the divergence is gone without it; None if it stays."""
        if not suspects or not attempt(ablator, self.without(suspects[0], ablator.how))[1]:
            return None
        source, line = _source()
        return Attribution(Culprit(self.name, None, self.name, self.name, source=source, line=line, necessary=True))


def _source() -> tuple[str | None, int | None]:
    return defined_at("torch._inductor.cudagraph_trees:cudagraphify_impl")
