"""The random streams of a program: whether a run moved them, and runs of one program under many seeds."""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy
import torch

from fuzzcompile.run.building import Program
from fuzzcompile.run.case import Case
from fuzzcompile.run.observation import Failure, Observation
from fuzzcompile.run.runs import observe, reseed
from fuzzcompile.run.tensors import tensor_leaves

Streams = Mapping[str, str]


def streams_now() -> dict[str, str]:
    """A fingerprint of the current state of each random stream that can be seeded: torch's, Python's, NumPy's."""
    states: dict[str, bytes] = {"torch CPU": torch.get_rng_state().numpy().tobytes()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        with contextlib.suppress(RuntimeError):  # a GPU that the program has lost has no state to read
            states["CUDA"] = b"".join(state.numpy().tobytes() for state in torch.cuda.get_rng_state_all())
    states["Python"] = repr(random.getstate()).encode()
    kind, keys, *rest = numpy.random.get_state(legacy=True)
    states["NumPy"] = b"".join((str(kind).encode(), numpy.asarray(keys).tobytes(), repr(rest).encode()))
    return {name: hashlib.sha256(state).hexdigest() for name, state in states.items()}


def streams_at_start(case: Case) -> dict[str, str]:
    """The fingerprints at the start of every run of the case."""
    reseed(case)
    return streams_now()


def moved(before: Streams, after: Streams) -> tuple[str, ...]:
    """Names of the streams that numbers were drawn from."""
    return tuple(name for name, state in after.items() if before.get(name, state) != state)


class Kept:
    """A copy of a program's tensors, which restores the program between runs of one (compiled) callable.

    Whole storages are copied, since inputs may overlap. Python objects that a module keeps are not restored.
    """

    def __init__(self, case: Case, program: Program, device: torch.device) -> None:
        self._case, self._device = case, device
        self._tensors = [*program.tensors().values(), *tensor_leaves(program.calls)]
        self._storages: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        for tensor in self._tensors:
            if tensor.layout == torch.strided and not tensor.is_nested:
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in self._storages:
                    copied: torch.UntypedStorage = storage.clone()  # type: ignore[no-untyped-call]
                    self._storages[storage.data_ptr()] = storage, copied

    def restore(self) -> None:
        """Restore the values, and drop the gradients."""
        if self._case.state is not None:
            self._case.state.restore(self._device, double=False)
        for storage, saved in self._storages.values():
            if storage.nbytes() != saved.nbytes():
                storage.resize_(saved.nbytes())
            storage.copy_(saved)
        for tensor in self._tensors:
            if tensor.is_leaf and tensor.grad is not None:
                tensor.grad = None


def observe_seeds(
    case: Case,
    program: Program,
    target: Callable[..., object],
    kept: Kept,
    seeds: Sequence[int],
    *,
    describe_failure: Callable[[BaseException], Failure] | None = None,
) -> Iterator[Observation]:
    """Run ``target`` once under each of ``seeds``, each time from the state in ``kept``."""
    for seed in seeds:
        kept.restore()
        yield observe(case, program, target, describe_failure=describe_failure, seed=seed)
