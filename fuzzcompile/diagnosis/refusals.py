"""Cases that run and cannot be judged: the reason is the program or the machine, never the compiler."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import torch

from fuzzcompile.compiler.graph_breaks import extract_headline
from fuzzcompile.compiler.session import find_path
from fuzzcompile.compiler.target.graph_placement import says_missing_kernel
from fuzzcompile.compiler.target.target_process import current_target
from fuzzcompile.diagnosis.oracle.judgement import compare
from fuzzcompile.diagnosis.trials.case_runs import Trial
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.model import hints
from fuzzcompile.model.contract import EXPORTED
from fuzzcompile.model.errors import EnvironmentUnfit, MachineUnfit
from fuzzcompile.model.facts import facts
from fuzzcompile.model.stages import DYNAMO
from fuzzcompile.model.targets import Target
from fuzzcompile.model.verdicts import Finding
from fuzzcompile.run.case import Case
from fuzzcompile.run.observation import Failure, Observation

_MACHINE_ERRORS = ("TritonMissing", "OutOfMemoryError")
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
    "CudaKernelParamCache",  # AOTInductor's: machine code of the kernels, which only the device's own compile makes
)
# What dynamo and Inductor call numbers, branches and sizes that depend on what a tensor holds.
_READS = ("ata-dependent", "ata dependent", "Tensor.item()", "_local_scalar_dense", "ynamic shape operator")
_LIMIT = "recompile limit"
_NO_READ = (
    " (instead of reading a number from a tensor, compute with the tensor: a mask, torch.where, index_copy; or pass "
    "the number as a Python int)"
)
_NO_RECOMPILE = (
    " (what is another Python number or shape in each call is compiled anew: pass it as a tensor, mark it as dynamic, "
    "or raise torch._dynamo.config.recompile_limit)"
)
_PLACE = re.compile(r"(?<=\()[^()\s]+:\d+(?=[:)])")
_MACHINE_MESSAGES = ("No space left on device", "Cannot find a working triton installation", "out of memory")
_IN_A_LOOP = "in a loop"
# What torch raises where a size must be known that the program asked to leave open.
_BROKEN_PROMISES = ("ConstraintViolationError", "GuardOnDataDependentSymNode", "UserError")
_LOOPED = "; move the body of the loop into a function of its own, or what breaks the graph in front of the loop"


class CannotJudge(EnvironmentUnfit):
    """The case ran, but nothing can be said of it (exit status 3)."""


def refuse_lasting_state(experiments: Experiments, trial: Trial | None = None) -> None:
    """Refuse a script's callable whose second eager run differs: it keeps state that could not be set back.

    Where every eager run has tensors of the same shapes and dtypes (memory that was never written to is another each
    time), a ``trial`` that has others shows a bug all the same: without one, the case is not refused yet.

    Raises:
        CannotJudge: its second run fails, or shows other values.
    """
    case, eager, again = experiments.case, experiments.runs.eager, experiments.again
    if case.state is None or eager.failure or experiments.runs.draws:
        return
    what = find_difference(eager, again)
    if what is None:
        return
    forms = _list_forms(eager)
    alike = all(_list_forms(run) == forms for run in (again, *experiments.noisy))
    compiled = None if trial is None or trial.observation.failure is not None else _list_forms(trial.observation)
    if alike and (trial is None or compiled not in (None, forms)):
        return
    raise CannotJudge(
        f"{case.name} does not do the same twice in eager mode ({what}): it keeps state that cannot be set back "
        "(in an iterator, a generator, a cache of a library's own), or depends on something outside, as on memory that "
        "was never written to; keep that state in an argument or an attribute, or write the call as a case with "
        "make(), which builds it anew."
    )


def _list_forms(run: Observation) -> object:
    tensors = ((value.name, value.value) for value in run.values if isinstance(value.value, torch.Tensor))
    return run.structure, [(name, tensor.shape, tensor.dtype) for name, tensor in tensors]


_OTHER_VALUES: Collection[Finding] = ("integer", "shape", "dtype", "alias")


def find_difference(
    eager: Observation, again: Observation, findings: Collection[Finding] = _OTHER_VALUES
) -> str | None:
    """The first difference of two runs, in a few words; None if there is none.

    That is values beyond PyTorch's default tolerances, or one of the ``findings``, by default all but strides and
    whether a gradient is required.
    """
    if again.failure is not None:
        return f"the second run raises {again.failure}"
    repeated = again.index_by_name()
    for first in eager.values:
        second = repeated.get(first.name)
        if second is None:
            return f"only the first run has {first.name}"
        compared = compare(first, second, None, ())
        if not compared.within_default_tolerance or compared.finding in findings:
            return f"{first.name} differs"
    return None if eager.structure == again.structure else "what it returns is nested otherwise"


def refuse_lack_of_cpu(experiments: Experiments) -> None:
    """Refuse a case for a target that eager cannot run on the CPU, for want of a kernel that a device has.

    Raises:
        CannotJudge: naming what the CPU lacks.
    """
    target, failure = current_target(), experiments.runs.eager.failure
    if target is None or failure is None:
        return
    if failure.type_name in _TARGET_ERRORS:
        raise _make_refusal(experiments.case, target, failure.message)
    if says_missing_kernel(failure.message):
        why = f"eager has to run on the CPU, which lacks a kernel for it ({failure.message})"
        raise _make_refusal(experiments.case, target, why)


def _make_refusal(case: Case, target: Target, why: str) -> CannotJudge:
    return CannotJudge(f"{case.name} could not be looked at for {target.name}: {why}.")


def refuse_unsupported(experiments: Experiments, trial: Trial) -> None:
    """Refuse a case that asks for an error and gets it: ``FULLGRAPH`` or export, without one graph; a recompile.

    Raises:
        CannotJudge: with the reason, every line that breaks the graph, and what to do.
    """
    case, failure = experiments.case, trial.observation.failure
    if failure is not None and failure.type_name == "RecompileError" and case.settings.dynamo.get("error_on_recompile"):
        raise CannotJudge(f"{case.name} asks for error_on_recompile and is compiled anew: {failure.message}.")
    if failure is not None and find_path(case.settings, trial.how) in EXPORTED:
        if failure.unsupported and experiments.runs.eager.failure is None:
            raise CannotJudge(
                f"{case.name} cannot be exported, within the limits that torch.export documents: "
                f"{failure.message}; remove PATH, or write the program so that it is one graph (torch.cond in place of "
                "a branch on a tensor's values, tensors and pytree containers as inputs)."
            )
        return
    if failure is None:
        return
    if any(words in failure.message for words in facts().errors.refusing):
        said = failure.message if failure.message.endswith(".") else f"{failure.message}."
        raise CannotJudge(f"{case.name} does what torch.compile refuses to compile: {said}")
    if failure.phase != "compile":
        return
    if failure.message.startswith(facts().dynamo.observed) and experiments.runs.eager.failure is None:
        return  # dynamo met an exception that the program does not raise
    if case.settings.fullgraph:  # the reason as long as the program compiles without it
        _refuse_one_graph(experiments, failure)
    if failure.type_name in _BROKEN_PROMISES:  # torch says so by design
        raise CannotJudge(
            f"{case.name} asks for sizes or numbers without a value at compile time, and needs their values: "
            f"{extract_headline(str(failure))}; remove mark_dynamic, mark_unbacked or the capture_* setting, or "
            "say with torch._check what holds for them."
        )


def _refuse_one_graph(experiments: Experiments, failure: Failure) -> None:
    """Refuse a case that compiles once its graph may break.

    Dynamo keeps numbers that a program reads from tensors in the graph, as unknowns, only if it may not break the graph
    there. An error in the rest of the compiler that does not come without ``FULLGRAPH`` is about these unknowns.
    """
    without, breaks = experiments.compile_without_fullgraph("eager" if failure.unsupported else None)
    if not failure.unsupported and (without is not None or not _reads_values(breaks)):
        return
    further = "; ".join(line for line in breaks if _find_place(line) not in failure.message)
    reasons = (failure.message, *breaks)
    instead = _NO_READ if _reads_values(reasons) else _NO_RECOMPILE if _LIMIT in "".join(reasons) else ""
    who, why = (DYNAMO, failure.message) if failure.unsupported else ("torch.compile", extract_headline(str(failure)))
    raise CannotJudge(
        f"{experiments.case.name} asks for FULLGRAPH, which {who} cannot honour: {why}; "
        f"{f'without FULLGRAPH, the graph breaks at: {further}; ' if further else ''}"
        f"remove FULLGRAPH or the graph break{instead}."
    )


def _reads_values(reasons: Sequence[str]) -> bool:
    return any(word in reason for word in _READS for reason in reasons)


def _find_place(line: str) -> str:
    """The file and line at the end of a graph break's reason; the whole of it if it has none."""
    place = _PLACE.search(line)
    return line if place is None else place[0]


def refuse_unfit(case: Case, trial: Trial) -> None:
    """Refuse a case of which nothing is compiled, and one that fails for want of something on the machine.

    Raises:
        CannotJudge: no graph was captured, or a target's device is more than what stands for it.
        MachineUnfit: the error is one of the machine and not of the compiler.
    """
    failure = trial.observation.failure
    if failure is None and not trial.ledger.frames and not trial.ledger.graphs:
        why = "; ".join(trial.ledger.graph_breaks)
        raise CannotJudge(
            f"Nothing of {case.name} is compiled: dynamo captures no graph of it{f' ({why})' if why else ''}"
            f"{_LOOPED if _IN_A_LOOP in why else ''}."
        )
    if failure is None:
        return
    target = current_target()
    if target is not None and (
        failure.type_name in _TARGET_ERRORS or any(text in failure.message for text in _DEVICE_MESSAGES)
    ):
        raise _make_refusal(case, target, failure.message)
    machine = failure.machine
    if failure.type_name in _MACHINE_ERRORS or any(text in failure.message for text in _MACHINE_MESSAGES):
        machine = machine or str(failure)
    if machine:
        raise MachineUnfit(
            f"{case.name} cannot be compiled on this machine: {machine} "
            f"(`{hints.format_command('doctor')}` tries the machine)."
        )
