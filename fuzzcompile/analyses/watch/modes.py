"""How the runs beside the script differ: eager, in float64, perturbed, captured, followed."""

from __future__ import annotations

import contextlib
import gc
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fuzzcompile.run.float64 import Float64Mode
from fuzzcompile.run.noise import UlpNoise
from fuzzcompile.run.tensors import LOW_FLOATS, StorageCopier

Kind = Literal["eager", "float64", "exact", "noise", "graphs", "followed"]


@dataclass(frozen=True)
class Mode:
    """One way to run the step.

    Attributes:
        kind: ``eager``; ``float64`` with the program's low-precision casts and ``exact`` without; ``noise`` moves
            every operator's result by one ulp at most; ``graphs`` captures dynamo's graphs; ``followed`` goes on for
            several steps.
        seed: of ``noise``; of ``followed``, the seed by which the state is moved by one ulp (0: not moved).
    """

    kind: Kind
    seed: int = 0

    @property
    def name(self) -> str:
        """What files and reports call it."""
        return f"{self.kind}{self.seed}" if self.kind in ("noise", "followed") else self.kind


def enter(mode: Mode) -> TorchDispatchMode | None:
    """Have the rest of this process run in the mode; returns the dispatch mode that it entered, if any."""
    torch.set_num_threads(1)  # a fork has none of its parent's threads
    _leave_shared_memory()
    if mode.kind != "graphs":
        torch.compiler.set_stance("force_eager")
    if mode.kind == "followed" and mode.seed:
        _move_parameters(mode.seed)
    if mode.kind in ("float64", "exact"):
        entered: TorchDispatchMode = Float64Mode(keep_casts=mode.kind == "float64", native=_convert_to_float64())
    elif mode.kind == "noise":
        entered = UlpNoise(mode.seed)
    else:
        return None
    entered.__enter__()  # type: ignore[no-untyped-call]  # for good: the process ends in it
    return entered


def _tensors() -> list[torch.Tensor]:
    """Every plain tensor of this process that has memory."""
    # By type, not isinstance: a weak proxy may be dead.
    found = [value for value in gc.get_objects() if type(value) in (torch.Tensor, nn.Parameter)]
    return [tensor for tensor in found if tensor.layout is torch.strided and tensor.device.type == "cpu"]


def _leaves() -> list[torch.Tensor]:
    """Every tensor in whose own dtype autograd accumulates a gradient."""
    return [tensor for tensor in _tensors() if tensor.is_leaf and tensor.requires_grad]


def _leave_shared_memory() -> None:
    """Copy what lies in memory that the script reads too, such as the batches of a loader with workers."""
    for tensor in _tensors():
        if tensor.is_shared():  # type: ignore[no-untyped-call]
            with contextlib.suppress(RuntimeError):  # inference tensors are not written to
                tensor.data = tensor.detach().clone()


def _convert_to_float64() -> torch.dtype:
    """Convert what gradients accumulate in; the mode itself converts everything else on first use.

    Returns:
        The widest floating dtype that there was, float32 if there was none.
    """
    copier = StorageCopier(double=True)
    dtypes = set()
    with torch.no_grad():
        for leaf in _leaves():
            dtypes.add(leaf.dtype)
            gradient, leaf.grad = leaf.grad, None
            with contextlib.suppress(RuntimeError):  # subclasses and inference tensors keep their values
                leaf.data = copier(leaf).detach()
            if gradient is not None and leaf.dtype is torch.float64:
                leaf.grad = copier(gradient).detach()
    return next((dtype for dtype in (torch.float64, *LOW_FLOATS) if dtype in dtypes), torch.float32)


def _move_parameters(seed: int) -> None:
    """Move every element of every parameter by one ulp at most."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for leaf in _leaves():
            draw = torch.randint(-1, 2, leaf.shape, generator=generator)
            leaf.data = leaf.data * (1 + torch.finfo(leaf.dtype).eps * draw.to(leaf.dtype))
