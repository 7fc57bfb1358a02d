"""Replaying the ledger: how much each rewrite moved the result of its graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fuzzcompile.execution.runs import first_line
from fuzzcompile.execution.tensors import significant_strides
from fuzzcompile.inductor.ledger import Frame, GraphRecord, Label, Ledger, Rewrite, Snapshot
from fuzzcompile.inductor.replay import Replayed, draws_random, replay
from fuzzcompile.oracle import metrics

# A rewrite may fold constants in the program's own precision; a float64 step beyond that changes meaning.
SEMANTIC_STEP = 4 * torch.finfo(torch.float32).eps
# Outputs this much smaller than the largest of their graph may be zero by symmetry: nothing but rounding is in
# them, so they are measured on the scale of the others. Far above float64 noise, far below what float32 resolves.
_VANISHING = 1e-7
# A native step within this many times the graph's own rounding error is rounding.
_NATIVE_FACTOR = 6.0


@dataclass(frozen=True)
class Step:
    """What one rewrite did to its graph's outputs and mutated inputs, on the program's real inputs.

    ``float64`` and ``native`` are the largest change in units of the output's RMS size; None where the graph
    could not be replayed that way. ``stride`` names an output whose layout changed, which matters only where
    the user sees that layout. ``raised`` is set where the graph ran before the rewrite and not after.
    """

    frame: int
    record: GraphRecord
    rewrite: Rewrite
    float64: float | None
    native: float | None
    native_noise: float
    changed_bits: bool
    metadata: str | None = None
    stride: str | None = None
    raised: str | None = None
    random: bool = False

    @property
    def label(self) -> Label:
        """The rule that was applied."""
        return self.rewrite.label

    @property
    def is_semantic(self) -> bool:
        """Whether the rewrite changed what the graph means, and not only how it rounds."""
        if self.random:
            return False
        if self.raised or self.metadata:
            return True
        return self.float64 is not None and self.float64 > SEMANTIC_STEP

    @property
    def moves_natively(self) -> bool:
        """Whether the native result moved farther than the graph's own rounding explains."""
        if self.random or self.native is None:
            return False
        return self.native > max(_NATIVE_FACTOR * self.native_noise, 1e-6)


@dataclass
class ReplayCount:
    """How many graph replays were run, for the cost table."""

    replays: int = 0


def steps_of(ledger: Ledger, count: ReplayCount) -> list[Step]:
    """Replay every snapshot of the ledger on the captured inputs and measure every rewrite's step."""
    return [step for frame in ledger.frames for step in _frame_steps(frame, count)]


def _frame_steps(frame: Frame, count: ReplayCount) -> Iterator[Step]:
    for record in frame.records:
        if not record.rewrites:
            continue
        inputs = _inputs(frame, record)
        if inputs is not None:
            yield from _record_steps(frame.index, record, inputs, count)
    yield from _border_steps(frame, count)


def _record_steps(
    frame: int, record: GraphRecord, inputs: Sequence[Any], count: ReplayCount
) -> Iterator[Step]:
    """One step per rewrite, in order.

    Most rewrites change nothing that can be observed, so whole runs of them are settled by comparing the
    graphs at their two ends, and only where these differ is there a look inside.
    """
    runs = _Runs(record.snapshots, inputs, count)
    moved = set(_moved(runs, 0, len(record.snapshots) - 1))
    for rewrite in record.rewrites:
        if rewrite.after in moved:
            yield _step(frame, record, rewrite, runs)
        else:
            yield Step(frame, record, rewrite, 0.0, 0.0, 0.0, changed_bits=False)


def _moved(runs: _Runs, first: int, last: int) -> Iterator[int]:
    """Indices of the snapshots that differ observably from the one before."""
    if first >= last or runs.same(first, last):
        return
    if last - first == 1:
        yield last
        return
    middle = (first + last) // 2
    yield from _moved(runs, first, middle)
    yield from _moved(runs, middle, last)


def _border_steps(frame: Frame, count: ReplayCount) -> Iterator[Step]:
    """Between the joint-graph and post-grad stages of an inference graph nothing may change its meaning."""
    before, after = frame.record("joint_graph", "inference"), frame.record("post_grad", "inference")
    if before is None or after is None or not before.snapshots or not after.snapshots:
        return
    inputs = _inputs(frame, after)
    if inputs is None:
        return
    pair = [before.snapshots[-1], after.snapshots[0]]
    rewrite = Rewrite(Label("post_grad", None, "before the passes"), (), None, 0, 1)
    step = _step(frame.index, after, rewrite, _Runs(pair, inputs, count))
    if step.is_semantic or step.changed_bits:
        yield step


class _Runs:
    """Replays of snapshots, each done once."""

    def __init__(self, snapshots: Sequence[Snapshot], inputs: Sequence[Any], count: ReplayCount) -> None:
        self.snapshots, self.inputs, self.count = snapshots, inputs, count
        self._done: dict[tuple[int, bool], Replayed] = {}

    def at(self, index: int, *, double: bool) -> Replayed:
        """The replay of snapshot ``index``."""
        key = (index, double)
        if key not in self._done:
            self.count.replays += 1
            self._done[key] = replay(self.snapshots[index], self.inputs, double=double)
        return self._done[key]

    def same(self, first: int, last: int) -> bool:
        """Whether two snapshots give the same bits, metadata and layouts, natively and in float64."""
        for double in (False, True):
            one, other = self.at(first, double=double), self.at(last, double=double)
            if one.error is not None or other.error is not None or _relative(one, other) != 0.0:
                return False
            if _metadata_change(one, other) or _stride_change(one, other):
                return False
        return True


def _step(frame: int, record: GraphRecord, rewrite: Rewrite, runs: _Runs) -> Step:
    before, after = rewrite.before, rewrite.after
    random = draws_random(runs.snapshots[before]) or draws_random(runs.snapshots[after])
    one, other = runs.at(before, double=False), runs.at(after, double=False)
    exact_one, exact_other = runs.at(before, double=True), runs.at(after, double=True)
    raised = None
    if other.error is not None and one.error is None:
        raised = f"{type(other.error).__name__}: {first_line(other.error)}"
    native = _relative(one, other)
    return Step(
        frame,
        record,
        rewrite,
        float64=_relative(exact_one, exact_other),
        native=native,
        native_noise=_relative(exact_one, one) or 0.0,
        changed_bits=bool(native) or raised is not None,
        metadata=_metadata_change(one, other),
        stride=_stride_change(one, other),
        raised=raised,
        random=random,
    )


def _relative(one: Replayed, other: Replayed) -> float | None:
    """Largest change of an output or mutated input, in units of its RMS size; None if not comparable."""
    if one.error is not None or other.error is not None:
        return None
    pairs = [*zip(one.outputs, other.outputs, strict=False), *zip(one.inputs, other.inputs, strict=False)]
    if len(one.outputs) != len(other.outputs):
        return None
    tensors = [
        (a, b)
        for a, b in pairs
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.shape == b.shape
    ]
    scales = [max(metrics.rms(metrics.widened(a)), metrics.rms(metrics.widened(b))) for a, b in tensors]
    floor = _VANISHING * max(scales, default=0.0)
    worst = 0.0
    for (a, b), scale in zip(tensors, scales, strict=True):
        change = metrics.largest(metrics.distance(a, b))
        if change:
            worst = max(worst, change / max(scale, floor) if max(scale, floor) else change)
    return worst


def _metadata_change(one: Replayed, other: Replayed) -> str | None:
    if one.error is not None or other.error is not None:
        return None
    for index, (a, b) in enumerate(zip(one.outputs, other.outputs, strict=False)):
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            continue
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"output {index}: {a.dtype} {tuple(a.shape)} became {b.dtype} {tuple(b.shape)}"
    return None


def _stride_change(one: Replayed, other: Replayed) -> str | None:
    if one.error is not None or other.error is not None:
        return None
    for index, (a, b) in enumerate(zip(one.outputs, other.outputs, strict=False)):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.shape == b.shape:
            before, after = significant_strides(a), significant_strides(b)
            if before != after:
                return f"output {index}: stride {before} became {after}"
    return None


# -- real inputs of each stage's graph ----------------------------------------------------------------


def _inputs(frame: Frame, record: GraphRecord) -> Sequence[Any] | None:
    if record.stage == "pre_grad":
        return frame.dynamo_calls[0].inputs if frame.dynamo_calls else None
    if record.direction == "joint":
        return _joint_inputs(frame, record)
    calls = frame.backward_calls if record.direction == "backward" else frame.forward_calls
    return calls[0].inputs if calls else None


def _joint_inputs(frame: Frame, record: GraphRecord) -> Sequence[Any] | None:
    """Primals of the forward call and tangents of the backward call, by placeholder name.

    Where no backward ran, standard normal tangents of the recorded shape stand in for them.
    """
    named = {
        **_named(frame, "forward", frame.forward_calls),
        **_named(frame, "backward", frame.backward_calls),
    }
    values: list[Any] = []
    generator = torch.Generator().manual_seed(3)
    for node in _placeholders(record.snapshots[0]):
        name = str(node.target)
        if name not in named:
            fake = node.meta.get("val")
            if not name.startswith("tangents_") or not isinstance(fake, torch.Tensor):
                return None
            try:
                shape = [int(size) for size in fake.shape]
            except Exception:
                return None
            named[name] = torch.randn(shape, generator=generator).to(fake.device, fake.dtype)
        values.append(named[name])
    return values


def _named(frame: Frame, direction: str, calls: Sequence[Any]) -> dict[str, Any]:
    record = frame.record("post_grad", direction)
    if record is None or not record.snapshots or not calls:
        return {}
    names = [str(node.target) for node in _placeholders(record.snapshots[0])]
    return dict(zip(names, calls[0].inputs, strict=False))


def _placeholders(snapshot: Snapshot) -> list[fx.Node]:
    return [node for node in snapshot.graph.nodes if node.op == "placeholder"]
