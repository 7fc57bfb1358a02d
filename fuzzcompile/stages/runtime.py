"""The wrapper: the generated function that allocates buffers, calls kernels and returns outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fuzzcompile.attribution.ablating import Ablator
from fuzzcompile.attribution.culprit import Attribution, Culprit
from fuzzcompile.attribution.divergence import Divergence
from fuzzcompile.compiler.kernels.codegen_operators import defined_at
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.stage_names import RUNTIME
from fuzzcompile.stages.base import Stage, Suspect
from fuzzcompile.stages.kernels.culprits import kernel_culprit, values_shown
from fuzzcompile.stages.kernels.examined import examined_in, first_wrong_kernels
from fuzzcompile.stages.kernels.suspected import kernels_suspected
from fuzzcompile.stages.kernels.wrong import WrongKernel, WrongOutput
from fuzzcompile.trials.compiles import Trial

_WRAPPER = "wrapper"
_WRITTEN_BY = "torch._inductor.codegen.wrapper:PythonWrapperCodegen.generate_return"
_KERNEL_CALL = "kernel call"


@dataclass(frozen=True)
class _Miscounted:
    """A generated program that returns another number of results than its graph."""

    expected: int
    got: int


class Runtime(Stage):
    """Outputs that are wrong, or too few, though all kernels wrote what they should; kernels handed other memory.

    No compile can do without the wrapper, so that nothing here is proved.
    """

    name = RUNTIME
    component = "inductor"
    settings = ({"allow_buffer_reuse": False, "inplace_buffers": False},)

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """The kernels that may have been handed wrong memory; the wrapper where no kernel is wrong."""
        failed = divergence.trial.observation.failure is not None
        if failed and (miscounted := _miscounted(divergence.trial)) is not None:
            return [Suspect(self.name, _WRAPPER, finding=miscounted)]
        if failed or divergence.verdict is Verdict.ACCEPTS_INVALID or first_wrong_kernels(divergence):
            return kernels_suspected(self.name, divergence)
        outputs = [wrong for look in examined_in(divergence) for wrong in look.wrong_outputs()]
        return [Suspect(self.name, _WRAPPER, finding=wrong) for wrong in outputs]

    def prove(self, ablator: Ablator, suspects: Sequence[Suspect]) -> Attribution | None:
        """The wrapper, if outputs are wrong and no kernel is; confidence stays low."""
        shown = next((_shown(suspect.finding) for suspect in suspects if _shown(suspect.finding)), None)
        if shown is None:
            return None
        source, line = defined_at(_WRITTEN_BY)
        return Attribution(
            Culprit(self.name, None, _WRAPPER, _WRAPPER, source=source, line=line, confidence="low", details=shown)
        )


def _shown(finding: object) -> dict[str, object] | None:
    """Describe the fault in a program's results for a reader; None for any other finding."""
    if isinstance(finding, WrongOutput):
        return {"output": finding.name, "finding": finding.comparison.finding, **values_shown(finding.comparison)}
    if isinstance(finding, _Miscounted):
        return {"finding": "results", "expected": finding.expected, "got": finding.got}
    return None


def _miscounted(trial: Trial) -> _Miscounted | None:
    for lowered in trial.ledger.lowered:
        expected = len(lowered.snapshot.results)
        for call in lowered.calls:
            if call.outputs is not None and len(call.outputs) != expected:
                return _Miscounted(expected, len(call.outputs))
    return None


def kernel_call(wrong: WrongKernel) -> Culprit:
    """A kernel that computes nothing and is wrong all the same: its call hands it other memory than it should."""
    return kernel_culprit(wrong, RUNTIME, _KERNEL_CALL, _KERNEL_CALL, confidence="low")
