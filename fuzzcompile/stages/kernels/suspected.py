"""Suspects of one stage among the kernels of a failing compile."""

from __future__ import annotations

from fuzzcompile.attribution.divergence import Divergence
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.stages.base import Suspect
from fuzzcompile.stages.kernels.examined import first_wrong_kernels
from fuzzcompile.stages.kernels.failures import failed_families, failure_of
from fuzzcompile.stages.kernels.wrong import WrongKernel, family_of_node


def kernels_suspected(stage: str, divergence: Divergence, *, overwritten: tuple[str, ...] = ()) -> list[Suspect]:
    """The operators of the kernel that failed, or of the first wrong kernel of each graph.

    Args:
        stage: whose suspects they are.
        divergence: a failing compile whose kernels were watched.
        overwritten: the families of a kernel whose arguments were overwritten before it read them.
    """
    trial = divergence.trial
    if trial.observation.failure is not None:
        failure = failure_of(trial)
        return [Suspect(stage, family, finding=failure) for family in failed_families(failure)]
    if divergence.verdict is Verdict.ACCEPTS_INVALID:
        return []
    return [
        Suspect(stage, family, finding=wrong)
        for wrong in first_wrong_kernels(divergence)
        for family in (_families(wrong) if wrong.overwritten is None else overwritten)
    ]


def _families(wrong: WrongKernel) -> list[str]:
    """List the families of possible faults in a kernel whose arguments are right, as signatures name them."""
    if wrong.kernel.extern:
        return []
    generator, scheduled = wrong.generator, wrong.kernel.scheduled
    buffers = (wrong.buffer, *wrong.kernel.writes)
    names = [name for buffer in buffers for name in generator.operators(scheduled, buffer)]
    names += [family_of_node(wrong.lowered, wrong.lowered.producer(node)) for node in wrong.kernel.nodes]
    return list(dict.fromkeys([*names, "fusion", "loop", "kernel call"]))
