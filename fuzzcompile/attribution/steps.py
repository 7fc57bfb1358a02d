"""Replaying the ledger: how much each rewrite moved the result of its graph."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fuzzcompile.attribution.inputs import inputs_of, placeholders_of
from fuzzcompile.attribution.replays import (
    ReplayCount,
    Replays,
    alias_change,
    change_between,
    constants_of,
    epsilon,
    metadata_change,
    raised_by,
    smallest_units,
    stride_change,
)
from fuzzcompile.compiler.ledger import Frame, GraphRecord, Label, Ledger, Rewrite
from fuzzcompile.compiler.recorder import CAPTURED_CALLS
from fuzzcompile.compiler.refusing import MANDATORY
from fuzzcompile.compiler.replay import random_calls
from fuzzcompile.oracle import change
from fuzzcompile.stage_names import FREEZING, JOINT_GRAPH, POST_GRAD

_AFTER_CAPTURE = (JOINT_GRAPH, FREEZING, POST_GRAD)
# A native step below this is rounding, whatever the graph's own rounding error: 8 ulp of float32.
_NATIVE_LEAST = 1e-6

# Changes that no value shows: of an output's layout, of what shares memory, of an error that a graph raises.
Form = Literal["stride", "alias", "silenced"]


@dataclass(frozen=True)
class Step:
    """Effect of one rewrite on its graph's outputs and mutated inputs, on the program's real inputs.

    ``float64`` and ``native`` are the largest change in units of the output's RMS size; None where the graph
    could not be replayed that way. ``stride`` names an output whose layout changed and ``alias`` one that shares memory
    with others than before, which matters only where the user sees it. ``raised`` is set where the graph ran before
    the rewrite and not after, ``silenced`` where it raised before and not after (which matters only where eager
    raises), ``folded`` where the rewrite put constants into the graph. ``float64_noise`` is what one ulp of float64 per
    operator does to the result, looked at where the step is large.
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
    alias: str | None = None
    raised: str | None = None
    silenced: str | None = None
    random: bool = False
    float64_noise: float = 0.0
    folded: bool = False

    @property
    def label(self) -> Label:
        """The rule that was applied."""
        return self.rewrite.label

    @property
    def is_semantic(self) -> bool:
        """Return whether the rewrite changed what the graph means, and not only how it rounds."""
        if self.random:
            return False
        if self.raised or self.metadata:
            return True
        if self.folded and self.native == 0.0:
            return False  # constants folded in the program's own precision: float64 alone sees a change
        return self.moves_float64

    @property
    def moves_float64(self) -> bool:
        """Return whether the float64 result moved by more than float64 rounding, as this program amplifies it."""
        return self.float64 is not None and change.changes_meaning(self.float64, self.float64_noise)

    @property
    def is_opaque(self) -> bool:
        """Return whether the rewrite put a lowering in the place of operators.

        Replay runs the operators that it stands for, so a wrong lowering shows no step.
        """
        snapshots, rewrite = self.record.snapshots, self.rewrite
        return len(snapshots[rewrite.after].opaque) > len(snapshots[rewrite.before].opaque)

    @property
    def moves_natively(self) -> bool:
        """Return whether the native result moved farther than the graph's own rounding explains."""
        if self.random or self.native is None:
            return False
        return self.native > max(change.NATIVE * self.native_noise, _NATIVE_LEAST)


def steps_of(ledger: Ledger, count: ReplayCount) -> list[Step]:
    """Replay every snapshot of the ledger on the captured inputs and measure every rewrite's step."""
    return [step for frame in ledger.frames for step in _frame_steps(frame, count)]


def suspects_of(steps: Sequence[Step], shown: Collection[Form] = ()) -> list[Step]:
    """Steps that may be the culprit, most telling first: changes of meaning, then unexplained native ones.

    Changes of a form in ``shown`` come last: they are at fault only where the user sees such a difference.
    """
    semantic = [step for step in steps if step.is_semantic]
    native = [step for step in steps if not step.is_semantic and step.moves_natively]
    rest = [step for step in steps if step not in semantic and step not in native]
    form = [step for step in rest if any(getattr(step, name) for name in shown)]
    return [step for step in (*semantic, *native, *form) if step.label.rewrite not in MANDATORY]


def changing_meaning(steps: Sequence[Step]) -> list[Step]:
    """Steps whose values in float64 prove that a rewrite changed what the graph computes."""
    return [step for step in suspects_of(steps) if not step.random and step.moves_float64]


def _frame_steps(frame: Frame, count: ReplayCount) -> Iterator[Step]:
    for record in frame.records:
        if not record.rewrites or not record.snapshots:
            continue
        yield from _over_calls(frame, record, count)
    yield from _boundary_steps(frame, count)


def _over_calls(frame: Frame, record: GraphRecord, count: ReplayCount) -> list[Step]:
    """One step per rewrite: a rewrite may be right on the values of one call and wrong on those of another."""
    most: list[Step] = []
    for number in range(CAPTURED_CALLS):
        inputs = inputs_of(frame, record, number)
        if inputs is None:
            break
        steps = list(_record_steps(frame.index, record, inputs, count))
        most = [max(same, key=_telling) for same in zip(most, steps, strict=True)] if most else steps
        if any(step.is_semantic or step.moves_natively for step in most):
            break
    return most


def _telling(step: Step) -> tuple[bool, bool, float]:
    return step.is_semantic, step.moves_natively, step.float64 or 0.0


def _record_steps(frame: int, record: GraphRecord, inputs: Sequence[Any], count: ReplayCount) -> Iterator[Step]:
    """One step per rewrite, in order.

    Most rewrites change nothing that can be observed, so whole runs of them are settled by comparing the
    graphs at their two ends, and only where these differ is there a look inside.
    """
    runs = Replays(record.snapshots, inputs, count)
    moved = set(_moved(runs, 0, len(record.snapshots) - 1))
    for rewrite in record.rewrites:
        if rewrite.after in moved:
            yield _step(frame, record, rewrite, runs)
        else:
            yield Step(frame, record, rewrite, 0.0, 0.0, 0.0, changed_bits=False)


def _moved(runs: Replays, first: int, last: int) -> Iterator[int]:
    """Indices of the snapshots that differ observably from the one before."""
    if first >= last or runs.same(first, last):
        return
    if last - first == 1:
        yield last
        return
    middle = (first + last) // 2
    yield from _moved(runs, first, middle)
    yield from _moved(runs, middle, last)


def _boundary_steps(frame: Frame, count: ReplayCount) -> Iterator[Step]:
    """Between the stages of an inference graph nothing may change its meaning; parameters may become constants."""
    stages = [r for r in frame.records if r.stage in _AFTER_CAPTURE and r.direction == "inference" and r.snapshots]
    for before, after in itertools.pairwise(stages):
        pair = [before.snapshots[-1], after.snapshots[0]]
        inputs = inputs_of(frame, after)
        if inputs is None or len(placeholders_of(pair[0])) != len(placeholders_of(pair[1])):
            continue
        rewrite = Rewrite(Label(after.stage, None, "before the passes"), (), None, 0, 1)
        between = GraphRecord(after.stage, "inference", pair, [rewrite])
        step = _step(frame.index, between, rewrite, Replays(pair, inputs, count))
        if step.is_semantic or step.changed_bits:
            yield step


def _step(frame: int, record: GraphRecord, rewrite: Rewrite, runs: Replays) -> Step:
    before, after = rewrite.before, rewrite.after
    random = random_calls(runs.snapshots[before]) != random_calls(runs.snapshots[after])
    native_before, native_after = runs.at(before, double=False), runs.at(after, double=False)
    exact_before, exact_after = runs.at(before, double=True), runs.at(after, double=True)
    units = smallest_units(native_before, exact_before)
    native = change_between(native_before, native_after, units)
    noise = change_between(exact_before, native_before, units)
    step = change_between(exact_before, exact_after, units)
    amplified = 0.0
    if step is not None and step > change.SEMANTIC_STEP:
        amplified = change_between(exact_before, runs.perturbed(before), units) or 0.0
    return Step(
        frame,
        record,
        rewrite,
        float64=step,
        native=native,
        native_noise=epsilon(native_before) if noise is None else noise,
        changed_bits=bool(native) or (native_before.error is None) != (native_after.error is None),
        metadata=metadata_change(native_before, native_after),
        stride=stride_change(native_before, native_after),
        alias=alias_change(native_before, native_after),
        raised=raised_by(native_after) if native_before.error is None else None,
        silenced=raised_by(native_before) if native_after.error is None else None,
        random=random,
        float64_noise=amplified,
        folded=bool(constants_of(runs.snapshots[after]) - constants_of(runs.snapshots[before])),
    )
