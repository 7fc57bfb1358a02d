"""Tensors that a graph holds itself (frozen parameters, constants): on the CPU, where they stand for the target's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from fuzzcompile.compiler.target.moving import CUDA, STAYS, moved_tensor

_MOVED = "_moved_to_target"


def wrap_conversion(original: Callable[..., Any]) -> Callable[..., Any]:
    """``FakeTensorConverter.from_real_tensor``: a tensor of the program is one of the target in fake form."""

    @functools.wraps(original)
    def from_real_tensor(
        converter: object, mode: Any, real: torch.Tensor, make_constant: bool = False, *args: Any, **kwargs: Any
    ) -> Any:
        fake = original(converter, mode, real, make_constant, *args, **kwargs)
        if make_constant or hasattr(real, STAYS) or fake.device.type != "cpu":
            return fake
        if type(real) not in (torch.Tensor, torch.nn.Parameter):
            return fake
        if not hasattr(fake, _MOVED):
            moved = moved_tensor(fake, mode=mode)
            moved._is_param = isinstance(real, torch.nn.Parameter)
            setattr(fake, _MOVED, moved)
        return getattr(fake, _MOVED)

    return from_real_tensor


def wrap_constant(original: Callable[..., Any]) -> Callable[..., Any]:
    """``GraphLowering.add_tensor_constant``: code is generated for a constant of the target."""

    @functools.wraps(original)
    def add_tensor_constant(*args: Any, **kwargs: Any) -> Any:
        box = original(*args, **kwargs)
        layout = box.data.data.layout
        if layout.device.type == "cpu":
            layout.device = CUDA
        return box

    return add_tensor_constant
