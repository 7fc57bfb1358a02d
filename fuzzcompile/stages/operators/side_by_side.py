"""Operators whose decomposition, or whose description by fake tensors, does not do what their kernels do."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fuzzcompile.attribution.inputs import inputs_of, placeholders_of
from fuzzcompile.attribution.replays import ReplayCount
from fuzzcompile.compiler.applications import Application
from fuzzcompile.compiler.aten_kernels import CONTIGUOUS
from fuzzcompile.compiler.crossref import Watched, watch_operators, watch_program
from fuzzcompile.compiler.decompositions import configured
from fuzzcompile.compiler.ledger import Frame, Ledger
from fuzzcompile.compiler.recorder import CAPTURED_CALLS
from fuzzcompile.execution import runs
from fuzzcompile.execution.building import build
from fuzzcompile.stage_names import JOINT_GRAPH, PRE_GRAD
from fuzzcompile.stages.operators.faults import Fault, fault_of
from fuzzcompile.stages.operators.layouts import KernelFault, kernel_fault_of
from fuzzcompile.stages.operators.lines import program_lines
from fuzzcompile.trials.compiles import Experiments

__watches_calls__ = True  # its frames stand between a call and the program that makes it
_DEFAULT = {"fallback_random": True}


@dataclass
class Checked:
    """Result of comparing the operators of one frame (without one: of the whole program) with their substitutes."""

    frame: Frame | None
    faults: list[Fault] = field(default_factory=list)
    watched: Watched = field(default_factory=Watched)
    kernels: list[KernelFault] = field(default_factory=list)

    def judge(self, application: Application) -> None:
        """Keep what is the matter with one application of an operator, if anything is.

        Kernels that give something else on contiguous operands are kept apart.
        """
        if application.way == CONTIGUOUS:
            kernel = kernel_fault_of(application, "eager")
            self.kernels += [] if kernel is None else [kernel]
            return
        fault = fault_of(application)
        if fault is not None:
            self.faults.append(fault)


def check_operators(
    ledger: Ledger, count: ReplayCount, config: Mapping[str, Any] | None = None, *, seconds: float = 20.0
) -> list[Checked]:
    """Run dynamo's graphs and compare every operator with what the compiler takes in its place.

    Args:
        ledger: holds the graphs and the inputs of their calls.
        count: counts the replays.
        config: the entries of Inductor's config that the program was compiled under; ``fallback_random`` alone by
            default.
        seconds: bounds the time; operators that are not reached are not compared.
    """
    end = time.monotonic() + seconds
    graphs: list[Checked] = []
    with configured(config if config is not None else _DEFAULT):
        for frame, number in itertools.product(ledger.frames, range(CAPTURED_CALLS)):
            left = end - time.monotonic()
            checked = _check(frame, number, count, left) if left > 0 else None
            if checked is not None:
                graphs.append(checked)
    return graphs


def check_program(
    experiments: Experiments, config: Mapping[str, Any] | None = None, *, seconds: float = 20.0
) -> Checked:
    """As :func:`check_operators`, for a program that dynamo could not capture: it is run as it is, in eager mode.

    Args:
        experiments: the case to run.
        config: as for :func:`check_operators`.
        seconds: as for :func:`check_operators`.
    """
    checked = Checked(None)
    program = build(experiments.case, experiments.device)

    def run() -> None:
        runs.observe(experiments.case, program, program.model)

    with configured(config if config is not None else _DEFAULT):
        checked.watched = watch_program(run, checked.judge, lambda: next(program_lines(), None), seconds=seconds)
    return checked


def _check(frame: Frame, number: int, count: ReplayCount, seconds: float) -> Checked | None:
    """One captured call of a frame; None if there was no such call."""
    record = frame.record(PRE_GRAD)
    if record is None or not record.snapshots:
        return None
    inputs = inputs_of(frame, record, number)
    if inputs is None:
        return None
    checked = Checked(frame)
    count.replays += 1
    checked.watched = watch_operators(
        record.snapshots[-1], inputs, checked.judge, tangents=_tangents(frame, number), seconds=seconds
    )
    return checked


def _tangents(frame: Frame, number: int) -> Sequence[Any] | None:
    """The gradients that the backward pass got; none of them where it never ran, None where there is none."""
    joint = frame.record(JOINT_GRAPH, "joint")
    if joint is None or not joint.snapshots:
        return None
    inputs = inputs_of(frame, joint, number)
    if inputs is None:
        return []
    named = zip((str(node.target) for node in placeholders_of(joint.snapshots[0])), inputs, strict=True)
    return [value for name, value in named if name.startswith("tangents")]
