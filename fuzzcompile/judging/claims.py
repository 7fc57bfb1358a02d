"""Limits of claims about a target: graphs ran on the CPU, kernels in an interpreter, nothing on a device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from fuzzcompile import stage_names as names
from fuzzcompile.compiler.session import Compilation, effective_setting
from fuzzcompile.compiler.target import undecided
from fuzzcompile.compiler.target.interpreted import TEMPLATES, Order
from fuzzcompile.compiler.target.process import assumed, kernels_unfit
from fuzzcompile.contract import TargetJson
from fuzzcompile.judging.decision import Decision, survives_float64
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.trials.compiles import Experiments, Trial

# In descending order programs run one by one.
_ONE_BY_ONE = 512
_FAKE = "real code, fake device"
_NO_DEVICE = "nothing is recorded without a device"


def claimed(experiments: Experiments, decision: Decision) -> Decision:
    """The decision, without what cannot be said of a device that is not there; as it is where there is no target.

    Rounding is the device's own, so that a loss of precision is none to report; NaN and infinities count where they
    remain in float64, as a kernel may read padding that only a device fills.
    """
    if assumed() is None:
        return decision
    if decision.verdict is Verdict.PRECISION_LOSS:
        return Decision(Verdict.ROUNDING, "low", "apart by rounding alone, of which a device makes its own")
    if decision.verdict is Verdict.NONFINITE and survives_float64(experiments) is not True:
        return Decision(Verdict.UNSTABLE, "low", "not finite in one of the runs, which is not so in float64")
    return decision


def otherwise(experiments: Experiments, trial: Trial) -> Iterator[tuple[str, Compilation]]:
    """Further ways to compile for the target that a device might take, where only timing or order decides.

    Args:
        experiments: whose compile is judged.
        trial: what it showed.

    Yields:
        What is decided the other way, and how to compile so.
    """
    if assumed() is None or trial.observation.failure is not None:
        return
    how, log = experiments.how, trial.ledger.interpreted
    if undecided.PADDING in log.undecided:
        yield undecided.PADDING, replace(how, screen=True, config={**(how.config or {}), "force_shape_pad": True})
    if any(question.startswith(TEMPLATES) for question in log.undecided) and not trial.how.screen:
        yield TEMPLATES, replace(how, templates=True)
    programs = [math.prod(launch.grid) for launch in log.launches]
    if 1 < max(programs, default=0) <= _ONE_BY_ONE:
        yield "order of programs", replace(how, order=Order.BACKWARD)


def target_notes(experiments: Experiments, trial: Trial, tried: tuple[str, ...]) -> TargetJson | None:
    """Describe how each stage was examined for the target; None without one.

    Args:
        experiments: the compiles of the case.
        trial: the compile that the verdict rests on.
        tried: what a device would decide by timing, and was compiled both ways.
    """
    target = assumed()
    if target is None:
        return None
    kernels = _kernels(experiments, trial)
    freezing = bool(effective_setting(experiments.case.settings, trial.how, "freezing"))
    stages = {
        names.DYNAMO: "real code, on the CPU",
        **dict.fromkeys((names.PRE_GRAD, names.FUNCTIONALIZATION, names.DECOMPOSITION, names.JOINT_GRAPH), _FAKE),
        names.PARTITION: _FAKE if any(frame.partitions for frame in trial.ledger.frames) else "nothing to cut",
        names.FREEZING: _FAKE if freezing else "off",
        names.POST_GRAD: _FAKE,
        **dict.fromkeys((names.LOWERING, names.SCHEDULER, names.CODEGEN), _FAKE if not trial.how.screen else kernels),
        "kernels": kernels,
        "library calls": "run by the CPU's libraries",
        "autotuning": _autotuning(trial, tried),
        "strides": "not judged",
        names.CUDAGRAPHS: f"not looked at: {_NO_DEVICE}",
    }
    return TargetJson(device=target.name, stages=stages, confirmed_on_device=False)


def _kernels(experiments: Experiments, trial: Trial) -> str:
    refused = experiments.runs.uninterpreted
    if refused:
        return "not looked at: " + "; ".join(f"{kernel}: {why}" for kernel, why in refused.items())
    if trial.how.screen:
        return f"not looked at: {kernels_unfit() or 'screened'}"
    return trial.ledger.interpreted.summary()


def _autotuning(trial: Trial, tried: tuple[str, ...]) -> str:
    questions = trial.ledger.interpreted.undecided
    open_questions = [question for question in questions if not question.startswith(tried)]
    shown = ("template or library call" if question == TEMPLATES else question for question in tried)
    parts = [f"both ways: {', '.join(shown)}"] if tried else []
    parts += [f"not decided: {', '.join(open_questions)}"] if open_questions else []
    return "; ".join(parts) or "nothing to decide"
