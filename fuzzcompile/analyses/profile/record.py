"""``profile --record``: one run of a case, written down for a comparison on another machine."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import torch

from fuzzcompile.analyses.profile.identity import Facts, check_same, facts_of
from fuzzcompile.analyses.profile.kept import KeptCall, KeptTensor
from fuzzcompile.analyses.profile.recorded import read
from fuzzcompile.analyses.profile.recording import RecordingWriter
from fuzzcompile.analyses.profile.runs import WHOLE, Look, SideRun, collecting, refuse_failed, run_side, whole
from fuzzcompile.analyses.profile.sides import Side
from fuzzcompile.run.attention_backends import math_only
from fuzzcompile.run.building import build
from fuzzcompile.run.case import Case
from fuzzcompile.run.observation import Observation, Value
from fuzzcompile.run.runs import observe


@dataclass(frozen=True)
class Recorded:
    """What was written: the file, the side that ran, how many calls of layers, and how many bytes."""

    path: str
    side: str
    calls: int
    size: int


def record(
    case: Case,
    device: torch.device,
    side: Side,
    path: Path,
    *,
    look: Look,
    math_kernel: bool = False,
) -> Recorded:
    """Run ``case`` as ``side`` says, and write its activations, outputs and gradients to ``path``.

    Args:
        case: the case.
        device: where the side runs, if it names no device.
        side: anything but a recording.
        path: the file.
        look: what to look at; its budget is that of the file.
        math_kernel: attention takes its math kernel, and TF32 is off.

    Raises:
        CannotRun: the program raises.
        EnvironmentUnfit: the disk is full, or there is no such device or kernel.
        UsageError: the file cannot be written.
    """
    facts = _facts(case, device, side)
    with (
        math_only() if math_kernel else contextlib.nullcontext(),
        RecordingWriter(path, facts, budget=look.budget) as writer,
    ):
        written = _Written(writer)
        if side.is_compiled:
            run = run_side(case, device, side, look)
            for key, call in run.calls.items():
                if key[0] != WHOLE:
                    written.again(call)
            observation = run.observation
        else:
            observation = _streamed(case, device, side, look, written)
        written.again(whole(observation))
        for value in observation.values:
            if value.kind == "gradient" and isinstance(value.value, torch.Tensor):
                written.again(KeptCall(value.name, 0, value.kind, [], [KeptTensor.of(value.value)]))
    return Recorded(str(path), str(side), written.count, path.stat().st_size)


def _facts(case: Case, device: torch.device, side: Side) -> Facts:
    return facts_of(case, build(case, side.device(device)), str(side), side.device(device))


@dataclass
class _Written:
    """Adds calls to a recording, sampled as its budget says."""

    writer: RecordingWriter
    count: int = 0

    def keep(self, tensor: torch.Tensor) -> KeptTensor:
        """As much of a tensor as the budget leaves room for."""
        return KeptTensor.of(tensor, self.writer.most(tensor.numel(), tensor.element_size()))

    def add(self, call: KeptCall) -> None:
        """Write a call whose tensors were kept so."""
        self.writer.add(call)
        self.count += 1

    def again(self, call: KeptCall) -> None:
        """Write a call whose tensors were kept whole."""
        inputs, outputs = (
            [self.keep(kept.values) if kept.whole else kept for kept in tensors]
            for tensors in (call.inputs, call.outputs)
        )
        self.add(KeptCall(call.name, call.number, call.kind, inputs, outputs))


def _streamed(case: Case, device: torch.device, side: Side, look: Look, written: _Written) -> Observation:
    """Run in eager mode and write each call as it ends."""
    program = side.built(case, device)
    with (
        side.attention(),
        collecting(program, look, written.keep, written.add) as called,
        side.numerics(program.dtype),
    ):
        observation = observe(case, program, called)
    refuse_failed(case, side, observation)
    return observation


def replayed(case: Case, device: torch.device, side: Side) -> SideRun:
    """A recording in the place of a run; what differs between both machines is among the notes.

    Raises:
        CaseError: it was made of another program, other weights or other inputs.
        UsageError: it cannot be read.
    """
    recording = read(Path(side.argument))
    notes = check_same(recording.facts, _facts(case, device, Side("eager")))
    calls = recording.calls()
    gradients = [
        Value(name, call.outputs[0].values, "gradient")
        for (name, _), call in ((key, calls[key]) for key in calls)
        if call.kind == "gradient" and call.outputs[0].whole
    ]
    outputs = [Value(f"out{i}", kept.values, "output") for i, kept in enumerate(calls[WHOLE, 0].outputs)]
    return SideRun(calls, Observation((*outputs, *gradients)), notes=(f"recorded as {recording.facts.side}", *notes))
