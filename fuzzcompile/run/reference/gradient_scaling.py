"""The operators of ``torch.amp.GradScaler`` on float64 tensors: their kernels take a scale in float32 alone.

A scaler leaves a step out where a gradient is not finite. Which numbers are, is a matter of the program's own dtype:
what overflows there counts as infinite here, so that the same steps are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch


def find_stand_in(operator: torch._ops.OpOverload, native: torch.dtype) -> Callable[..., object] | None:
    """A function that computes the same as an operator of a gradient scaler, for a program in ``native``; else None."""
    compute = _FORMS.get(operator._schema.name)
    return None if compute is None or operator._overloadname != "default" else partial(compute, native)


def _unscale_in_place(
    native: torch.dtype, gradients: Sequence[torch.Tensor], found_inf: torch.Tensor, inv_scale: torch.Tensor
) -> None:
    largest = torch.finfo(native).max
    for gradient in gradients:
        if not bool((gradient.abs() <= largest).all()):  # NaN is not either
            found_inf.fill_(1.0)
        gradient.mul_(inv_scale)


def _unscale(
    native: torch.dtype, gradients: Sequence[torch.Tensor], found_inf: torch.Tensor, inv_scale: torch.Tensor
) -> tuple[list[torch.Tensor], torch.Tensor]:
    copies, found_inf = [gradient.clone() for gradient in gradients], found_inf.clone()
    _unscale_in_place(native, copies, found_inf, inv_scale)
    return copies, found_inf


def _update_in_place(
    native: torch.dtype,
    scale: torch.Tensor,
    tracker: torch.Tensor,
    found_inf: torch.Tensor,
    growth: float,
    backoff: float,
    interval: int,
) -> torch.Tensor:
    del native  # a scale is float32 in every program
    if bool(found_inf):
        scale.mul_(backoff)
        tracker.zero_()
    elif int(tracker) + 1 < interval:
        tracker.add_(1)
    else:
        grown = scale * growth
        if bool(grown <= torch.finfo(torch.float32).max):
            scale.copy_(grown)
        tracker.zero_()
    return scale


def _update(
    native: torch.dtype, scale: torch.Tensor, tracker: torch.Tensor, *rest: object
) -> tuple[torch.Tensor, torch.Tensor]:
    scale, tracker = scale.clone(), tracker.clone()
    _update_in_place(native, scale, tracker, *rest)  # type: ignore[arg-type]
    return scale, tracker


_FORMS: dict[str, Callable[..., object]] = {
    "aten::_amp_foreach_non_finite_check_and_unscale_": _unscale_in_place,
    "aten::_amp_foreach_non_finite_check_and_unscale": _unscale,
    "aten::_amp_update_scale_": _update_in_place,
    "aten::_amp_update_scale": _update,
}
