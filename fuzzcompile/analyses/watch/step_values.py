"""The values of one step: what is kept of it in the script's process and in each run beside it."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy
import torch
from torch.optim.optimizer import Optimizer
from torch.utils import _pytree as pytree

from fuzzcompile.run.case import Arguments
from fuzzcompile.run.observation import Failure, Observation, Value
from fuzzcompile.run.ranks import name_on_rank
from fuzzcompile.run.reachable_state import ReachedObjects
from fuzzcompile.run.sharded_tensors import is_partial, read_part, read_values
from fuzzcompile.run.tensors import densify, is_freed, name_leaves

# Elements kept of one tensor and of one step: rows at equal distances of what is larger.
MOST_ELEMENTS, MOST_IN_STEP = 2**21, 2**25
_KINDS: dict[str, Literal["gradient", "mutation"]] = {
    "gradients": "gradient",
    "gradient_norm": "gradient",
    "buffers": "mutation",
    "parameters": "mutation",
}
_PLAIN = (bool, int, float, complex, str, type(None))


@dataclass
class StepValues:
    """Named values in the order in which the step makes them, each with its group, by which reports sum up."""

    # Group (``outputs``, ``loss``, ``gradients``, ``gradient_norm``, ``buffers``, ``parameters``), and a CPU tensor or
    # plain value.
    values: dict[str, tuple[str, object]] = field(default_factory=dict)
    ended: str = ""  # why the run ended before the step did; empty if it did not
    failure: tuple[str, str] | None = None  # type and message of the exception that ended the run
    # Digests of the random generators' states: at the start, after each call, at the end.
    streams: list[dict[str, str]] = field(default_factory=list)
    casts: bool = False  # the program casts to bfloat16 or float16 (of a float64 run)
    seconds: float = 0.0  # wall time of the run
    left_out: int = 0  # values that were too many to keep
    sampled: int = 0  # values of which some rows were kept
    partial: int = 0  # values of which this process has an addend: the sum would be a collective of the script's
    _elements: int = 0

    @classmethod
    def begun(cls) -> StepValues:
        """The values of a step that begins now."""
        return cls(streams=[_streams()])

    def add(self, group: str, name: str, value: object) -> None:
        """Keep a value: a copy of a tensor or of rows of it, or a plain object; anything else by its type."""
        while name in self.values:
            name = f"{name}'"
        if isinstance(value, torch.Tensor):
            if is_partial(value) or is_freed(value):  # the latter is what FSDP had gathered
                self.partial += is_partial(value)
                return
            value = read_values(value.detach())
            kept = _rows(densify(value))
            self.sampled += kept.numel() < value.numel()
            if self._elements + kept.numel() > MOST_IN_STEP:
                self.left_out += 1
                return
            self._elements += kept.numel()
            value = kept.to("cpu", copy=True)  # because the script goes on writing to the original
        elif not isinstance(value, _PLAIN):
            value = type(value).__qualname__
        self.values[name] = group, value

    def add_outputs(self, prefix: str, output: object) -> None:
        """Keep the leaves of what a call returned."""
        for name, leaf in name_leaves(f"{prefix}out", output):
            self.add("outputs", name, leaf)
        self.streams.append(_streams())

    def add_gradients(self, named: Mapping[str, torch.Tensor], when: str, *, norm_only: bool = False) -> None:
        """Keep the gradients of named tensors, and their norm."""
        graded = {name: tensor.grad for name, tensor in named.items() if tensor.grad is not None}
        for name, gradient in graded.items() if not norm_only else ():
            self.add("gradients", f"gradient of {name}{when}", gradient)
        if graded:
            parts = (read_part(gradient) for gradient in graded.values())  # the norm of what this process has
            norms = [torch.linalg.vector_norm(densify(part)) for part in parts]
            self.add("gradient_norm", f"gradient norm{when}", torch.linalg.vector_norm(torch.stack(norms)))

    def end(self, reason: str = "") -> None:
        """The step is over, or the run ends within it for a reason."""
        self.ended = reason
        if not reason:
            self.streams.append(_streams())

    def draws_alike(self, other: StepValues) -> bool:
        """Whether another run, as far as both went, left the generators that this one draws from where it left them."""
        if not self.streams or not other.streams:
            return False
        last = min(len(self.streams), len(other.streams)) - 1
        start, here, there = self.streams[0], self.streams[last], other.streams[last]
        return all(there.get(name) == state for name, state in here.items() if state != start.get(name))

    def save(self, path: Path) -> None:
        """Write the values, whole or not at all."""
        draft = path.with_name(f"{path.name}.part")
        torch.save(vars(self), draft)
        draft.replace(path)

    @classmethod
    def load(cls, path: Path) -> StepValues:
        """The values that :meth:`save` wrote."""
        made = cls()
        vars(made).update(torch.load(path, weights_only=True))
        return made

    @classmethod
    def merged(cls, ranks: Sequence[StepValues]) -> StepValues:
        """The values of all ranks of a program: those of others than the first are named after their rank.

        A rank whose run ends takes those of the others with it, which miss it in their next collective.
        """
        if len(ranks) == 1:
            return ranks[0]
        ended = next((f"rank {rank}: {values.ended}" for rank, values in enumerate(ranks) if values.ended), "")
        failed = [(rank, *values.failure) for rank, values in enumerate(ranks) if values.failure is not None]
        made = cls(ended=ended, seconds=max(values.seconds for values in ranks))
        if failed and not ended:
            rank, kind, message = failed[0]
            made.failure = kind, f"{message} (rank {rank})" if len(failed) < len(ranks) else message
        for rank, values in enumerate(ranks):
            named = {name_on_rank(name, rank) if rank else name: held for name, held in values.values.items()}
            made.values.update(named)
            made.casts |= values.casts
            made.left_out += values.left_out
            made.sampled += values.sampled
            made.partial += values.partial
        for moment in zip(*(values.streams for values in ranks), strict=False):
            drawn = {(rank, name): state for rank, streams in enumerate(moment) for name, state in streams.items()}
            made.streams.append({f"rank{rank}.{name}": state for (rank, name), state in drawn.items()})
        return made

    def observation(self, names: set[str]) -> Observation:
        """Those of the values as the judge reads them."""
        if self.failure is not None:
            return Observation(failure=Failure(*self.failure))
        kept = ((name, *held) for name, held in self.values.items() if name in names)
        values = tuple(Value(name, value, _KINDS.get(group, "output")) for name, group, value in kept)
        return Observation(values, seconds=self.seconds)


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or slices of it at equal distances along its longest dimensions."""
    while tensor.numel() > MOST_ELEMENTS:
        longest = max(range(tensor.dim()), key=lambda dimension: tensor.shape[dimension])
        step = min(tensor.shape[longest], -(-tensor.numel() // MOST_ELEMENTS))
        tensor = tensor[(slice(None),) * longest + (slice(None, None, max(2, step)),)]
    return tensor


def _streams() -> dict[str, str]:
    states = {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "python": repr(random.getstate()).encode(),
        "numpy": repr(numpy.random.get_state(legacy=False)).encode(),
    }
    return {name: hashlib.sha256(state).hexdigest() for name, state in states.items()}


def named_state(target: object, arguments: Arguments) -> dict[str, torch.Tensor]:
    """The tensors that a call can change, by the name that a user knows them by: parameters, buffers, inputs."""
    leaves = pytree.tree_leaves(arguments)
    holders = {f"argument{i}": leaf for i, leaf in enumerate(leaves) if not isinstance(leaf, torch.Tensor)}
    inputs = (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
    named = {f"input{i}": leaf for i, leaf in enumerate(inputs)}
    own = {id(tensor) for tensor in named.values()}
    reached = ReachedObjects({"": target, **holders}).tensors
    return {**named, **{name: tensor for name, tensor in reached.items() if id(tensor) not in own}}


@dataclass
class StepRecording:
    """A sampled step."""

    named: Mapping[str, torch.Tensor]  # the tensors that the step can change, by name
    path: Path  # where its values go in the script's process
    values: StepValues = field(default_factory=StepValues.begun)
    optimized: bool = False  # its ``optimizer.step()`` has been called
    _started: float = field(default_factory=time.monotonic)
    _calls: int = 0
    _backwards: int = 0
    _accumulated: bool = False

    def returned(self, output: object) -> None:
        """A watched callable has returned."""
        self._calls += 1
        self.values.add_outputs(f"call{self._calls}." if self._calls > 1 else "", output)

    def differentiated(self) -> None:
        """A backward pass is over. The gradients of the first one are kept before anything clips them."""
        self._backwards += 1
        if self._backwards == 1:
            self.values.add_gradients(self._leaves(), "")

    def accumulated(self, optimizer: Optimizer) -> None:
        """An optimizer gets its gradients: kept if several backward passes made them; their norm in any case."""
        if self._accumulated:
            return  # seen already, by its hook or by its watched step()
        self._accumulated = True
        self.values.add_gradients(self._held(optimizer), " before the optimizer", norm_only=self._kept_gradients)

    @property
    def _kept_gradients(self) -> bool:
        """Return whether the only backward pass left gradients; parameters that FSDP had gathered have none by then."""
        return self._backwards == 1 and any(group == "gradients" for group, _ in self.values.values.values())

    def stepped(self, optimizer: Optimizer) -> None:
        """An optimizer has changed its parameters."""
        if not self.optimized:  # as above
            self.optimized = True
            self._add("parameters", self._held(optimizer))

    def end(self, reason: str) -> None:
        """The step is over, or the run ends within it for a ``reason``: then its state belongs to another moment."""
        if not reason and not self.optimized:
            if self._backwards != 1:
                self.values.add_gradients(self._leaves(), "")
            self._add("parameters", self._leaves())
        if not reason:
            self._add("buffers", {n: t for n, t in self.named.items() if not isinstance(t, torch.nn.Parameter)})
        self.values.seconds = time.monotonic() - self._started
        self.values.end(reason)

    def _add(self, group: str, named: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in named.items():
            self.values.add(group, f"{name} after the step", tensor)

    def _leaves(self) -> dict[str, torch.Tensor]:
        """The tensors in which gradients accumulate."""
        return {name: tensor for name, tensor in self.named.items() if tensor.requires_grad and tensor.is_leaf}

    def _held(self, optimizer: Optimizer) -> dict[str, torch.Tensor]:
        known = {id(tensor): name for name, tensor in self.named.items()}
        held = [tensor for group in optimizer.param_groups for tensor in group["params"]]
        return {known.get(id(tensor), f"parameter {number}"): tensor for number, tensor in enumerate(held)}
