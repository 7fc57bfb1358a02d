"""Replaying the ledger: how much each rewrite moved the result of its graph."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from fuzzcompile.attribution.inputs import inputs_of, placeholders_of
from fuzzcompile.compiler.ledger import Frame, GraphRecord, Label, Ledger, Rewrite, Snapshot
from fuzzcompile.compiler.recorder import CAPTURED_CALLS
from fuzzcompile.compiler.refusing import MANDATORY
from fuzzcompile.compiler.replay import NotReplayable, Replayed, random_calls, replay
from fuzzcompile.execution.exhaustion import first_line
from fuzzcompile.execution.memory import aliases
from fuzzcompile.execution.tensors import significant_strides, storages
from fuzzcompile.oracle import change, metrics
from fuzzcompile.stage_names import FREEZING, JOINT_GRAPH, POST_GRAD

# Results that shrink by more than this when computed in float64 are zero by symmetry, with nothing but
# rounding in them; so are those this much smaller than their graph's usual results. They are measured on the
# scale of the usual results: on their own, rounding alone moves them by 100 %.
_SHRINKS = 1e-6
_VANISHING = 1e-11
# A small result is one where native precision gives it to within so much of its size.
_DIGITS = 0.01
_AFTER_CAPTURE = (JOINT_GRAPH, FREEZING, POST_GRAD)
_CONSTANTS = (torch.ops.aten.full.default, torch.ops.aten.scalar_tensor.default)
# A native step below this is rounding, whatever the graph's own rounding error: 8 ulp of float32.
_NATIVE_LEAST = 1e-6
# Results of replays are kept for later comparisons up to this size, and those of two graphs (native, float64) always.
_KEPT_BYTES = 256 * 2**20
_FEWEST_KEPT = 4

# Changes that no value shows: of an output's layout, of what shares memory, of an error that a graph raises.
Form = Literal["stride", "alias", "silenced"]


@dataclass(frozen=True)
class Step:
    """What one rewrite did to its graph's outputs and mutated inputs, on the program's real inputs.

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
        """Whether the rewrite changed what the graph means, and not only how it rounds."""
        if self.random:
            return False
        if self.raised or self.metadata:
            return True
        if self.folded and self.native == 0.0:
            return False  # constants folded in the program's own precision: float64 alone sees a change
        return self.moves_float64

    @property
    def moves_float64(self) -> bool:
        """Whether the float64 result moved by more than rounding, that of float64 where a program amplifies it."""
        return self.float64 is not None and change.changes_meaning(self.float64, self.float64_noise)

    @property
    def is_opaque(self) -> bool:
        """Whether the rewrite put a lowering in the place of operators.

        Replay runs the operators that it stands for, so a wrong lowering shows no step.
        """
        snapshots, rewrite = self.record.snapshots, self.rewrite
        return len(snapshots[rewrite.after].opaque) > len(snapshots[rewrite.before].opaque)

    @property
    def moves_natively(self) -> bool:
        """Whether the native result moved farther than the graph's own rounding explains."""
        if self.random or self.native is None:
            return False
        return self.native > max(change.NATIVE * self.native_noise, _NATIVE_LEAST)


@dataclass
class ReplayCount:
    """How many graph replays were run, for the cost table."""

    replays: int = 0


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
    yield from _border_steps(frame, count)


def _over_calls(frame: Frame, record: GraphRecord, count: ReplayCount) -> list[Step]:
    """One step per rewrite: a rewrite may be right on the values of one call and wrong on those of another."""
    most: list[Step] = []
    for number in range(CAPTURED_CALLS):
        inputs = inputs_of(frame, record, number)
        if inputs is None:
            break
        found = list(_record_steps(frame.index, record, inputs, count))
        most = [max(same, key=_telling) for same in zip(most, found, strict=True)] if most else found
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
    """Between the stages of an inference graph nothing may change its meaning; parameters may become constants."""
    stages = [r for r in frame.records if r.stage in _AFTER_CAPTURE and r.direction == "inference" and r.snapshots]
    for before, after in itertools.pairwise(stages):
        pair = [before.snapshots[-1], after.snapshots[0]]
        inputs = inputs_of(frame, after)
        if inputs is None or len(placeholders_of(pair[0])) != len(placeholders_of(pair[1])):
            continue
        rewrite = Rewrite(Label(after.stage, None, "before the passes"), (), None, 0, 1)
        between = GraphRecord(after.stage, "inference", pair, [rewrite])
        step = _step(frame.index, between, rewrite, _Runs(pair, inputs, count))
        if step.is_semantic or step.changed_bits:
            yield step


class _Runs:
    """Replays of snapshots, each done once unless they take too much memory to be kept."""

    def __init__(self, snapshots: Sequence[Snapshot], inputs: Sequence[Any], count: ReplayCount) -> None:
        self.snapshots, self.inputs, self.count = snapshots, inputs, count
        self._done: dict[tuple[int, bool], tuple[Replayed, int]] = {}  # the one asked for last comes last
        self._captured = set(storages(inputs))

    def at(self, index: int, *, double: bool) -> Replayed:
        """The replay of snapshot ``index``."""
        key = (index, double)
        if key in self._done:
            self._done[key] = self._done.pop(key)
        else:
            self._make_room()
            self.count.replays += 1
            run = replay(self.snapshots[index], self.inputs, double=double)
            sizes = storages(_results(run))
            self._done[key] = run, sum(size for storage, size in sizes.items() if storage not in self._captured)
        return self._done[key][0]

    def perturbed(self, index: int) -> Replayed:
        """A replay of snapshot ``index`` in float64 with one ulp of noise per operator."""
        self.count.replays += 1
        return replay(self.snapshots[index], self.inputs, double=True, noise_seed=1)

    def _make_room(self) -> None:
        """Forget what was asked for longest ago; a comparison needs the other runs of its pair."""
        while len(self._done) >= _FEWEST_KEPT and sum(size for _, size in self._done.values()) > _KEPT_BYTES:
            del self._done[next(iter(self._done))]

    def same(self, first: int, last: int) -> bool:
        """Whether two snapshots give the same bits, metadata and layouts, natively and in float64."""
        for double in (False, True):
            one, other = self.at(first, double=double), self.at(last, double=double)
            if one.error is not None or other.error is not None or _relative(one, other) != 0.0:
                return False
            if not double and (_metadata_change(one, other) or _stride_change(one, other) or _alias_change(one, other)):
                return False
        return True


def _step(frame: int, record: GraphRecord, rewrite: Rewrite, runs: _Runs) -> Step:
    before, after = rewrite.before, rewrite.after
    random = random_calls(runs.snapshots[before]) != random_calls(runs.snapshots[after])
    one, other = runs.at(before, double=False), runs.at(after, double=False)
    exact_one, exact_other = runs.at(before, double=True), runs.at(after, double=True)
    units = _units(one, exact_one)
    native, noise = _relative(one, other, units), _relative(exact_one, one, units)
    step = _relative(exact_one, exact_other, units)
    amplified = 0.0
    if step is not None and step > change.SEMANTIC_STEP:
        amplified = _relative(exact_one, runs.perturbed(before), units) or 0.0
    return Step(
        frame,
        record,
        rewrite,
        float64=step,
        native=native,
        native_noise=epsilon(one) if noise is None else noise,
        changed_bits=bool(native) or (one.error is None) != (other.error is None),
        metadata=_metadata_change(one, other),
        stride=_stride_change(one, other),
        alias=_alias_change(one, other),
        raised=_raised(other) if one.error is None else None,
        silenced=_raised(one) if other.error is None else None,
        random=random,
        float64_noise=amplified,
        folded=bool(_constants(runs.snapshots[after]) - _constants(runs.snapshots[before])),
    )


def _raised(run: Replayed) -> str | None:
    """The error of the program in a replay; None where there is none."""
    if run.error is None or isinstance(run.error, NotReplayable):
        return None
    return f"{type(run.error).__name__}: {first_line(run.error)}"


def _relative(one: Replayed, other: Replayed, units: Sequence[float] = ()) -> float | None:
    """Largest change of an output or mutated input, in units of its RMS size; None if not comparable.

    ``units`` holds a smallest unit for each result.
    """
    if one.error is not None or other.error is not None or len(one.outputs) != len(other.outputs):
        return None
    return change.largest_change(_results(one), _results(other), units)


def _units(native: Replayed, exact: Replayed) -> list[float]:
    """A smallest unit for each result: the size of the usual outputs for those that are zero by symmetry."""
    if native.error is not None or exact.error is not None:
        return []
    sizes = sorted(size for size in map(change.size_of, exact.outputs) if size)
    usual = sizes[(len(sizes) - 1) // 2] if sizes else 0.0
    return [
        0.0 if _has_scale(one, other, usual) else usual
        for one, other in zip(_results(native), _results(exact), strict=True)
    ]


def _has_scale(native: Any, exact: Any, usual: float) -> bool:
    """Whether a result has a scale of its own, and is not zero by symmetry."""
    least = max(_SHRINKS * change.size_of(native), _VANISHING * usual)
    return _has_digits(native, exact) or change.size_of(exact) > least


def _has_digits(native: Any, exact: Any) -> bool:
    """Whether both precisions give the same small numbers: they are a result of that scale, and no zero."""
    size = change.size_of(exact)
    if not size or not change.comparable(native, exact):
        return False
    return metrics.farthest(native, exact) <= _DIGITS * size


def _results(run: Replayed) -> list[Any]:
    return [*run.outputs, *run.inputs]


def epsilon(run: Replayed) -> float:
    """The coarsest rounding unit among the floating outputs; 0 where there is none."""
    floating = [v.dtype for v in run.outputs if isinstance(v, torch.Tensor) and v.dtype.is_floating_point]
    return max((torch.finfo(dtype).eps for dtype in floating), default=0.0)


def _constants(snapshot: Snapshot) -> set[str]:
    """Names of the nodes that hold constants."""
    return {
        node.name
        for node in snapshot.graph.nodes
        if node.op == "get_attr" or (node.op == "call_function" and node.target in _CONSTANTS)
    }


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


def _alias_change(one: Replayed, other: Replayed) -> str | None:
    """The first output that shares memory with other inputs or outputs than before."""
    if one.error is not None or other.error is not None:
        return None
    before, after = _shared(one), _shared(other)
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) != after.get(name):
            told = [f"memory of {', '.join(found[name])}" if name in found else "its own" for found in (before, after)]
            return f"{name}: {told[0]} became {told[1]}"
    return None


def _shared(run: Replayed) -> dict[str, tuple[str, ...]]:
    """Which outputs share memory, and with which inputs and outputs before them."""
    named = {f"input {i}": value for i, value in enumerate(run.inputs)}
    named |= {f"output {i}": value for i, value in enumerate(run.outputs)}
    return {name: others for name, others in aliases(named).items() if name.startswith("output")}
