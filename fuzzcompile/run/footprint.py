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


@dataclass(frozen=True)
class Footprint:
    """Sizes in bytes of a case's tensors, and of what judging the case holds at once.

    ``parameters`` are all tensors that are not inputs, ``doubled`` is one copy of the whole case in float64.
    ``gradients`` are those that a case with BACKWARD compares. ``streamed`` are the tensors that a replay in float64
    converts when they are read; of a case that differentiates, only replays are streamed.
    """

    parameters: int
    inputs: int
    doubled: int
    gradients: int = 0
    gradients_doubled: int = 0
    largest_gradient: int = 0
    streamed: int = 0
    streamed_doubled: int = 0
    largest_streamed: int = 0
    differentiates: bool = False

    @property
    def native(self) -> int:
        """One copy of the whole case in its own dtypes."""
        return self.parameters + self.inputs

    @property
    def _float64_copy(self) -> int:
        """The most bytes of one streamed copy in float64 that are held at once."""
        return self.doubled - self.streamed_doubled + min(self.streamed_doubled, KEPT_BYTES + self.largest_streamed)

    @property
    def phases(self) -> tuple[dict[str, int], ...]:
        """The memory that each phase of judging holds: the reference, the compiled run, the comparison, the replays."""
        if self.differentiates:
            gradients = {"gradients": 2 * self.gradients}
            reference = {"float64 reference": 2 * self.doubled + 2 * self.gradients_doubled, **gradients}
        else:  # with a copy of the state from before the call
            before = self.doubled - self.streamed_doubled
            reference = {"copies": 2 * self.native, "float64 reference": self._float64_copy + before}
        # The inputs of dynamo's graph, of each graph that AOTAutograd makes of it and of every call are kept once.
        recorded = self.native
        # The gradients of all runs are kept for the comparison.
        kept = _KEPT_RUNS * self.gradients + self.gradients_doubled
        return (
            reference,
            {"copies": 2 * self.native + recorded, "gradients": kept + self.gradients},
            {
                "copies": recorded,
                "gradients": kept,
                "comparing the largest of them": _COMPARING * self.largest_gradient,
            },
            {
                "copies": self.native - self.streamed + recorded,
                "gradients": kept + (1 + _REPLAYED) * self.gradients,
                "float64 replay": self._float64_copy + _REPLAYED * self.gradients_doubled,
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
        return (
            f"parameters {_format_gib(self.parameters)}, inputs {_format_gib(self.inputs)}; at once: {', '.join(parts)}"
        )


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
    parameters = _count_bytes(own)
    return Footprint(
        parameters=parameters,
        inputs=_count_bytes([*own, *inputs]) - parameters,
        doubled=_count_bytes([*own, *inputs], double=True),
        gradients=_count_bytes(asked),
        gradients_doubled=_count_bytes(asked, double=True),
        largest_gradient=_measure_largest(asked),
        streamed=_count_bytes(large),
        streamed_doubled=_count_bytes(large, double=True),
        largest_streamed=_measure_largest(large),
        differentiates=case.differentiates or case.state is not None,
    )


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


def _measure_largest(tensors: Iterable[torch.Tensor]) -> int:
    return max((tensor.numel() * double_dtype(tensor.dtype).itemsize for tensor in tensors), default=0)


def _count_bytes(tensors: Iterable[torch.Tensor], *, double: bool = False) -> int:
    """Size of the storages below ``tensors``, each counted once: views and tied parameters share one."""
    storages: dict[object, int] = {}
    for tensor in tensors:
        key: object = id(tensor)
        size = tensor.numel() * tensor.element_size() if tensor.layout == torch.strided else 0
        with contextlib.suppress(NotImplementedError, RuntimeError):  # sparse tensors and subclasses have no storage
            storage = tensor.untyped_storage()
            key, size = storage.data_ptr() or id(storage), storage.nbytes()
        dtype = tensor.dtype
        storages[key] = size // dtype.itemsize * (double_dtype(dtype) if double else dtype).itemsize
    return sum(storages.values())


def _format_gib(size: int) -> str:
    return f"{size / _GIB:.1f}" if size >= _GIB / 10 or not size else f"{size / _GIB:.2f}"
