"""The driver that Triton queries for a device, for a target that is not there."""

from __future__ import annotations

from typing import Any

import torch
from triton.backends.compiler import GPUTarget

from fuzzcompile.targets import Target


class Driver:
    """The driver of a target: it names the device to compile for, and never launches."""

    launcher_cls = None
    utils = None

    def __init__(self, target: Target) -> None:
        self._target = target

    @classmethod
    def is_active(cls) -> bool:
        """Return True: Triton may use this driver."""
        return True

    def get_current_target(self) -> Any:
        """The architecture, as Triton's compiler takes it."""
        if self._target.kind == "rocm":
            return GPUTarget("hip", self._target.arch, self._target.warp)
        major, minor = self._target.capability
        return GPUTarget("cuda", major * 10 + minor, self._target.warp)

    def get_current_device(self) -> int:
        """The index of the device."""
        return 0

    def set_current_device(self, device: int) -> None:
        """Do nothing: there is one device."""

    def get_current_stream(self, device: int = 0) -> int:
        """The handle of the default stream."""
        return 0

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        """Major and minor number of the architecture."""
        return self._target.capability

    def get_active_torch_device(self) -> torch.device:
        """Return the device on which the tensors of kernels really are: the CPU."""
        return torch.device("cpu")
