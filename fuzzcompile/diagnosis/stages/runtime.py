"""Stages of the generated program at run time: the wrapper and CUDA graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fuzzcompile.compiler.kernels.kernel_loops import find_definition
from fuzzcompile.compiler.session import Compilation, get_effective_setting
from fuzzcompile.diagnosis.attribution.ablation import Ablator, Divergence
from fuzzcompile.diagnosis.attribution.culprit import Attribution, Culprit
from fuzzcompile.diagnosis.kernels.kernel_bisection import WrongKernel, WrongOutput, attempt_ablation, with_config
from fuzzcompile.diagnosis.kernels.kernel_culprits import describe_values, make_kernel_culprit
from fuzzcompile.diagnosis.kernels.kernel_suspects import (
    get_first_wrong_kernels,
    get_watched_graphs,
    list_kernel_suspects,
)
from fuzzcompile.diagnosis.stages.stage import AblatedCompile, Stage, Suspect
from fuzzcompile.diagnosis.trials.case_runs import Trial
from fuzzcompile.model.culprit_contract import DetailsJson
from fuzzcompile.model.facts import facts
from fuzzcompile.model.stages import CUDAGRAPHS, RUNTIME
from fuzzcompile.model.verdicts import Verdict

_WRAPPER = "wrapper"
_KERNEL_CALL = "kernel call"


@dataclass(frozen=True)
class _ResultCount:
    """A generated program that returns another number of results than its graph."""

    expected: int
    got: int


class Runtime(Stage):
    """Outputs that are wrong, or too few, though all kernels wrote what they should; kernels handed other memory.

    No compile can do without the wrapper, so that nothing here is proved.
    """

    name = RUNTIME
    settings = ({"allow_buffer_reuse": False, "inplace_buffers": False},)

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """The kernels that may have been handed wrong memory; the wrapper where no kernel is wrong."""
        failed = divergence.trial.observation.failure is not None
        if failed and (miscounted := _find_miscounted(divergence.trial)) is not None:
            return [Suspect(self.name, _WRAPPER, finding=miscounted)]
        if failed or divergence.verdict is Verdict.ACCEPTS_INVALID or get_first_wrong_kernels(divergence):
            return list_kernel_suspects(self.name, divergence)
        outputs = [wrong for look in get_watched_graphs(divergence) for wrong in look.find_wrong_outputs()]
        return [Suspect(self.name, _WRAPPER, finding=wrong) for wrong in outputs]

    def prove(self, ablator: Ablator, suspects: Sequence[Suspect]) -> Attribution | None:
        """The wrapper, if outputs are wrong and no kernel is; confidence stays low."""
        shown = next(
            (_describe_results(suspect.finding) for suspect in suspects if _describe_results(suspect.finding)), None
        )
        if shown is None:
            return None
        source, line = find_definition(facts().places.program_results)
        return Attribution(
            Culprit(self.name, None, _WRAPPER, _WRAPPER, source=source, line=line, confidence="low", details=shown)
        )


def _describe_results(finding: object) -> DetailsJson | None:
    """Describe the fault in a program's results for a reader; None for any other finding."""
    if isinstance(finding, WrongOutput):
        return {"output": finding.name, "finding": finding.comparison.finding, **describe_values(finding.comparison)}
    if isinstance(finding, _ResultCount):
        return {"finding": "results", "expected": finding.expected, "got": finding.got}
    return None


def _find_miscounted(trial: Trial) -> _ResultCount | None:
    for lowered in trial.ledger.lowered:
        expected = len(lowered.snapshot.results)
        for call in lowered.calls:
            if call.outputs is not None and len(call.outputs) != expected:
                return _ResultCount(expected, len(call.outputs))
    return None


def make_kernel_call_culprit(wrong: WrongKernel) -> Culprit:
    """A kernel that computes nothing and is wrong all the same: its call hands it other memory than it should."""
    return make_kernel_culprit(wrong, RUNTIME, _KERNEL_CALL, _KERNEL_CALL, confidence="low")


# CUDA graphs: a compiled graph recorded once and replayed, its memory in a pool of its own.

_SETTING = "triton.cudagraphs"


class Cudagraphs(Stage):
    """Recording and replaying a compiled graph, where a setting or a mode such as ``reduce-overhead`` asks for it.

    One compile without it decides. Tried on an H100 with torch 2.11, and on CPU builds, where Inductor records nothing,
    with its check of the devices and its recording function replaced.
    """

    name = CUDAGRAPHS
    settings = ({_SETTING: False},)

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """The recording, if it was asked for and Inductor found no reason to go without it."""
        experiments, trial = divergence.experiments, divergence.trial
        if get_effective_setting(experiments.case.settings, trial.how, _SETTING) is not True:
            return []
        graphs = trial.ledger.lowered
        # Without watched kernels nothing says what Inductor decided; it never records graphs without a CUDA device.
        recorded = any(lowered.cudagraphs for lowered in graphs) if graphs else experiments.device.type == "cuda"
        return [Suspect(self.name, self.name, _locate_cudagraphs()[0])] if recorded else []

    def without(self, suspect: Suspect, how: Compilation) -> AblatedCompile:
        """The same compile, its graphs not recorded."""
        return with_config(how, {_SETTING: False})

    def prove(self, ablator: Ablator, suspects: Sequence[Suspect]) -> Attribution | None:
        """The recording, if the divergence is gone without it; None if it stays."""
        if not suspects or not attempt_ablation(ablator, self.without(suspects[0], ablator.how))[1]:
            return None
        source, line = _locate_cudagraphs()
        return Attribution(Culprit(self.name, None, self.name, self.name, source=source, line=line, necessary=True))


def _locate_cudagraphs() -> tuple[str | None, int | None]:
    return find_definition(facts().places.graph_recording)
