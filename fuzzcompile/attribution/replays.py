"""Replays of one graph's snapshots, each made once, and what differs between two of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from fuzzcompile.compiler.functional import NodeRun
from fuzzcompile.compiler.ledger import Snapshot
from fuzzcompile.compiler.replay import NotReplayable, Replayed, replay
from fuzzcompile.execution.exhaustion import first_line
from fuzzcompile.execution.memory import aliases
from fuzzcompile.execution.tensors import significant_strides, storages
from fuzzcompile.oracle import change, metrics

# Results that shrink by more than this when computed in float64 are zero by symmetry, with nothing but
# rounding in them; so are those this much smaller than their graph's usual results. They are measured on the
# scale of the usual results: on their own, rounding alone moves them by 100 %.
_SHRINKS = 1e-6
_VANISHING = 1e-11
# A small result is one where native precision gives it to within so much of its size.
_DIGITS = 0.01
_CONSTANTS = (torch.ops.aten.full.default, torch.ops.aten.scalar_tensor.default)
# Results of replays are kept for later comparisons up to this size, and those of two graphs (native, float64) always.
_KEPT_BYTES = 256 * 2**20
_FEWEST_KEPT = 4


@dataclass
class ReplayCount:
    """Number of graph replays run so far, for the cost table."""

    replays: int = 0


class Replays:
    """Replays of snapshots, each done once unless they take too much memory to be kept."""

    def __init__(self, snapshots: Sequence[Snapshot], inputs: Sequence[object], count: ReplayCount) -> None:
        self.snapshots, self.inputs, self.count = snapshots, inputs, count
        self._done: dict[tuple[int, bool], tuple[Replayed, int]] = {}  # the latest to be asked for comes last
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
        """Forget what was asked for longest ago; a comparison needs the remaining runs of its pair."""
        while len(self._done) >= _FEWEST_KEPT and sum(size for _, size in self._done.values()) > _KEPT_BYTES:
            del self._done[next(iter(self._done))]

    def same(self, first: int, last: int) -> bool:
        """Return whether two snapshots give the same bits, metadata and layouts, natively and in float64."""
        for double in (False, True):
            before, after = self.at(first, double=double), self.at(last, double=double)
            if before.error is not None or after.error is not None or change_between(before, after) != 0.0:
                return False
            if not double and (
                metadata_change(before, after) or stride_change(before, after) or alias_change(before, after)
            ):
                return False
        return True


def raised_by(run: Replayed) -> str | None:
    """The error of the program in a replay; None where there is none."""
    if run.error is None or isinstance(run.error, NotReplayable):
        return None
    return f"{type(run.error).__name__}: {first_line(run.error)}"


def change_between(before: Replayed, after: Replayed, units: Sequence[float] = ()) -> float | None:
    """Largest change of an output or mutated input, in units of its RMS size; None if not comparable.

    Args:
        before: one replay.
        after: the other.
        units: a smallest unit for each result, outputs first; none by default.
    """
    if before.error is not None or after.error is not None or len(before.outputs) != len(after.outputs):
        return None
    return change.largest_change(_results(before), _results(after), units)


def smallest_units(native: Replayed, exact: Replayed) -> list[float]:
    """A smallest unit for each result: the size of the usual outputs for those that are zero by symmetry."""
    if native.error is not None or exact.error is not None:
        return []
    sizes = sorted(size for size in map(change.size_of, exact.outputs) if size)
    usual = sizes[(len(sizes) - 1) // 2] if sizes else 0.0
    return [
        0.0 if result is wide or _has_scale(result, wide, usual) else usual
        for result, wide in zip(_results(native), _results(exact), strict=True)
    ]


def _has_scale(native: object, exact: object, usual: float) -> bool:
    """Return whether a result has a scale of its own, and is not zero by symmetry."""
    least = max(_SHRINKS * change.size_of(native), _VANISHING * usual)
    return _has_digits(native, exact) or change.size_of(exact) > least


def _has_digits(native: object, exact: object) -> bool:
    """Return whether both precisions agree on small numbers, which then are a result of that scale and not zero."""
    size = change.size_of(exact)
    if not size or not isinstance(native, torch.Tensor) or not isinstance(exact, torch.Tensor):
        return False
    return native.shape == exact.shape and metrics.farthest(native, exact) <= _DIGITS * size


def _results(run: Replayed) -> list[object]:
    return [*run.outputs, *run.inputs]


def epsilon(run: Replayed) -> float:
    """The coarsest rounding unit among the floating outputs; 0 where there is none."""
    floating = [v.dtype for v in run.outputs if isinstance(v, torch.Tensor) and v.dtype.is_floating_point]
    return max((torch.finfo(dtype).eps for dtype in floating), default=0.0)


def constants_of(snapshot: Snapshot) -> set[str]:
    """Names of the nodes that hold constants."""
    return {
        node.name
        for node in snapshot.graph.nodes
        if node.op == "get_attr" or (node.op == "call_function" and node.target in _CONSTANTS)
    }


def _output_pairs(before: Replayed, after: Replayed) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """The outputs that are tensors in both runs, with their positions; none if one of the graphs does not run."""
    if before.error is None and after.error is None:
        for index, (was, now) in enumerate(zip(before.outputs, after.outputs, strict=False)):
            if isinstance(was, torch.Tensor) and isinstance(now, torch.Tensor):
                yield index, was, now


def metadata_change(before: Replayed, after: Replayed) -> str | None:
    """The first output of another dtype or shape; None if there is none, or one of the graphs does not run."""
    for index, was, now in _output_pairs(before, after):
        if was.dtype != now.dtype or was.shape != now.shape:
            return f"output {index}: {was.dtype} {tuple(was.shape)} became {now.dtype} {tuple(now.shape)}"
    return None


def stride_change(before: Replayed, after: Replayed) -> str | None:
    """The first output whose layout is another; None if there is none, or one of the graphs does not run."""
    for index, was, now in _output_pairs(before, after):
        strides = significant_strides(was), significant_strides(now)
        if was.shape == now.shape and strides[0] != strides[1]:
            return f"output {index}: stride {strides[0]} became {strides[1]}"
    return None


def alias_change(before: Replayed, after: Replayed) -> str | None:
    """The first output that shares memory with other inputs or outputs than before."""
    if before.error is not None or after.error is not None:
        return None
    memory = shared_memory(before), shared_memory(after)
    for name in dict.fromkeys((*memory[0], *memory[1])):
        if memory[0].get(name) != memory[1].get(name):
            owners = [f"memory of {', '.join(shared[name])}" if name in shared else "its own" for shared in memory]
            return f"{name}: {owners[0]} became {owners[1]}"
    return None


def shared_memory(run: Replayed | NodeRun) -> dict[str, tuple[str, ...]]:
    """Map each output that shares memory to the inputs and earlier outputs that it shares memory with."""
    named = {f"input {i}": value for i, value in enumerate(run.inputs)}
    named |= {f"output {i}": value for i, value in enumerate(run.outputs)}
    return {name: owners for name, owners in aliases(named).items() if name.startswith("output")}
