"""Cases that run and cannot be judged: the reason is the program or the machine, never the compiler."""

from __future__ import annotations

from fuzzcompile.case import Case
from fuzzcompile.compiler.target.placing import lacks_kernel
from fuzzcompile.compiler.target.process import assumed
from fuzzcompile.errors import EnvironmentUnfit
from fuzzcompile.execution.observation import Observation
from fuzzcompile.oracle.comparison import compare
from fuzzcompile.targets import Target
from fuzzcompile.trials.compiles import Experiments, Trial

_MACHINE_ERRORS = ("InvalidCxxCompiler", "TritonMissing", "OutOfMemoryError")
# Raised by what stands for a target's device, and by torch where it asks for more of that device than is described.
_TARGET_ERRORS = ("NotMoved", "NotOnCpu", "NotInterpreted", "KernelTooLarge")
_DEVICE_MESSAGES = (
    "not compiled with CUDA enabled",
    "No CUDA GPUs are available",
    "Found no NVIDIA driver",
    "CUDA driver",
    "CUDA error",
    "SimpleNamespace",
    "CUDAHooks",
    "'torch._C' has no attribute '_cuda",
)
_MACHINE_MESSAGES = ("No space left on device", "Cannot find a working triton installation", "out of memory")


class CannotJudge(EnvironmentUnfit):
    """The case ran, but nothing can be said of it (exit status 3)."""


def refuse_lasting_state(experiments: Experiments) -> None:
    """Refuse a script's callable whose second eager run differs: it keeps state that could not be set back.

    Raises:
        CannotJudge: its second run fails, or shows other values.
    """
    case, eager, again = experiments.case, experiments.runs.eager, experiments.again
    if case.state is None or eager.failure or experiments.runs.draws:
        return
    what = _difference(eager, again)
    if what is not None:
        raise CannotJudge(
            f"{case.name} does not do the same twice in eager mode ({what}): it keeps state that cannot be set back "
            "(in an iterator, a generator, a cache of a library's own), or depends on something outside; keep that "
            "state in an argument or an attribute, or write the call as a case with make(), which builds it anew."
        )


def _difference(eager: Observation, again: Observation) -> str | None:
    """What the second eager run shows that the first does not; None if nothing."""
    if again.failure is not None:
        return f"the second run raises {again.failure}"
    repeated = again.named()
    for first in eager.values:
        second = repeated.get(first.name)
        if second is None:
            return f"only the first run has {first.name}"
        compared = compare(first, second, None, ())
        if not compared.within_default_tolerance or compared.finding in ("integer", "shape", "dtype"):
            return f"{first.name} differs"
    return None if eager.structure == again.structure else "what it returns is nested otherwise"


def refuse_lack_of_cpu(experiments: Experiments) -> None:
    """Refuse a case for a target that eager cannot run on the CPU, for want of a kernel that a device has.

    Raises:
        CannotJudge: naming what the CPU lacks.
    """
    target, failure = assumed(), experiments.runs.eager.failure
    if target is None or failure is None:
        return
    if failure.type_name in _TARGET_ERRORS:
        raise _not_looked_at(experiments.case, target, failure.message)
    if lacks_kernel(failure.message):
        why = f"eager has to run on the CPU, which lacks a kernel for it ({failure.message})"
        raise _not_looked_at(experiments.case, target, why)


def _not_looked_at(case: Case, target: Target, why: str) -> CannotJudge:
    return CannotJudge(f"{case.name} could not be looked at for {target.name}: {why}.")


def refuse_unsupported(case: Case, trial: Trial) -> None:
    """Refuse a case that asks for ``FULLGRAPH`` and cannot be captured in one graph.

    Raises:
        CannotJudge: dynamo says that it does not support a part of the program.
    """
    failure = trial.observation.failure
    if failure is not None and failure.unsupported and case.settings.fullgraph:
        raise CannotJudge(
            f"{case.name} asks for FULLGRAPH, which dynamo cannot honour: {failure.message}; "
            "remove FULLGRAPH or the graph break."
        )


def refuse_unfit(case: Case, trial: Trial) -> None:
    """Refuse a case of which nothing is compiled, and one that fails for want of something on the machine.

    Raises:
        CannotJudge: no graph was captured, or the error is one of the machine and not of the compiler.
    """
    failure = trial.observation.failure
    if failure is None and not trial.ledger.frames and not trial.ledger.graphs:
        why = "; ".join(trial.ledger.graph_breaks)
        raise CannotJudge(
            f"Nothing of {case.name} is compiled: dynamo captures no graph of it{f' ({why})' if why else ''}."
        )
    if failure is None:
        return
    target = assumed()
    if target is not None and (
        failure.type_name in _TARGET_ERRORS or any(text in failure.message for text in _DEVICE_MESSAGES)
    ):
        raise _not_looked_at(case, target, failure.message)
    if failure.type_name in _MACHINE_ERRORS or any(text in failure.message for text in _MACHINE_MESSAGES):
        raise CannotJudge(
            f"{case.name} cannot be compiled on this machine ({failure}); `fuzzcompile doctor` says what is missing."
        )
