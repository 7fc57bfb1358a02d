"""Replays of the ledger's graphs on the program's inputs, and the step by which each rewrite moves a result."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import fx

from fuzzcompile.compiler.functional_run import NodeRun
from fuzzcompile.compiler.graph_replay import (
    NotReplayable,
    ReplayResult,
    draw_alike,
    is_strided,
    keep_writes_apart,
    list_random_calls,
    replay_graph,
)
from fuzzcompile.compiler.target.target_process import find_value_device
from fuzzcompile.compiler.watch.ledger import CallInputs, Frame, GraphRecord, Label, Ledger, Rewrite, Snapshot
from fuzzcompile.compiler.watch.recorder import CAPTURED_CALLS, MANDATORY
from fuzzcompile.diagnosis.oracle import rounding
from fuzzcompile.model.stages import FREEZING, JOINT_GRAPH, POST_GRAD, PRE_GRAD
from fuzzcompile.model.thresholds import (
    LEAST_NATIVE_STEP,
    NATIVE_DIGITS,
    ROUNDING_FACTOR,
    SEMANTIC_STEP,
    SHRINKING,
    VANISHING,
)
from fuzzcompile.run import metrics
from fuzzcompile.run.device import shorten_message
from fuzzcompile.run.tensors import find_aliases, list_significant_strides, measure_storages

# Values to replay a stage's graph on: those that the compiled program really got, or stand-ins for them.

_STAND_IN_SEED = 3


def find_inputs(frame: Frame, record: GraphRecord, number: int = 0) -> Sequence[Any] | None:
    """Inputs of a record's graphs in the captured call ``number``, in the order of the placeholders.

    Where the program never ran, because compiling failed, values of the recorded shape and dtype stand in. None if
    there was no such call, or if no stand-ins can be made.
    """
    this = slice(number, number + 1)
    placeholders = list_placeholders(record.snapshots[0])
    if record.direction == "joint":
        # Primals and tangents; where no backward ran, standard normal tangents stand in for them. What both have is
        # the forward call's: the backward pass of a later call may run before that of an earlier one.
        calls = {"backward": frame.backward_calls[this], "forward": frame.forward_calls[this]}
        named = {name: value for of, made in calls.items() for name, value in _name_inputs(frame, of, made)}
        return None if number and not named else _fill_placeholders(placeholders, named)
    if record.stage == PRE_GRAD:
        candidates = frame.dynamo_calls[this]
    elif record.direction == "backward":
        candidates = frame.backward_calls[this]
    else:
        compiled = frame.forward_calls[this]
        captured = [[*frame.parameters, *call] for call in frame.dynamo_calls[this]]
        candidates = [*compiled, *captured]
    if not candidates:
        return _fill_placeholders(placeholders, {}) if number == 0 else None
    # Freezing turns parameters into constants between the stages: the graph before it takes them as inputs.
    return next((inputs for inputs in candidates if len(inputs) == len(placeholders)), None)


def _name_inputs(frame: Frame, direction: str, calls: Sequence[CallInputs]) -> Iterator[tuple[str, Any]]:
    record = frame.find_record(POST_GRAD, direction)
    if record is not None and record.snapshots and calls:
        names = [str(node.target) for node in list_placeholders(record.snapshots[0])]
        yield from zip(names, calls[0], strict=False)


def _fill_placeholders(placeholders: Sequence[fx.Node], named: dict[str, Any]) -> Sequence[Any] | None:
    generator = torch.Generator().manual_seed(_STAND_IN_SEED)
    try:
        return [
            _cast_as_traced(node, named[str(node.target)])
            if str(node.target) in named
            else _make_stand_in(node, generator)
            for node in placeholders
        ]
    except (TypeError, ValueError, RuntimeError):  # a size without a value, a kind of input that we do not know
        return None


def _cast_as_traced(node: fx.Node, value: Any) -> Any:
    """Cast a captured value to the dtype that the graph was traced with.

    Where a rewrite gave an output another dtype, its tangent came in that dtype too; the graph before takes none such.
    """
    traced = node.meta.get("val")
    if not (isinstance(traced, torch.Tensor) and isinstance(value, torch.Tensor)) or not value.is_floating_point():
        return value
    return value.to(traced.dtype) if traced.is_floating_point() else value


def _make_stand_in(node: fx.Node, generator: torch.Generator) -> Any:
    """Standard normal values, zeros for integers (may be indices) and False, in the recorded memory and layout.

    An input of dynamo's graph requires gradients as it did.
    """
    value = node.meta.get("val", node.meta.get("example_value"))
    if isinstance(value, (int, torch.SymInt)):
        return int(value)
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"no stand-in for {type(value).__name__}")
    shape, stride = [int(size) for size in value.shape], [int(step) for step in value.stride()]
    # All of the memory that it is a view of: the program may read and write more of it than the view holds.
    length = int(value.untyped_storage().nbytes()) // value.element_size()
    memory = torch.zeros(length, dtype=value.dtype, device=find_value_device(value.device))
    if value.is_floating_point():  # element by element of memory: an expanded tensor cannot be written to
        memory.copy_(torch.randn(length, generator=generator))
    given = memory.as_strided(shape, stride, int(value.storage_offset()))
    return given.requires_grad_(value.requires_grad and "example_value" in node.meta)


def list_placeholders(snapshot: Snapshot) -> list[fx.Node]:
    """The inputs of a snapshot's graph, in order."""
    return [node for node in snapshot.graph.nodes if node.op == "placeholder"]


# Replays of one graph's snapshots, each made once, and what differs between two of them.

_CONSTANTS = (torch.ops.aten.full.default, torch.ops.aten.scalar_tensor.default)
# Results of replays are kept for later comparisons up to this size, and those of two graphs (native, float64) always.
_KEPT_BYTES = 256 * 2**20
_FEWEST_KEPT = 4


class SnapshotReplays:
    """Replays of snapshots, each done once unless they take too much memory to be kept."""

    def __init__(self, snapshots: Sequence[Snapshot], inputs: Sequence[object]) -> None:
        self.snapshots, self.inputs = snapshots, inputs
        self._done: dict[tuple[int, bool], tuple[ReplayResult, int]] = {}  # the latest to be asked for comes last
        self._captured = set(measure_storages(inputs))

    def at(self, index: int, *, double: bool) -> ReplayResult:
        """The replay of snapshot ``index``."""
        key = (index, double)
        if key in self._done:
            self._done[key] = self._done.pop(key)
        else:
            # Forget what was asked for longest ago; a comparison needs the remaining runs of its pair.
            while len(self._done) >= _FEWEST_KEPT and sum(size for _, size in self._done.values()) > _KEPT_BYTES:
                del self._done[next(iter(self._done))]
            run = replay_graph(self.snapshots[index], self.inputs, double=double)
            sizes = measure_storages(_results(run))
            self._done[key] = run, sum(size for storage, size in sizes.items() if storage not in self._captured)
        return self._done[key][0]

    def have_same_result(self, first: int, last: int) -> bool:
        """Return whether two snapshots give the same bits, metadata and layouts, natively and in float64."""
        for double in (False, True):
            before, after = self.at(first, double=double), self.at(last, double=double)
            if before.error is not None or after.error is not None or measure_change(before, after) != 0.0:
                return False
            if not double and describe_changes(before, after):
                return False
        return True


def describe_raised(run: ReplayResult) -> str | None:
    """The error of the program in a replay; None where there is none."""
    if run.error is None or isinstance(run.error, NotReplayable):
        return None
    return f"{type(run.error).__name__}: {shorten_message(run.error)}"


def measure_change(before: ReplayResult, after: ReplayResult, units: Sequence[float] = ()) -> float | None:
    """Largest change of an output or mutated input, in units of its RMS size; None if not comparable.

    ``units`` are a smallest unit for each result, outputs first.
    """
    if before.error is not None or after.error is not None or len(before.outputs) != len(after.outputs):
        return None
    return rounding.largest_change(_results(before), _results(after), units)


def find_smallest_units(native: ReplayResult, exact: ReplayResult) -> list[float]:
    """A smallest unit for each result: the size of the usual outputs for those that are zero by symmetry."""
    if native.error is not None or exact.error is not None:
        return []
    sizes = sorted(size for size in map(rounding.measure_size, exact.outputs) if size)
    usual = sizes[(len(sizes) - 1) // 2] if sizes else 0.0
    pairs = zip(_results(native), _results(exact), strict=True)
    return [0.0 if result is wide or _has_scale(result, wide, usual) else usual for result, wide in pairs]


def _has_scale(native: object, exact: object, usual: float) -> bool:
    size = rounding.measure_size(exact)
    if size > max(SHRINKING * rounding.measure_size(native), VANISHING * usual):
        return True
    # Small numbers on which both precisions agree are a result of that scale.
    if not size or not isinstance(native, torch.Tensor) or not isinstance(exact, torch.Tensor):
        return False
    return native.shape == exact.shape and metrics.largest_distance(native, exact) <= NATIVE_DIGITS * size


def _results(run: ReplayResult) -> list[object]:
    return [*run.outputs, *run.inputs]


def coarsest_epsilon(run: ReplayResult) -> float:
    """The coarsest rounding unit among the floating outputs; 0 where there is none."""
    floating = [v.dtype for v in run.outputs if isinstance(v, torch.Tensor) and v.dtype.is_floating_point]
    return max((torch.finfo(dtype).eps for dtype in floating), default=0.0)


def list_constants(snapshot: Snapshot) -> set[str]:
    """Names of the nodes that hold constants."""
    return {
        node.name
        for node in snapshot.graph.nodes
        if node.op == "get_attr" or (node.op == "call_function" and node.target in _CONSTANTS)
    }


def describe_changes(before: ReplayResult, after: ReplayResult) -> dict[str, str]:
    """What else changed than values: ``metadata`` (dtype or shape), ``stride`` and ``alias``, each of the first output.

    Nothing if one of the graphs does not run.
    """
    changes: dict[str, str] = {}
    if before.error is not None or after.error is not None:
        return changes
    for index, (was, now) in enumerate(zip(before.outputs, after.outputs, strict=False)):
        if not isinstance(was, torch.Tensor) or not isinstance(now, torch.Tensor):
            continue
        strides = list_significant_strides(was), list_significant_strides(now)
        forms = [f"{value.dtype} {tuple(value.shape)}" for value in (was, now)]
        if forms[0] != forms[1]:
            changes.setdefault("metadata", f"output {index}: {forms[0]} became {forms[1]}")
        if was.shape == now.shape and strides[0] != strides[1]:
            changes.setdefault("stride", f"output {index}: stride {strides[0]} became {strides[1]}")
    memory = find_shared_memory(before), find_shared_memory(after)
    for name in dict.fromkeys((*memory[0], *memory[1])):
        if memory[0].get(name) != memory[1].get(name):
            owners = [f"memory of {', '.join(shared[name])}" if name in shared else "its own" for shared in memory]
            changes.setdefault("alias", f"{name}: {owners[0]} became {owners[1]}")
    return changes


def find_shared_memory(run: ReplayResult | NodeRun) -> dict[str, tuple[str, ...]]:
    """Map each output that shares memory to the inputs and earlier outputs that it shares memory with."""
    named = {f"input {i}": value for i, value in enumerate(run.inputs)}
    named |= {f"output {i}": value for i, value in enumerate(run.outputs)}
    return {name: owners for name, owners in find_aliases(named).items() if name.startswith("output")}


_AFTER_CAPTURE = (JOINT_GRAPH, FREEZING, POST_GRAD)

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
    operator does to the result, ``by_writes`` whether the step is one by what is read of written memory alone, and
    ``reordered`` whether the results hold the same numbers in another order; all are looked at where the step is large.
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
    by_writes: bool = False
    reordered: bool = False
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
        return self.float64 is not None and rounding.changes_meaning(self.float64, self.float64_noise)

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
        return self.native > max(ROUNDING_FACTOR * self.native_noise, LEAST_NATIVE_STEP)


def measure_steps(ledger: Ledger) -> list[Step]:
    """Replay every snapshot of the ledger on the captured inputs and measure every rewrite's step."""
    steps: list[Step] = []
    for frame in ledger.frames:
        for record in frame.records:
            if record.rewrites and record.snapshots:
                steps += _merge_calls(frame, record)
        steps += _measure_boundaries(frame)
    return steps


def rank_suspects(steps: Sequence[Step], shown: Collection[Form] = ()) -> list[Step]:
    """Steps that may be the culprit, most telling first: changes of meaning, then unexplained native ones.

    Changes of a form in ``shown`` come last: they are at fault only where the user sees such a difference.
    """
    semantic = [step for step in steps if step.is_semantic]
    native = [step for step in steps if not step.is_semantic and step.moves_natively]
    rest = [step for step in steps if step not in semantic and step not in native]
    form = [step for step in rest if any(getattr(step, name) for name in shown)]
    return [step for step in (*semantic, *native, *form) if step.label.rewrite not in MANDATORY]


def select_semantic_steps(steps: Sequence[Step]) -> list[Step]:
    """Steps whose values in float64 prove that a rewrite changed what the graph computes."""
    return [step for step in rank_suspects(steps) if not step.random and step.moves_float64]


def _merge_calls(frame: Frame, record: GraphRecord) -> list[Step]:
    """One step per rewrite: a rewrite may be right on the values of one call and wrong on those of another."""
    most: list[Step] = []
    for number in range(CAPTURED_CALLS):
        inputs = find_inputs(frame, record, number)
        if inputs is None:
            break
        steps = list(_measure_record(frame.index, record, inputs))
        most = [max(same, key=_rank) for same in zip(most, steps, strict=True)] if most else steps
        if any(step.is_semantic or step.moves_natively for step in most):
            break
    return most


def _rank(step: Step) -> tuple[bool, bool, float]:
    return step.is_semantic, step.moves_natively, step.float64 or 0.0


def _measure_record(frame: int, record: GraphRecord, inputs: Sequence[Any]) -> Iterator[Step]:
    """One step per rewrite, in order.

    Most rewrites change nothing that can be observed, so whole runs of them are settled by comparing the
    graphs at their two ends, and only where these differ is there a look inside.
    """
    runs = SnapshotReplays(record.snapshots, inputs)

    def find_moved(first: int, last: int) -> Iterator[int]:
        if first >= last or runs.have_same_result(first, last):
            return
        if last - first == 1:
            yield last
            return
        middle = (first + last) // 2
        yield from find_moved(first, middle)
        yield from find_moved(middle, last)

    moved = set(find_moved(0, len(record.snapshots) - 1))
    for rewrite in record.rewrites:
        if rewrite.after in moved:
            yield _measure_step(frame, record, rewrite, runs)
        else:
            yield Step(frame, record, rewrite, 0.0, 0.0, 0.0, changed_bits=False)


def _measure_boundaries(frame: Frame) -> Iterator[Step]:
    """Between the stages of an inference graph nothing may change its meaning; parameters may become constants."""
    stages = [r for r in frame.records if r.stage in _AFTER_CAPTURE and r.direction == "inference" and r.snapshots]
    for before, after in itertools.pairwise(stages):
        pair = [before.snapshots[-1], after.snapshots[0]]
        inputs = find_inputs(frame, after)
        if inputs is None or len(list_placeholders(pair[0])) != len(list_placeholders(pair[1])):
            continue
        rewrite = Rewrite(Label(after.stage, None, "before the passes"), (), None, 0, 1)
        between = GraphRecord(after.stage, "inference", pair, [rewrite])
        step = _measure_step(frame.index, between, rewrite, SnapshotReplays(pair, inputs))
        if step.is_semantic or step.changed_bits:
            yield step


def _measure_step(frame: int, record: GraphRecord, rewrite: Rewrite, runs: SnapshotReplays) -> Step:
    before, after = rewrite.before, rewrite.after
    random = list_random_calls(runs.snapshots[before]) != list_random_calls(runs.snapshots[after])
    native_before, native_after = runs.at(before, double=False), runs.at(after, double=False)
    exact_before, exact_after = runs.at(before, double=True), runs.at(after, double=True)
    units = find_smallest_units(native_before, exact_before)
    native = measure_change(native_before, native_after, units)
    noise = measure_change(exact_before, native_before, units)
    step = measure_change(exact_before, exact_after, units)
    amplified, by_writes, reordered = 0.0, False, False
    if step is not None and step > SEMANTIC_STEP:
        calls = list_random_calls(runs.snapshots[before])
        random = random or (bool(calls) and not draw_alike(runs.snapshots[before], runs.snapshots[after], runs.inputs))
        # One ulp of noise per operator.
        perturbed = replay_graph(runs.snapshots[before], runs.inputs, double=True, noise_seed=1)
        amplified = measure_change(exact_before, perturbed, units) or 0.0
        by_writes = _moves_by_writes(runs.snapshots[before], runs.snapshots[after], runs.inputs)
        reordered = all(map(_hold_same_numbers, _results(exact_before), _results(exact_after)))
    return Step(
        frame,
        record,
        rewrite,
        float64=step,
        native=native,
        native_noise=coarsest_epsilon(native_before) if noise is None else noise,
        changed_bits=bool(native) or (native_before.error is None) != (native_after.error is None),
        **describe_changes(native_before, native_after),
        raised=describe_raised(native_after) if native_before.error is None else None,
        silenced=describe_raised(native_before) if native_after.error is None else None,
        random=random,
        float64_noise=amplified,
        by_writes=by_writes,
        reordered=reordered,
        folded=bool(list_constants(runs.snapshots[after]) - list_constants(runs.snapshots[before])),
    )


def _hold_same_numbers(first: object, second: object) -> bool:
    if not (isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)):
        return first == second
    if not (is_strided(first) and is_strided(second)) or first.numel() != second.numel() or first.is_complex():
        return False
    return torch.equal(first.flatten().sort().values, second.flatten().sort().values)


def _moves_by_writes(before: Snapshot, after: Snapshot, inputs: Sequence[object]) -> bool:
    """Return whether two graphs that differ agree once what they write is kept apart from what they read."""
    apart = [graph for graph in map(keep_writes_apart, (before, after)) if graph is not None]
    if len(apart) < 2:
        return False
    # What is copied into inputs is among the results; what else is written to them is what is asked about.
    former, latter = (replace(replay_graph(graph, inputs, double=True), inputs=[]) for graph in apart)
    change = measure_change(former, latter)
    return change is not None and change <= SEMANTIC_STEP
