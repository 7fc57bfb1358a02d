"""Estimate the memory that judging a case takes, from its real tensors, and refuse a case that is too large.

The estimate counts the copies of parameters, buffers and inputs that the runs, the recorder and the replays hold at
once, and the gradients that the runs keep. Large tensors that float64 runs convert when they are read
(:mod:`fuzzcompile.run.case_program`) count in their own dtype, and in float64 as far as they are kept. Activations
and the compiler's own memory come on top: the pool watches each worker while it runs, and ends it if it exceeds its
limit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, cast

import psutil
import torch

from fuzzcompile.model.errors import EnvironmentUnfit
from fuzzcompile.run.case import Case
from fuzzcompile.run.case_program import KEPT_BYTES, RUN_SEED, is_large, name_roots
from fuzzcompile.run.device import convert_memory_errors, seed_everything
from fuzzcompile.run.reachable_state import ReachedObjects
from fuzzcompile.run.tensors import double_dtype, list_tensors

# Runs whose values are kept until the end, besides the float64 reference: eager twice, perturbed, compiled.
_KEPT_RUNS = 6
# Comparing values takes so many float64 copies of them (measured: 4.9): distances from two other runs, a bound.
_COMPARING = 6
# Replays of two graphs are compared at once, each natively and in float64.
_REPLAYED = 2
# What the compiler loads and keeps once it compiles.
_COMPILER = 100 * 2**20
_GIB = 2**30


class TensorSizes(NamedTuple):
    """Bytes of some tensors in their own dtypes and in float64, and of the largest of them in float64."""

    native: int
    doubled: int
    largest: int


@dataclass(frozen=True)
class Footprint:
    """Sizes of a case's tensors, of which ``parameters`` bytes are no inputs, and of what judging it holds at once.

    ``gradients`` are those that a case with BACKWARD compares. ``streamed`` are the tensors that a replay in float64
    converts when they are read; of a case that differentiates, only replays are streamed.
    """

    parameters: int
    whole: TensorSizes
    gradients: TensorSizes
    streamed: TensorSizes
    differentiates: bool

    @property
    def phases(self) -> tuple[dict[str, int], ...]:
        """The memory that each phase of judging holds: the reference, the compiled run, the comparison, the replays."""
        gradients, streamed = self.gradients, self.streamed
        unstreamed = self.whole.doubled - streamed.doubled
        # The most bytes of one streamed copy in float64 that are held at once.
        float64_copy = unstreamed + min(streamed.doubled, KEPT_BYTES + streamed.largest)
        if self.differentiates:
            wide = 2 * self.whole.doubled + 2 * gradients.doubled
            reference = {"float64 reference": wide, "gradients": 2 * gradients.native}
        else:  # with a copy of the state from before the call
            reference = {"copies": 2 * self.whole.native, "float64 reference": float64_copy + unstreamed}
        # The inputs of dynamo's graph, of each graph that AOTAutograd makes of it and of every call are kept once.
        recorded = self.whole.native
        # The gradients of all runs are kept for the comparison.
        kept = _KEPT_RUNS * gradients.native + gradients.doubled
        return (
            reference,
            {"copies": 2 * self.whole.native + recorded, "gradients": kept + gradients.native},
            {"copies": recorded, "gradients": kept, "comparing the largest of them": _COMPARING * gradients.largest},
            {
                "copies": self.whole.native - streamed.native + recorded,
                "gradients": kept + (1 + _REPLAYED) * gradients.native,
                "float64 replay": float64_copy + _REPLAYED * gradients.doubled,
            },
        )

    @property
    def most(self) -> dict[str, int]:
        """The phase that takes the most memory."""
        return max(self.phases, key=lambda phase: sum(phase.values()))

    @property
    def total(self) -> int:
        """The most bytes that are held at once."""
        return sum(self.most.values())

    def __str__(self) -> str:
        parts = [f"{name} {_format_gib(size)}" for name, size in self.most.items() if size]
        own, inputs = _format_gib(self.parameters), _format_gib(self.whole.native - self.parameters)
        return f"parameters {own}, inputs {inputs}; at once: {', '.join(parts)}"


def measure_footprint(case: Case) -> Footprint | None:
    """Call the case's ``make()`` once and measure its tensors; None if it raises, which a run will report.

    Raises:
        MemoryError: there is not even enough memory to make it.
    """
    seed_everything(RUN_SEED)
    try:
        with convert_memory_errors():
            model, arguments = case.make()
    except (KeyboardInterrupt, MemoryError):
        raise
    except BaseException:  # make() is user code and may raise anything; the first run reports it
        return None
    calls = [arguments, *(case.calls or ())]
    reached = case.state.reached() if case.state is not None else ReachedObjects(name_roots(model, calls))
    own, inputs = list(reached.tensors.values()), list(list_tensors(calls))
    asked = [t for t in (*own, *inputs) if case.backward and t.requires_grad and t.is_leaf]
    large = [tensor for tensor in (*own, *inputs) if is_large(tensor)]
    differentiates = case.differentiates or case.state is not None
    sizes = (_measure([*own, *inputs]), _measure(asked), _measure(large))
    return Footprint(_measure(own).native, *sizes, differentiates=differentiates)


def refuse_oversized(case: Case, device: torch.device, limit: int) -> None:
    """Refuse a case that cannot be judged within ``limit`` bytes of this process, before it runs.

    On a GPU the copies are held there, so the limit is its free memory.

    Raises:
        EnvironmentUnfit: it needs more.
    """
    footprint = measure_footprint(case)
    if footprint is None:
        return
    needed, own, advice = footprint.total, "", "judge a part with --module"
    if device.type == "cuda":
        limit = torch.cuda.mem_get_info(device)[0]
        allowed = f"{device} has {_format_gib(limit)} GiB free"
    else:
        process = psutil.Process().memory_info().rss + _COMPILER
        needed, own = process + needed, f", the worker itself {_format_gib(process)}"
        allowed, advice = f"--max-memory allows {_format_gib(limit)} GiB", f"raise --max-memory or {advice}"
    if needed > limit:
        raise EnvironmentUnfit(
            f"{case.name} needs about {_format_gib(needed)} GiB ({footprint}{own}) and {allowed}: {advice}."
        )


def _measure(tensors: Iterable[torch.Tensor]) -> TensorSizes:
    """Sizes of the storages below ``tensors``, each counted once: views and tied parameters share one."""
    storages: dict[object, tuple[int, int]] = {}
    largest = 0
    for tensor in tensors:
        wide, key = double_dtype(tensor.dtype).itemsize, cast(object, id(tensor))
        size = tensor.numel() * tensor.element_size() if tensor.layout == torch.strided else 0
        with contextlib.suppress(NotImplementedError, RuntimeError):  # sparse tensors and subclasses have no storage
            storage = tensor.untyped_storage()
            key, size = storage.data_ptr() or id(storage), storage.nbytes()
        count = size // tensor.dtype.itemsize
        storages[key] = count * tensor.dtype.itemsize, count * wide
        largest = max(largest, tensor.numel() * wide)
    return TensorSizes(sum(own for own, _ in storages.values()), sum(wide for _, wide in storages.values()), largest)


def _format_gib(size: int) -> str:
    return f"{size / _GIB:.1f}" if size >= _GIB / 10 or not size else f"{size / _GIB:.2f}"
