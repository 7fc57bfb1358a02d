"""The wrapper: the generated function that allocates buffers, calls kernels and returns outputs."""

from __future__ import annotations

from collections.abc import Sequence

from fuzzcompile.attribution.ablating import Ablator
from fuzzcompile.attribution.culprit import Attribution, Culprit
from fuzzcompile.attribution.divergence import Divergence
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.stage_names import RUNTIME
from fuzzcompile.stages.base import Stage, Suspect
from fuzzcompile.stages.kernels.culprits import kernel_culprit, values_shown
from fuzzcompile.stages.kernels.examined import examined_in, first_wrong_kernels
from fuzzcompile.stages.kernels.suspected import kernels_suspected
from fuzzcompile.stages.kernels.wrong import WrongKernel, WrongOutput

_WRAPPER = "wrapper"
_KERNEL_CALL = "kernel call"


class Runtime(Stage):
    """Outputs that are wrong though all kernels wrote what they should; kernels that are handed other memory.

    No compile can do without the wrapper, so that nothing here is proved.
    """

    name = RUNTIME
    component = "inductor"
    settings = ({"allow_buffer_reuse": False, "inplace_buffers": False},)

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """The kernels that may have been handed wrong memory; the wrapper where no kernel is wrong."""
        failed = divergence.trial.observation.failure is not None
        if failed or divergence.verdict is Verdict.ACCEPTS_INVALID or first_wrong_kernels(divergence):
            return kernels_suspected(self.name, divergence)
        outputs = [wrong for look in examined_in(divergence) for wrong in look.wrong_outputs()]
        return [Suspect(self.name, _WRAPPER, finding=wrong) for wrong in outputs]

    def prove(self, ablator: Ablator, suspects: Sequence[Suspect]) -> Attribution | None:
        """The wrapper, if outputs are wrong and no kernel is; confidence stays low."""
        outputs = [suspect.finding for suspect in suspects if isinstance(suspect.finding, WrongOutput)]
        if not outputs:
            return None
        wrong = outputs[0]
        details = {"output": wrong.name, "finding": wrong.comparison.finding, **values_shown(wrong.comparison)}
        return Attribution(Culprit(self.name, None, _WRAPPER, _WRAPPER, confidence="low", details=details))


def kernel_call(wrong: WrongKernel) -> Culprit:
    """A kernel that computes nothing and is wrong all the same: its call hands it other memory than it should."""
    return kernel_culprit(wrong, RUNTIME, _KERNEL_CALL, _KERNEL_CALL, confidence="low")
