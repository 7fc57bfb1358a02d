"""GPUs that a process has lost: after an assertion in a kernel or an illegal address every call fails until it ends."""

from __future__ import annotations

import torch

from fuzzcompile.run.exhaustion import first_line
from fuzzcompile.run.tensors import tensor_leaves


def lost_gpu(device: torch.device) -> str | None:
    """The error that ``device`` answers every call of this process with; None while it works, and for other devices."""
    if device.type != "cuda" or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        return first_line(error)
    return None


def wait_for(values: object) -> None:
    """Wait for the kernels that the tensors among ``values`` come from, and raise their errors.

    Raises:
        RuntimeError: a kernel failed; without waiting a later call would raise that.
    """
    for device in {tensor.device for tensor in tensor_leaves(values) if tensor.is_cuda}:
        torch.cuda.synchronize(device)
