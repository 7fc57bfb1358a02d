"""What is kept of one sampled step as it goes on, in the script's process and in each run beside it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.optim.optimizer import Optimizer

from fuzzcompile.analyses.watch.values import StepValues


@dataclass
class Recording:
    """A sampled step.

    Attributes:
        named: the tensors that the step can change, by name.
        path: where its values go in the script's process.
        optimized: its ``optimizer.step()`` has been called.
    """

    named: Mapping[str, torch.Tensor]
    path: Path
    values: StepValues = field(default_factory=StepValues.begun)
    optimized: bool = False
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
        named = self._held(optimizer)
        if self._backwards == 1:
            graded = {name: tensor.grad for name, tensor in named.items() if tensor.grad is not None}
            self.values.add_norm(graded, " before the optimizer")
        else:
            self.values.add_gradients(named, " before the optimizer")

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
        """The parameters of an optimizer."""
        known = {id(tensor): name for name, tensor in self.named.items()}
        held = [tensor for group in optimizer.param_groups for tensor in group["params"]]
        return {known.get(id(tensor), f"parameter {number}"): tensor for number, tensor in enumerate(held)}
