"""Sample inputs in other places of memory: transposed, expanded, behind an offset, with gaps, channels last."""

from __future__ import annotations

from collections.abc import Callable

import torch


def _transposed(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(-1, -2).contiguous().transpose(-1, -2) if x.dim() > 1 else x


def _expanded(x: torch.Tensor) -> torch.Tensor:
    """Stride 0 in the first dimension that has more than one element: all along it become equal."""
    long = next((dimension for dimension, size in enumerate(x.shape) if size > 1), None)
    return x if long is None else x.narrow(long, 0, 1).expand(x.shape)


def _offset(x: torch.Tensor) -> torch.Tensor:
    base = torch.cat([x.new_zeros(1), x.flatten()])
    return base[1:].view(x.shape)


def _gaps(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x, torch.zeros_like(x)], -1)[..., 0] if x.dim() else x


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.contiguous(memory_format=formats[x.dim()]) if x.dim() in formats else x


_LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": _transposed,
    "expanded": _expanded,
    "offset": _offset,
    "gaps": _gaps,
    "channels_last": _channels_last,
}


def laid_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """``tensor`` in a layout of `fuzzcompile.opinfo.cells.LAYOUTS`, as a leaf; itself where that changes nothing."""
    plain = tensor.detach()
    if layout not in _LAYOUTS or not plain.numel() or plain.layout != torch.strided or plain.is_conj():
        return tensor
    moved = _LAYOUTS[layout](plain)
    if (moved.stride(), moved.storage_offset()) == (plain.stride(), plain.storage_offset()):
        return tensor
    return moved.requires_grad_(tensor.requires_grad)
